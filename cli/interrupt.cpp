#include "cli/interrupt.h"

#include <csignal>

namespace zoetrope::cli {
namespace {

volatile std::sig_atomic_t seen = 0;

void on_signal(int signal) {
  seen = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() { return seen != 0; }

}  // namespace zoetrope::cli
