#include "comm/mpi/finalise_limit.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/print.h"

namespace zoetrope::comm::mpi {

FinaliseLimit::FinaliseLimit(EndLimit limit) : limit_(std::move(limit)), thread_([this] { wait(); }) {}

FinaliseLimit::~FinaliseLimit() {
  {
    const std::lock_guard lock(mutex_);
    finalised_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FinaliseLimit::wait() {
  constexpr std::chrono::duration<double> kSlice{0.1};
  std::unique_lock lock(mutex_);
  for (auto left = limit_.seconds; left.count() > 0; left -= kSlice)
    if (changed_.wait_for(lock, kSlice, [this] { return finalised_; })) return;
  print_and_exit_soon(limit_.why);
  std::_Exit(EXIT_FAILURE);
}

void print_and_exit_soon(const std::string& why) {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(EXIT_FAILURE);
  }).detach();
  if (!why.empty()) print_error("zoetrope: {}\n", why);
  std::fflush(stdout);
}

}  // namespace zoetrope::comm::mpi
