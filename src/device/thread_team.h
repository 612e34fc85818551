// A team of threads owned by a rank: the only threads that compute. A waiting thread spins for a bounded time and then
// sleeps, so that other programs can use the core.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/available_cores.h"  // how many a team may have
#include "base/index_range.h"

namespace zoetrope {

class ThreadTeam {
 public:
  // How long a waiting thread spins before it sleeps: about the cost of going to sleep and waking up, so that a wait
  // costs at most twice the better of the two.
  static constexpr std::chrono::microseconds kLongestSpin{50};

  // `threads` ≥ 1, the calling thread included. Throws Error if the system does not provide them.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return threads_; }

  // body(thread) once for each thread in [0, size()); returns when all have finished. Bodies must not throw and must
  // not wait for one another: if a thread does not get a core in time, another thread runs its body too. Call it from
  // the thread that owns the rank, never from inside a body.
  template <typename Body>
  void run(Body&& body) {
    run_erased([](void* b, int thread) { (*static_cast<std::remove_reference_t<Body>*>(b))(thread); }, &body);
  }

  // body(IndexRange, thread) over [0, count) in one contiguous part per thread; runs inline when a part would have
  // fewer than `grain` items.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    const int64_t pieces = std::min<int64_t>(threads_, std::max<int64_t>(1, count / std::max<int64_t>(1, grain)));
    if (count <= 0) return;
    if (pieces == 1) {
      body(IndexRange{0, count}, 0);
      return;
    }
    run([&](int thread) {
      if (thread < pieces) body(split_range(count, pieces, thread), thread);
    });
  }

 private:
  using Erased = void (*)(void* body, int thread);
  void run_erased(Erased call, void* body);

  int threads_;
  struct Pool;
  std::unique_ptr<Pool> pool_;  // null with one thread
};

}  // namespace zoetrope
