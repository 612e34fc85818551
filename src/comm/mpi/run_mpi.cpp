// A body on this process' rank, and the end of the run that all ranks share. See ending.h for how they agree.
#include <cstdlib>
#include <exception>
#include <new>

#include "zoetrope/mpi.h"

#include "base/error.h"
#include "base/print.h"
#include "comm/finish_failed.h"
#include "comm/mpi/runtime.h"
#include "comm/transport.h"

namespace zoetrope::comm {

int run_mpi(const std::function<void(Communicator&)>& body, const RankOptions& options) {
  const std::unique_ptr<Communicator> world = mpi_world(options);
  mpi::Runtime& runtime = mpi::Runtime::instance();
  std::string failure;
  runtime.begin_run(options.timeout_seconds);
  try {
    check_body(body);
    body(*world);
  } catch (const std::bad_alloc&) {
    failure = "out of memory";
  } catch (const std::exception& error) {
    failure = printable(error.what());  // in one line: more are a table of waits
    if (failure.empty()) failure = "an exception without a message";
  } catch (...) {
    failure = "an exception that is not a std::exception";
  }
  const bool went_well = runtime.end_run(failure, options.timeout_seconds);
  runtime.finish();
  return went_well ? EXIT_SUCCESS : EXIT_FAILURE;
}

void finish_mpi() {
  if (mpi::Runtime::started()) mpi::Runtime::instance().finish();
}

void finish_failed_mpi() {
  if (!mpi::Runtime::started()) return;
  mpi::Runtime::instance().note_failure();
  finish_mpi();
}

}  // namespace zoetrope::comm
