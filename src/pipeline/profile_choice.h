// The machine that a run is planned for: the job's shape, and the hardware profile that speaks of it. Not here: what is
// chosen with it (auto_plan.h), what the figures mean (planner/hardware.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "planner/hardware.h"

namespace zoetrope::pipeline {

struct Job {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;  // of the host with the most
  int threads = 1;         // of a rank
  bool processes = false;  // ranks are processes of an MPI job, not threads of this one

  int ranks_here() const { return processes ? 1 : ranks; }
};

// `threads` of a process, as the options say. Collective over `world`.
Job job_of(comm::Communicator& world, std::optional<int64_t> threads);
// The same of ranks that are not there yet: threads of this process, or, where a launcher started it, processes of one
// host.
Job job_of(int ranks, std::optional<int64_t> threads);

struct ProfileChoice {
  planner::HardwareProfile hardware;  // the job's ranks are its first devices
  std::string origin;                 // "profile 'v7x-8'"
  std::vector<std::string> notes;     // what makes its figures doubtful here
};

// `hardware` as the key of this name: a name of configs/hardware/ or a file; empty: what was calibrated on this
// machine, or where nobody did the profile of any CPU. Throws Error for a profile that is not there, is not one, or has
// fewer devices than the job has ranks.
ProfileChoice choose_profile(const std::string& hardware, const Job& job);

}  // namespace zoetrope::pipeline
