// Races on purpose, one a kind of thread that we have, to show that the thread sanitizer sees it:
//
//   planted_race team      two threads of a team write one variable
//   planted_race kernel    a kernel whose output overlaps another thread's input
//   planted_race ranks     two ranks write one variable without a message between them
//
// The sanitizer ends the program with its report; without a report it ends with 0. Built without the sanitizer, the
// program says so and exits with 77 (skipped).
#include <cstdio>
#include <string_view>

#ifdef __SANITIZE_THREAD__
#include <atomic>
#include <thread>

#include "zoetrope/communicator.h"

#include "device/stream.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope {
namespace {

// Both threads are here at once, yet nothing orders what they do next: relaxed atomics synchronise nothing. On a line
// of its own: the sanitizer remembers four accesses to 8 bytes, and these would push out the ones to look for.
class alignas(64) Meeting {
 public:
  void wait() {
    arrived_.fetch_add(1, std::memory_order_relaxed);
    while (arrived_.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
  }

 private:
  std::atomic<int> arrived_{0};
};

int in_team() {
  ThreadTeam team(2);
  Meeting meeting;
  int shared = 0;
  team.run([&](int thread) {
    meeting.wait();  // what bodies must not do in general; under the sanitizer each has a thread of its own
    shared = thread;
  });
  return shared;
}

// out starts one row after x, so that each thread's last row out is the first row in of the next thread. Threads of a
// kernel cannot be told to meet; many calls make sure that two of them run at once in one.
int in_kernel() {
  constexpr int64_t kRows = 256, kWidth = 1024;
  constexpr int kCalls = 200;
  Stream stream(4);
  Tensor memory(DType::kF32, {kRows + 1, kWidth});
  float* const first = memory.view().data<float>();
  const TensorView x(first, DType::kF32, {kRows, kWidth}), out(first + kWidth, DType::kF32, {kRows, kWidth});
  for (int call = 0; call < kCalls; ++call) kernels::activate(stream, kernels::Activation::kSilu, x, out);
  return 0;
}

int between_ranks() {
  Meeting meeting;
  int shared = 0;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    meeting.wait();
    shared = world.rank();
  });
  return shared;
}

}  // namespace
}  // namespace zoetrope
#endif

int main(int argc, char** argv) {
  const std::string_view place = argc == 2 ? argv[1] : "";
#ifdef __SANITIZE_THREAD__
  int value = 2;
  if (place == "team") value = zoetrope::in_team();
  if (place == "kernel") value = zoetrope::in_kernel();
  if (place == "ranks") value = zoetrope::between_ranks();
  std::printf("the race in '%s' (%d) was not reported\n", argv[argc - 1], value);
  return 0;
#else
  std::printf("skipped: '%.*s' needs a build with the thread sanitizer\n", static_cast<int>(place.size()),
              place.data());
  return 77;
#endif
}
