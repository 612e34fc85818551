// What the environment says about the launcher (mpirun, srun) that started this process. Starts no MPI.
#pragma once

#include <functional>

namespace zoetrope::comm {

struct Launch {
  bool found = false;
  int ranks = 1;
  int rank = 0;
};

// `variable` looks a name up, null where it is not set.
Launch read_launch(const std::function<const char*(const char*)>& variable);

int launched_ranks();  // ranks of the job; 1 where no launcher started this process
int launched_rank();   // 0 where no launcher started this process

}  // namespace zoetrope::comm
