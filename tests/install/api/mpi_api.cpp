// Calls every function of zoetrope/mpi.h, as a program that was not started by mpirun may.
#include <zoetrope/communicator.h>
#include <zoetrope/error.h>
#include <zoetrope/mpi.h>

using namespace zoetrope;

int main() {
  if (comm::launched_by_mpi()) return 2;
  const auto refused = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return true;
    }
    return false;
  };
  const auto body = [](comm::Communicator& world) {
    if (world.all_reduce_sum(1) != 1) throw Error("not alone");
  };
  int failed = 0;
  if (comm::mpi_available()) {
    comm::start_mpi();
    failed = comm::run_mpi(body);
  } else {
    failed = refused([] { comm::start_mpi(); }) && refused([&] { comm::run_mpi(body); }) ? 0 : 1;
  }
  comm::finish_mpi();
  // After the end, and of nothing.
  const bool both = refused([] { comm::mpi_world(); }) && refused([] { comm::wrap_mpi(nullptr); });
  return failed == 0 && both ? 0 : 1;
}
