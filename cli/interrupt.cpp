#include "cli/interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/unfinished_files.h"

namespace zoetrope::cli {
namespace {

// Written by the handler, read by every rank's thread.
std::atomic<bool> seen = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// mpirun passes Ctrl-C on as SIGTERM and kills a second later, which no safe point need come before: so what is
// unfinished goes at once, and what remains of the run only has to stop.
void on_signal(int number) {
  const int error = errno;
  const bool again = seen.exchange(true);
  remove_unfinished_files();
  errno = error;
  if (!again) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() { return seen; }

}  // namespace zoetrope::cli
