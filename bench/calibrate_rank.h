// One rank of a calibration: loops that keep all ranks at the same work at the same time, and the statistics of
// repeats.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "zoetrope/communicator.h"

#include "bench/peak.h"
#include "bench/statistics.h"
#include "device/stream.h"

namespace zoetrope::bench {

// Median of repeats, and half their range over it.
struct Measured {
  double value = 0;
  double spread = 0;
};

inline Measured measured(const std::vector<double>& repeats) {
  const double middle = median(repeats);
  return {middle, middle > 0 ? (maximum(repeats) - minimum(repeats)) / 2 / middle : 0};
}

inline constexpr int kRepeats = 5;  // odd, so that the median was measured; up to two may be disturbed

class CalibrationRank {
 public:
  CalibrationRank(comm::Communicator& world, int threads, double seconds)
      : world_(world), stream_(threads), seconds_(seconds) {}

  comm::Communicator& world() { return world_; }
  Stream& stream() { return stream_; }
  int threads() { return stream_.team().size(); }
  double seconds() const { return seconds_; }  // of a window
  bool leads() const { return world_.rank() == 0; }
  double least(double value) { return world_.all_reduce_min(value); }
  double mean(double value) { return world_.all_reduce_sum(value) / world_.size(); }

  // The amount of work per second of the slowest rank while all work for a window; work() returns the amount it did.
  // The slowest, because a step ends when it does.
  double rate(const std::function<double()>& work) {
    world_.barrier();
    const double begin = wall_seconds();
    double amount = 0, passed = 0;
    do {
      amount += work();
      passed = wall_seconds() - begin;
    } while (passed < seconds_);
    return least(amount / passed);
  }
  Measured rates(const std::function<double()>& work) {
    work();  // allocates pages, loads code and tables
    std::vector<double> repeats;
    for (int i = 0; i < kRepeats; ++i) repeats.push_back(rate(work));
    return measured(repeats);
  }

  // Multiply-adds per second of a rank while all do nothing else.
  double peak(Isa isa) {
    world_.barrier();
    return mean(measure_peak(isa, stream_.team(), seconds_).flops);
  }

  // Seconds of the slowest rank for once(): the mean of `count`, started together.
  double slowest(int64_t count, const std::function<void()>& once) {
    world_.barrier();
    const double begin = wall_seconds();
    for (int64_t i = 0; i < count; ++i) once();
    return world_.all_reduce_max(wall_seconds() - begin) / static_cast<double>(count);
  }
  // How many runs of `once` seconds fill a window; the same on every rank if `once` is.
  int64_t count_for(double once) const {
    return static_cast<int64_t>(std::clamp(seconds_ / std::max(once, 1e-9), 1.0, 1e6));
  }
  Measured times(const std::function<void()>& once) {
    slowest(1, once);
    const int64_t count = count_for(slowest(1, once));
    std::vector<double> repeats;
    for (int i = 0; i < kRepeats; ++i) repeats.push_back(slowest(count, once));
    return measured(repeats);
  }

 private:
  comm::Communicator& world_;
  Stream stream_;
  double seconds_;
};

}  // namespace zoetrope::bench
