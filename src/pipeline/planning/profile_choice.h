// The machine that a run is planned for: the job's shape, and the hardware profile that speaks of it. Not here: what is
// chosen with it (rank_plan.h), what the figures mean (planner/hardware.h).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "machine/first_use.h"
#include "pipeline/ranks/host_links.h"
#include "planner/hardware.h"

namespace zoetrope::pipeline {

struct Job {
  int ranks = 1;
  int hosts = 1;
  int ranks_per_host = 1;               // of the host with the most
  int threads = 1;                      // of a rank
  int cores = 0;                        // that the ranks of a host may use together; 0: what this process may
  bool processes = false;               // ranks are processes of an MPI job, not threads of this one
  std::optional<HostLinks> links = {};  // between its hosts; unset: not measured

  int ranks_here() const { return processes ? 1 : ranks; }
};

// `threads` of a process and `hardware`, as the options say. Several hosts measure what lies between them, where no
// profile is named and nobody calibrated several; not with ZOETROPE_MEASURE=no. `known`, if any: what jobs of these
// ranks measured before, or did now. Collective over `world`.
Job job_of(comm::Communicator& world, std::optional<int64_t> threads, const std::string& hardware,
           std::optional<HostLinks>* known = nullptr);
// The same of ranks that are not there yet: threads of this process, or, where a launcher started it, processes of one
// host.
Job job_of(int ranks, std::optional<int64_t> threads);

// `hardware` as the key of this name: a name of configs/hardware/ or a file. Throws Error for a profile that is not
// there or is not one.
planner::HardwareProfile find_profile(const std::string& hardware);
// Whether its figures are of hosts, to be divided among the ranks of a job, and not of devices that are ranks as they
// are.
bool is_of_hosts(const planner::HardwareProfile& profile);
// `ranks` on the hosts that such a profile is of. One calibrated over several says how many ranks and cores a host has
// and, unless `threads` does, a rank's threads; ranks that need more than one host are processes, others have all cores
// of theirs. Any other is one host, with `threads` as above.
Job job_on(const planner::HardwareProfile& profile, int ranks, std::optional<int64_t> threads);

struct ProfileChoice {
  planner::HardwareProfile hardware;  // the job's ranks are its first devices
  std::string origin;                 // "profile 'v7x-8'"; empty: nothing is known of this machine, not even a guess
  std::vector<std::string> notes;     // what makes its figures doubtful here, or why there are none
  bool first_use = false;             // its figures were measured on first use, and not calibrated

  bool known() const { return !origin.empty(); }
};

// What asks for a profile: what the prediction is of, for a machine is measured only where that is worth it, and who is
// informed meanwhile that it goes on.
struct ProfileUse {
  double flop = std::numeric_limits<double>::infinity();  // of all that is predicted; unset: the answer is a prediction
  machine::Heartbeat heartbeat = {};
  std::optional<planner::Bytes> available = {};  // to a process; unset: the machine is asked
};

// `hardware` as above; empty: what was calibrated on this machine by a job of this shape or the nearest to it; where
// nobody did, what is measured on first use (machine/first_use.h), unless less is predicted than takes a few times as
// long as to measure; then, and where it cannot be measured, the profile of any CPU; and where the program is installed
// without its configurations, none. Without a name its memory is what this machine could give now. Throws Error
// for a profile that is not there, is not one, or has fewer devices than the job has ranks.
ProfileChoice choose_profile(const std::string& hardware, const Job& job, const ProfileUse& what = {});

}  // namespace zoetrope::pipeline
