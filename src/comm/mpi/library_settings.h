// How Open MPI moves bytes on this machine.
#pragma once

namespace zoetrope::comm::mpi {

// Before MPI_Init. Sets environment variables of Open MPI's that the user has not set.
void choose_library_settings();

}  // namespace zoetrope::comm::mpi
