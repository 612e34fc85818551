#include "comm/mpi/finalise_limit.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/print.h"

namespace zoetrope::comm::mpi {

FinaliseLimit::FinaliseLimit(std::chrono::duration<double> limit, std::string why)
    : limit_(limit), why_(std::move(why)), thread_([this] { wait(); }) {}

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
  for (auto waited = limit_; waited.count() > 0; waited -= kSlice)
    if (changed_.wait_for(lock, kSlice, [this] { return finalised_; })) return;
  // Whoever reads the output may be stopped, too.
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(EXIT_FAILURE);
  }).detach();
  if (!why_.empty()) print_error("zoetrope: {}\n", why_);
  std::fflush(stdout);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace zoetrope::comm::mpi
