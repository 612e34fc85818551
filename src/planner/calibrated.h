// What `zoetrope calibrate` left behind: where its profiles stand, whether one still speaks of this machine and job,
// and the same host shared by another number of ranks. Measures nothing (that is bench/calibrate.h), and does not read
// the file (that is hardware.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/hardware.h"

namespace zoetrope::planner {

// Beside the tile cache, in $XDG_CACHE_HOME/zoetrope or else $HOME/.cache/zoetrope; empty where neither variable names
// a folder. hardware.yml is of ranks that are threads of one process.
std::filesystem::path calibrated_profile_path();
// hardware-<hosts>x<ranks per host>.yml: of ranks that are MPI processes, on one host or several.
std::filesystem::path calibrated_profile_path(int hosts, int ranks_per_host);

// What the innermost link level is called, which joins the ranks of a host.
inline constexpr const char* kHostLevel = "host";

struct Here {
  std::string cpu;  // as kernels::cpu_model() names it
  int hosts = 1;    // of this job
  int ranks = 1;    // of this job, on all hosts
  int threads = 1;  // of a rank
};

// Why a calibrated profile may be wrong here, a sentence each: another CPU, another job shape. Empty where it was
// measured on this CPU by a job of this shape, and for profiles that nobody calibrated.
std::vector<std::string> staleness(const HardwareProfile& profile, const Here& here);

// The same hosts with `ranks_per_host` ranks of `threads` threads each. A host's peak and memory are its ranks'
// together: more of them than it has cores share the cores, fewer leave some idle. `cores` of a host; 0: what this
// process may use. The figures between hosts stay, and so does what the profile says about who measured. Profiles that
// nobody calibrated are taken as one rank of all cores a device.
HardwareProfile for_ranks(const HardwareProfile& profile, int ranks_per_host, int threads, int cores = 0);

}  // namespace zoetrope::planner
