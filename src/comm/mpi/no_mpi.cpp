// In place of the MPI transport in a build without MPI: every use says what is missing.
#include "zoetrope/mpi.h"

#include "base/error.h"
#include "comm/finish_failed.h"

namespace zoetrope::comm {

namespace {

[[noreturn]] void refuse() {
  fail(
      "this program was built without MPI; install Open MPI (Debian: libopenmpi-dev) and build again, or run the ranks "
      "as threads with ranks=N");
}

}  // namespace

bool mpi_available() { return false; }

std::unique_ptr<Communicator> mpi_world(const RankOptions&) { refuse(); }

std::unique_ptr<Communicator> wrap_mpi(const void*, const RankOptions&) { refuse(); }

void start_mpi() { refuse(); }

int run_mpi(const std::function<void(Communicator&)>&, const RankOptions&) { refuse(); }

void finish_mpi() {}

void finish_failed_mpi() {}

}  // namespace zoetrope::comm
