// Times something beside the machine's peak. The peak (machine/peak.h) is the denominator of every fraction that the
// benchmarks print, so it is measured in the same run, on the same threads, beside what is compared with it.
#pragma once

#include <functional>
#include <vector>

#include "machine/peak.h"

namespace zoetrope::bench {

using machine::all_isas;
using machine::CopyKind;
using machine::flop_per_instruction;
using machine::Isa;
using machine::isa_available;
using machine::isa_name;
using machine::isa_of_kernel;
using machine::measure_copy_bandwidth;
using machine::measure_peak;
using machine::Peak;
using machine::thread_cpu_seconds;
using machine::wall_seconds;

// A peak window beside a repeat is as long as the repeat, but not longer than this: the machine's state is known by
// then.
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
  double seconds = 0;    // go on until so much time went into the runs themselves
  double window = 0.02;  // the least a repeat and a peak window last: short runs are repeated inside one
  double window_limit = kLongestPeakWindow;
};

// Times run() (which does `flop` operations on the team) by turns with the peak: window, repeat, window, repeat, …,
// window, each window as long as the repeat (kLongestPeakWindow at most). Runs before all that are not counted; after
// the first, check(), where there is one, looks at its result before anything is timed and may throw.
std::vector<PairedRepeat> time_beside_peak(Isa isa, ThreadTeam& team, double flop, const PairedOptions& options,
                                           const std::function<void()>& run, const std::function<void()>& check = {});

}  // namespace zoetrope::bench
