// Measures this machine within three seconds when its figures are first needed, and stores them (figures.h). For
// predictions and what attention=auto chooses by them. `zoetrope calibrate` (bench/calibrate.h) measures
// more, including transfers between ranks.
//
// Seconds per figure, including its inputs; what a figure does not use goes to the others:
//
//   bf16, float32, each   matrices 0.40, attention 0.35, convolution 0.35 s; before each the peak, 3 x 0.02 s
//   bf16                  int8 0.07, for packing; its multiplications take turns with those of bf16
//   both                  memory 0.20, packing 0.25, norms and one token 0.15 s
//
// Sizes follow from the peak: the largest that can run a few times in that time. A figure is the best of its repeats,
// because other load can only make a machine look slower.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/figures.h"

namespace zoetrope::machine {

inline constexpr double kFirstUseSeconds = 3;

using Heartbeat = std::function<void()>;  // called about every tenth of a second during long work
using Clock = std::function<double()>;    // seconds

// Divides the remaining time by shares: share / (all remaining shares) of it.
class Budget {
 public:
  Budget(double seconds, double shares, Clock clock)
      : clock_(std::move(clock)), end_(clock_() + seconds), shares_(shares) {}
  // When the next part must end.
  double deadline(double share);
  double left() const;  // in total; negative if it was not enough
  const Clock& clock() const { return clock_; }

 private:
  Clock clock_;
  double end_, shares_;
};

// The best rate of each of `works`, which run in turns until the next round would not end before `deadline`, so that
// other load slows all of them. The first round is a warm-up: it counts only if there is no time for another.
std::vector<double> best_rates(const Clock& clock, double deadline, std::span<const std::function<double()>> works,
                               const Heartbeat& heartbeat);

// The largest of `sizes` (descending) that can run `times` times in `seconds`; the last if none can.
int64_t size_within(std::span<const int64_t> sizes, const std::function<double(int64_t)>& seconds_of, double times,
                    double seconds);

// On all cores that this process may use. Throws Error within a tenth of a second if other programs use most of them.
Figures measure_machine(const Heartbeat& heartbeat);

struct FirstUse {
  bool worth_measuring = true;  // false: use stored figures or none
  Heartbeat heartbeat;
  std::function<Figures(const Heartbeat&)> measure = measure_machine;
};

struct KnownMachine {
  Figures figures;
  MachineKey key;                  // the machine
  std::string date;                // of the last measurement
  std::vector<std::string> notes;  // what was measured now, and what makes figures uncertain
};

// The stored figures of this machine; measures them if there are none. Figures measured on a busy machine are measured
// again by the next process that needs them, a few times at most, and the better ones kept. Empty if measuring is not
// worth it, is forbidden by ZOETROPE_MEASURE=no, or failed (with a note). Throws Error if that variable has another
// value.
std::optional<KnownMachine> known_machine(const FirstUse& use, std::vector<std::string>& notes);

// False with ZOETROPE_MEASURE=no. Throws Error for another value.
bool may_measure();

// Call it if a run was much faster than these figures predict: they are measured again at the next use.
void doubt_machine();

}  // namespace zoetrope::machine
