// Holds emulated devices to a pace. A share of a core is a device only where the core is always as fast: on a machine
// that is shared with others its pace changes by half within a second. This looks at the pace of the core that it is
// bound to twenty times a second, and gives the control groups of the devices there as much of the core as makes their
// pace what it should be.
//
//     pace_keeper measure DTYPE SECONDS               prints what this core does a second, in FLOP/s
//     pace_keeper keep DTYPE FLOPS MOST GROUP…        until standard input ends; a line there asks for a line of what
//                                                     was since the last: looks, looks at which the host was in the way
//
// FLOPS: of a device. MOST: of the core, that a device may get. GROUP: folder of a control group with its share.
// Pace is that of multiply-adds on registers with the instructions that attention uses for DTYPE, in CPU time; what the
// host takes of the core altogether ("steal") is made up for as well. Meanwhile the core is never idle.
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
constexpr double kLook = 0.5e-3;  // seconds of multiply-adds a tick: a hundredth of the core, two on matrix units
// The pace is the median of so many. In a moment that the host takes away CPU time all but stands still, and a look in
// it tells of any pace: a mean of these once left a device a thousandth of its core.
constexpr size_t kLooks = 5;
// Of the core. What is stolen comes in pieces of milliseconds, in which a device stands still and others wait for it:
// more than this shows, though the device is made up for it.
constexpr double kStolen = 0.1;
constexpr double kTooSlow = 0.05;  // for what devices may get; less is what looks at the same core differ by
constexpr int kStolenTicks = 6;  // that the stolen share is taken over: the kernel counts it in hundredths of a second
// Each change begins a period anew, so that small ones are not worth it.
constexpr double kChange = 0.03;
// The control groups' period, of shares from 0.4 on; smaller ones get the least that the kernel deals out, and wait
// longer. Short beside what a link's queues hold, as a rank that has used its share up neither computes nor sends (with
// 10 ms a fast link stood still meanwhile), long beside a change of context.
constexpr double kPeriod = 2500, kLeastQuota = 1000, kLongestPeriod = 1e6;  // microseconds

double number(const char* text, const char* what) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != 0 || !(value > 0) || !std::isfinite(value))
    fail("pace_keeper: {} '{}' must be a number above 0", what, text);
  return value;
}

Isa isa_of(const std::string& dtype) {
  if (dtype != "bf16" && dtype != "float32") fail("pace_keeper: dtype '{}' must be bf16 or float32", dtype);
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
    // What a device could not use of a period because the host was elsewhere it may use in the next.
    const auto burst = folder_ / (one_file_ ? "cpu.max.burst" : "cpu.cfs_burst_us");
    if (std::filesystem::exists(burst)) {
      share(kLeastQuota / kPeriod);
      write(burst, fmt::format("{:.0f}", kLeastQuota));
    }
  }

  void share(double share) {
    // One of both changes: each that is written begins a period anew.
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
    if (!out) fail("pace_keeper: '{}' cannot be written to {}", text, file.string());
  }

  std::filesystem::path folder_;
  bool one_file_;
  double quota_ = 0, period_ = 0;
};

// That the host has taken of this core so far, by the hundredth.
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

// What is done on a core that has nothing else to do. A virtual machine's core that sleeps whenever devices have used
// their share up waits for the host each time that it wakes: on a host with other guests 35 to 67 % of the time were
// stolen from cores that were wanted for a fifth to three fifths of it, 12 to 21 % from such as were always busy.
class Awake {
 public:
  Awake()
      : thread_([](const std::stop_token& stop) {
          const sched_param none{};
          if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) return;  // it would be in the devices' way
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

  // Share of the last ticks that the host was elsewhere.
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
  int core_ = sched_getcpu();  // to which this is bound
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
    char asked[64];
    if (read(STDIN_FILENO, asked, sizeof asked) <= 0) return;
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
    fail("pace_keeper: usage: pace_keeper measure DTYPE SECONDS | pace_keeper keep DTYPE FLOPS MOST GROUP...");
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
