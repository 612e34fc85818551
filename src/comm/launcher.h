// What the environment says about the launcher (mpirun, srun) that started this process, and so how many threads are
// this process' own. Starts no MPI.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "zoetrope/mpi.h"

#include "base/available_cores.h"

namespace zoetrope::comm {

struct Launch {
  bool found = false;
  int ranks = 1;
  int rank = 0;
};

// `variable` looks a name up, null where it is not set.
Launch read_launch(const std::function<const char*(const char*)>& variable);

int launched_ranks();           // ranks of the job; 1 where no launcher started this process
int launched_processes_here();  // of these, those of this host

// Threads of this process: what the user says, else the cores it may use; MPI processes of one node that are not bound
// to cores of their own share them.
int process_threads(std::optional<int64_t> wanted);
// Threads of each of `processes` processes of a node, which share its quota, and its cores unless they are bound to
// parts of them, each to as many. `cores_of_node`: that the launcher may use.
int threads_beside(const AvailableCores& cores, int processes, int cores_of_node);

}  // namespace zoetrope::comm
