// The end of MPI in a process that has failed and whose others may not know of it.
#pragma once

namespace zoetrope::comm {

// As finish_mpi(); but where the others do not come within a few seconds, as where they wait for this process, ends the
// job and this process with it, with exit code 1.
void finish_failed_mpi();

}  // namespace zoetrope::comm
