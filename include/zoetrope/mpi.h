// Ranks that are MPI processes. A program that uses only the attention library links zoetrope::mpi for these; the whole
// library has them too.
#pragma once

#include <functional>
#include <memory>

#include "zoetrope/api.h"
#include "zoetrope/communicator.h"

namespace zoetrope::comm {

// True where this process was started by mpirun/srun with a world of its own (environment only; starts nothing).
ZOETROPE_API bool launched_by_mpi();
ZOETROPE_API bool mpi_available();  // built with MPI

// Initialises MPI on first use; finalised by finish_mpi(). Collective. Throws Error without MPI and after finish_mpi().
ZOETROPE_API std::unique_ptr<Communicator> mpi_world(const RankOptions& options = {});
// The ranks of an MPI communicator of the program's own, numbered as there. `mpi_comm` points to its MPI_Comm handle,
// which may be freed afterwards: messages travel on another. The program has initialised MPI with MPI_THREAD_MULTIPLE
// and calls finish_mpi() before MPI_Finalize(). Collective over that communicator; where it is the first use of MPI
// here, over MPI_COMM_WORLD: ranks that have nothing to wrap call start_mpi(). Throws Error for what is not an
// intracommunicator of processes of MPI_COMM_WORLD, without MPI and after finish_mpi().
ZOETROPE_API std::unique_ptr<Communicator> wrap_mpi(const void* mpi_comm, const RankOptions& options = {});
// The first use of MPI and nothing else: this rank's part in a wrap_mpi() of others. Does nothing later. Throws Error
// as mpi_world() does.
ZOETROPE_API void start_mpi();
ZOETROPE_API void
finish_mpi();  // collective; after the last use of MPI in this process; does nothing where MPI was not used

// Runs body on this process' rank of the MPI world. An Error on any rank ends all ranks with that error printed once on
// standard error and a non-zero exit code, which is returned (0 when all went well). Ends MPI as finish_mpi() does: a
// process calls it once.
ZOETROPE_API int run_mpi(const std::function<void(Communicator&)>& body, const RankOptions& options = {});

}  // namespace zoetrope::comm
