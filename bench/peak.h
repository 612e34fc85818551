// Times something together with the machine's peak. The peak (machine/peak.h) is the denominator of every fraction that
// the benchmarks print, so it is measured in the same run, on the same threads, right before and after each repeat.
#pragma once

#include <functional>
#include <vector>

#include "bench/report.h"
#include "machine/peak.h"

namespace zoetrope::bench {

using machine::all_isas;
using machine::CopyKind;
using machine::Isa;
using machine::isa_available;
using machine::isa_name;
using machine::isa_of_kernel;
using machine::measure_copy_bandwidth;
using machine::measure_peak;
using machine::multiplies;
using machine::Peak;
using machine::thread_cpu_seconds;
using machine::wall_seconds;

// The instruction set with the fastest multiply-adds for data of `dtype` on this machine. For bf16 that may be
// float32's, where bf16 products are slower than converting.
Isa fastest_isa(DType dtype, ThreadTeam& team);

// A peak window is as long as the repeat, but not longer than this: enough to know the state of the machine.
inline constexpr double kLongestPeakWindow = 10;

// One repeat of something that was timed between two windows of the peak.
struct PairedRepeat {
  double seconds = 0;       // of one run
  double cpu_seconds = 0;   // of the calling thread
  Peak peak;                // mean of the windows before and after
  double fraction = 0;      // flop / seconds / peak.flops
  double cpu_fraction = 0;  // flop / cpu_seconds / peak.cpu_flops; meaningful for one thread
};

struct PairedOptions {
  int repeats = 0;       // 0: five, or three where one takes more than a second
  double seconds = 0;    // continue until the runs have taken this long
  double window = 0.02;  // minimum duration of a repeat and of a peak window: short runs are repeated inside
  double window_limit = kLongestPeakWindow;
};

// Times run() (`flop` operations on the team) alternating with the peak: window, repeat, window, repeat, …, window,
// each window as long as the repeat (at most window_limit). Warm-up runs are not counted. After the first run, check()
// may look at its result, and may throw.
std::vector<PairedRepeat> time_beside_peak(Isa isa, ThreadTeam& team, double flop, const PairedOptions& options,
                                           const std::function<void()>& run, const std::function<void()>& check = {});

// In the row that was begun, the columns of what was timed so: seconds, rates, parts of the peak, repeats; with one
// thread also the part by CPU time.
void set_times(Table& table, const std::vector<PairedRepeat>& repeats, double flop, int threads);

}  // namespace zoetrope::bench
