#include "bench/busy_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include "base/error.h"

namespace zoetrope::bench {
namespace {

// Only what is safe in the child of a process with threads.
[[noreturn]] void compute(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (volatile uint64_t turns = 0;;) turns = turns + 1;
}

}  // namespace

BusyProcesses::BusyProcesses(int count) {
  const pid_t parent = getpid();
  for (int i = 0; i < count; ++i) {
    const pid_t process = fork();
    if (process == 0) compute(parent);
    if (process < 0) {
      const int error = errno;
      end();
      fail("the system starts {} of {} busy processes: {}", i, count, std::generic_category().message(error));
    }
    processes_.push_back(process);
  }
}

BusyProcesses::~BusyProcesses() { end(); }

void BusyProcesses::end() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) {
    while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace zoetrope::bench
