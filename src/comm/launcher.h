// What the environment says about the launcher (mpirun, srun) that started this process. Starts no MPI.
#pragma once

namespace zoetrope::comm {

int launched_ranks();  // ranks of the job; 1 where no launcher started this process
int launched_rank();   // 0 where no launcher started this process

}  // namespace zoetrope::comm
