// Keeps emulated devices at a constant speed. A fixed share of a core is not enough: on a machine that is
// shared with others the speed of a core changes by half within a second. This program measures the speed of the core
// that it is bound to twenty times per second, and adjusts the share of the control groups of the devices on it.
//
//     speed_keeper measure DTYPE SECONDS               prints the speed of this core, in FLOP/s
//     speed_keeper keep DTYPE FLOPS MOST GROUP…        until standard input ends; for each line there prints, since the
//                                                     last one: measurements, measurements that the host disturbed
//
// FLOPS: of a device. MOST: the largest share of the core for a device. GROUP: folder of a device's control group.
// Speed is that of multiply-adds on registers with the instructions that attention uses for DTYPE, in CPU time; time
// that the host takes away from the core ("steal") is compensated, too. The core is never idle meanwhile.
#include <fmt/core.h>
#include <immintrin.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "device/thread_team.h"
#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::bench {
namespace {

constexpr int kTickMilliseconds = 50;
constexpr double kLook = 0.5e-3;  // seconds of multiply-adds per tick: 1 % of the core, 2 % with AMX
// The speed is the median of this many measurements. While the host takes the core away CPU time hardly advances, and a
// measurement can give any result: with a mean a device once got a thousandth of its core.
constexpr size_t kLooks = 5;
// Of the core. Stolen time comes in pieces of milliseconds, in which a device stops and others wait for it: more than
// this affects the result, although the device is compensated.
constexpr double kStolen = 0.1;
constexpr double kTooSlow = 0.05;  // above the largest share; measurements of the same core differ by less
constexpr int kStolenTicks = 6;    // for the stolen share: the kernel counts it in hundredths of a second
// Each change starts a new period, so small ones are not worth it.
constexpr double kChange = 0.03;
// The control groups' period for shares of at least 0.4; smaller ones get the least quota of the kernel, and a longer
// period. Short compared with the queues of a link, because a rank that has used up its share neither computes nor
// sends (with 10 ms a fast link was idle meanwhile); long compared with a context switch.
constexpr double kPeriod = 2500, kLeastQuota = 1000, kLongestPeriod = 1e6;  // microseconds

double number(const char* text, const char* what) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != 0 || !(value > 0) || !std::isfinite(value))
    fail("speed_keeper: {} '{}' must be a number above 0", what, text);
  return value;
}

Isa isa_of(const std::string& dtype) {
  if (dtype != "bf16" && dtype != "float32") fail("speed_keeper: dtype '{}' must be bf16 or float32", dtype);
  kernels::FlashProblem problem;
  problem.query_tokens = problem.key_tokens = problem.heads = 1;
  problem.head_dim = 128;
  problem.dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32;
  return isa_of_kernel(kernels::FlashAttention(problem).implementation());
}

// The control group of a device, of either version.
class Device {
 public:
  explicit Device(const std::string& folder)
      : folder_(folder), one_file_(std::filesystem::exists(folder_ / "cpu.max")) {
    // A device may use in the next period what it could not use because the host took the core away.
    const auto burst = folder_ / (one_file_ ? "cpu.max.burst" : "cpu.cfs_burst_us");
    if (std::filesystem::exists(burst)) {
      share(kLeastQuota / kPeriod);
      write(burst, fmt::format("{:.0f}", kLeastQuota));
    }
  }

  void share(double share) {
    // Only one of both changes, because each write starts a new period.
    const bool large = kPeriod * share >= kLeastQuota;
    const double quota = large ? std::round(kPeriod * share) : kLeastQuota;
    const double period = large ? kPeriod : std::min(kLongestPeriod, std::round(kLeastQuota / share));
    if (one_file_) {
      write(folder_ / "cpu.max", fmt::format("{:.0f} {:.0f}", quota, period));
      return;
    }
    if (period != period_) write(folder_ / "cpu.cfs_period_us", fmt::format("{:.0f}", period_ = period));
    if (quota != quota_) write(folder_ / "cpu.cfs_quota_us", fmt::format("{:.0f}", quota_ = quota));
  }

 private:
  static void write(const std::filesystem::path& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    if (!out) fail("speed_keeper: '{}' cannot be written to {}", text, file.string());
  }

  std::filesystem::path folder_;
  bool one_file_;
  double quota_ = 0, period_ = 0;
};

