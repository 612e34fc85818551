#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace zoetrope::cli {
namespace {

// Written by the handler, read by every rank's thread.
std::atomic<bool> seen = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  seen = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() { return seen; }

}  // namespace zoetrope::cli
