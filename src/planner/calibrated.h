// Profiles of `zoetrope calibrate`: where they are stored, whether one matches this machine and job, and how to rescale
// one to another number of ranks per host. bench/calibrate.h measures them, hardware.h reads the file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/hardware.h"

namespace zoetrope::planner {

// In $XDG_CACHE_HOME/zoetrope or else $HOME/.cache/zoetrope, like the tile cache; empty if neither variable names a
// folder. hardware.yml: ranks are threads of one process.
std::filesystem::path calibrated_profile_path();
// hardware-<hosts>x<ranks per host>.yml: ranks are MPI processes, on one host or several.
std::filesystem::path calibrated_profile_path(int hosts, int ranks_per_host);

// The name of the innermost link level, which joins the ranks of a host.
inline constexpr const char* kHostLevel = "host";
// And of the one that joins hosts.
inline constexpr const char* kClusterLevel = "cluster";

struct JobShape {
  std::string cpu;  // as kernels::cpu_model() names it
  int hosts = 1;    // of the job
  int ranks = 1;    // of the job, on all hosts
  int threads = 1;  // of a rank
};

// Why a calibrated profile may not match this job, one sentence each: another CPU, another job shape. Empty if it was
// measured on this CPU by a job of this shape, and for profiles that were not calibrated.
std::vector<std::string> profile_mismatches(const HardwareProfile& profile, const JobShape& job);

// The same hosts with `ranks_per_host` ranks of `threads` threads each. The ranks of a host divide its peak and memory:
// more ranks than cores share the cores, fewer leave some idle. `cores` of a host; 0: those of this process. Figures
// between hosts and the calibration record stay. In profiles that were not calibrated a device is a core, with its part
// of the memory.
HardwareProfile for_ranks(const HardwareProfile& profile, int ranks_per_host, int threads, int cores = 0);

}  // namespace zoetrope::planner