// Seconds that the host has taken from this core so far, in steps of 0.01.
double seconds_stolen(int core) {
  std::ifstream file("/proc/stat");
  const std::string name = fmt::format("cpu{}", core);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    double value = 0;
    words >> first;
    if (first != name) continue;
    for (int i = 0; i < 8 && words >> value; ++i) continue;  // user nice system idle iowait irq softirq steal
    return words ? 0.01 * value : 0;
  }
  return 0;
}

// Keeps an idle core busy. A virtual machine's core that sleeps whenever devices have used up their share waits for the
// host each time it wakes: on a host with other guests 35 to 67 % of the time were stolen from cores that were busy for
// a fifth to three fifths of it, 12 to 21 % from cores that were always busy.
class Awake {
 public:
  Awake()
      : thread_([](const std::stop_token& stop) {
          const sched_param none{};
          if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) return;  // else it would slow the devices
          while (!stop.stop_requested()) _mm_pause();
        }) {}

 private:
  std::jthread thread_;
};

class Keeper {
 public:
  Keeper(Isa isa, double flops, double most, const std::vector<std::string>& groups)
      : isa_(isa), flops_(flops), most_(most) {
    for (const std::string& group : groups) devices_.emplace_back(group);
    while (looked_.size() < kLooks) look();
    apply();
  }

  void tick() {
    look();
    stolen_.push_back({wall_seconds(), seconds_stolen(core_)});
    if (stolen_.size() > kStolenTicks + 1) stolen_.erase(stolen_.begin());
    apply();
  }

  std::string report() {
    const std::string text = fmt::format("{} {}", looks_, disturbed_);
    looks_ = disturbed_ = 0;
    return text;
  }

 private:
  void look() {
    looked_.push_back(measure_peak(isa_, team_, kLook).cpu_flops);
    if (looked_.size() > kLooks) looked_.erase(looked_.begin());
  }

  // The share of the last ticks in which the host took the core away.
  double stolen() const {
    if (stolen_.size() < 2) return 0;
    const Stolen &first = stolen_.front(), &last = stolen_.back();
    return std::clamp((last.seconds - first.seconds) / (last.when - first.when), 0.0, 0.9);
  }

  void apply() {
    const double gone = stolen(), wanted = flops_ / median(looked_) / (1 - gone);
    ++looks_;
    disturbed_ += wanted > most_ * (1 + kTooSlow) || gone > kStolen ? 1 : 0;
    const double share = std::min(wanted, most_);
    if (std::abs(share / share_ - 1) < kChange) return;
    share_ = share;
    for (Device& device : devices_) device.share(share);
  }

  Isa isa_;
  int core_ = sched_getcpu();  // this program is bound to it
  ThreadTeam team_{1};
  Awake awake_;
  double flops_, most_, share_ = 1e9;
  std::vector<Device> devices_;
  struct Stolen {
    double when, seconds;
  };
  std::vector<double> looked_;
  std::vector<Stolen> stolen_;
  int64_t looks_ = 0, disturbed_ = 0;
};

void measure(Isa isa, double seconds) {
  ThreadTeam team(1);
  std::vector<double> looks;
  for (const double end = wall_seconds() + seconds; wall_seconds() < end;)
    looks.push_back(measure_peak(isa, team, kLook).cpu_flops);
  fmt::print("{:.6g}\n", median(looks));
}

void keep(Keeper& keeper) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (true) {
    if (poll(&input, 1, kTickMilliseconds) == 0) {
      keeper.tick();
      continue;
    }
    char request[64];
    if (read(STDIN_FILENO, request, sizeof request) <= 0) return;
    fmt::print("{}\n", keeper.report());
    std::fflush(stdout);
  }
}

void run(const std::vector<std::string>& words) {
  if (words.size() == 3 && words[0] == "measure") {
    measure(isa_of(words[1]), number(words[2].c_str(), "seconds"));
  } else if (words.size() >= 5 && words[0] == "keep") {
    Keeper keeper(isa_of(words[1]), number(words[2].c_str(), "FLOP/s"), number(words[3].c_str(), "share"),
                  {words.begin() + 4, words.end()});
    keep(keeper);
  } else {
    fail("speed_keeper: usage: speed_keeper measure DTYPE SECONDS | speed_keeper keep DTYPE FLOPS MOST GROUP...");
  }
}

}  // namespace
}  // namespace zoetrope::bench

int main(int count, char** words) {
  try {
    zoetrope::bench::run({words + 1, words + count});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
