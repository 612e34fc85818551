#include "cli/interrupt.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <iterator>

#include "zoetrope/mpi.h"

#include "base/file_map.h"
#include "base/unfinished_files.h"

namespace zoetrope::cli {
namespace {

// Written by the handler, read by every rank's thread.
std::atomic<int> first = 0;
std::atomic<int64_t> first_at = 0;  // nanoseconds
std::atomic<bool> safe_points = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// `timeout` and some supervisors send a signal to the process and to its group, so that it comes twice. The kernel
// repeats SIGXCPU with each second of computing.
bool is_copy(int number) {
  constexpr int64_t kSoon = 500'000'000;
  return number == first && (number == SIGXCPU || now() - first_at < kSoon);
}

// By the signal's default action, once its handler has returned.
void end_by(int number) {
  remove_unfinished_files();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

// mpirun forwards Ctrl-C as SIGTERM and kills a second later, possibly before the next safe point: so unfinished files
// are removed immediately, and the rest of the run only has to stop.
void on_signal(int number) {
  const int error = errno;
  int none = 0;
  if (first == 0) first_at = now();
  const bool again = !first.compare_exchange_strong(none, number);
  const bool counts = again && !is_copy(number);
  remove_unfinished_files();
  errno = error;
  if (counts || !safe_points || number == SIGPIPE) end_by(number);
}

std::atomic_flag page_lost = ATOMIC_FLAG_INIT;

// A page of a mapped file is not there. The thread cannot go on without it, so the process ends here, as by an error.
// Several threads may find it; the first one says so.
void on_lost_page(int number, siginfo_t* info, void*) {
  const char* const name = name_of_file_mapped_at(info->si_addr);
  if (name != nullptr && page_lost.test_and_set())
    for (;;) ::pause();
  if (name == nullptr) return end_by(number);
  remove_unfinished_files();
  const auto part = [](const char* text) { return iovec{const_cast<char*>(text), std::strlen(text)}; };
  const iovec sentence[] = {
      part("zoetrope: "), part(name),
      part(": became shorter while it was in use, or its disk fails; start again when the file is complete\n")};
  static_cast<void>(!::writev(STDERR_FILENO, sentence, std::size(sentence)));
  ::_exit(1);
}

}  // namespace

void catch_signals() {
  const auto action = [](int number) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    return now.sa_handler;
  };
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU})
    if (action(number) != SIG_IGN) std::signal(number, on_signal);
  // Those that a sanitizer reports are left to it.
  for (const int number : {SIGABRT, SIGFPE, SIGILL, SIGSEGV})
    if (action(number) == SIG_DFL) std::signal(number, end_by);
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
