#include "cli/interrupt.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "zoetrope/mpi.h"

#include "base/file_map.h"
#include "base/unfinished_files.h"

namespace zoetrope::cli {
namespace {

// Written by the handler, read by every rank's thread.
std::atomic<int> first = 0;
std::atomic<bool> safe_points = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// mpirun forwards Ctrl-C as SIGTERM and kills a second later, possibly before the next safe point: so unfinished files
// are removed immediately, and the rest of the run only has to stop.
void on_signal(int number) {
  const int error = errno;
  int none = 0;
  const bool again = !first.compare_exchange_strong(none, number);
  remove_unfinished_files();
  errno = error;
  if (!again && safe_points && number != SIGPIPE) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void write_error(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

// A page of a mapped file that is not there. Nothing of the thread can go on, so the process ends here, as by an error.
void on_lost_page(int number, siginfo_t* info, void*) {
  const char* const name = name_of_file_mapped_at(info->si_addr);
  remove_unfinished_files();
  if (name == nullptr) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  write_error("zoetrope: ");
  write_error(name);
  write_error(": became shorter while it was in use, or its disk fails; start again when the file is complete\n");
  ::_exit(1);
}

}  // namespace

void catch_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    struct sigaction before {};
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    std::signal(number, on_signal);
  }
  std::signal(SIGXFSZ, SIG_IGN);
  struct sigaction lost_page {};
  lost_page.sa_sigaction = on_lost_page;
  lost_page.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &lost_page, nullptr);
  // Without this, ranks would notice the end of mpirun only at their next message.
  if (comm::launched_by_mpi()) prctl(PR_SET_PDEATHSIG, SIGTERM);
}

void stop_at_safe_points() { safe_points = true; }
bool interrupted() { return first != 0; }
int interrupting_signal() { return first; }

}  // namespace zoetrope::cli
