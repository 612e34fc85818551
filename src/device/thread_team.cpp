#include "device/thread_team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace zoetrope {
namespace {

constexpr size_t kCacheLine = 64;

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// A number that threads wait for: they spin for kLongestSpin, then sleep.
class alignas(kCacheLine) Awaited {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  // Wakes nobody.
  void store(uint32_t value) { value_.store(value, std::memory_order_relaxed); }

  // Returns the previous value; `wakes`: whether to wake the waiting threads. Sequentially consistent like the
  // sleeper's two steps: either the sleeper sees this change, or this thread sees the sleeper's count.
  template <typename Wakes>
  void add(uint32_t amount, Wakes&& wakes) {
    const uint32_t value = value_.fetch_add(amount) + amount;
    if (wakes(value) && sleepers_.load() > 0) futex(value_, FUTEX_WAKE, INT_MAX);
  }

  // Waits until done(value); returns the value.
  template <typename Done>
  uint32_t wait(Done&& done) {
    constexpr int kChecks = 32;  // between two readings of the clock, which cost as much
    const auto deadline = std::chrono::steady_clock::now() + ThreadTeam::kLongestSpin;
    do {
      for (int look = 0; look < kChecks; ++look) {
        const uint32_t value = load();
        if (done(value)) return value;
        __builtin_ia32_pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    sleepers_.fetch_add(1);
    uint32_t value = value_.load();
    for (; !done(value); value = value_.load()) futex(value_, FUTEX_WAIT, value);
    sleepers_.fetch_sub(1);
    return value;
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace

// Every run is a round. Threads claim its bodies one by one, each its own first, then those that nobody has started, so
// that a thread without a core delays nobody. The caller waits until all claimed bodies have ended.
struct ThreadTeam::Pool {
  struct alignas(kCacheLine) Seat {
    std::atomic<uint32_t> claimed{0};  // the last round in which its body was taken
  };

  explicit Pool(int size) : seats(static_cast<size_t>(size)) {}

  Erased call = nullptr;
  void* body = nullptr;
  std::atomic<bool> stop{false};
  Awaited round;
  Awaited unfinished;
  alignas(kCacheLine) std::atomic<int> unclaimed{0};
  std::vector<Seat> seats;
  std::vector<std::thread> threads;

  bool claim(size_t seat, uint32_t now) {
    // A thread that is a round late finds its body claimed: all bodies of a round are, before the next begins.
    uint32_t before = now - 1;
    std::atomic<uint32_t>& claimed = seats[seat].claimed;
    if (claimed.load(std::memory_order_relaxed) != before) return false;
    if (!claimed.compare_exchange_strong(before, now, std::memory_order_acq_rel)) return false;
    unclaimed.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  // Runs the bodies that thread `own` can claim; returns how many.
  uint32_t run_claimed(size_t own, uint32_t now) {
    uint32_t done = 0;
    for (size_t i = 0; i < seats.size(); ++i) {
      if (i > 0 && unclaimed.load(std::memory_order_relaxed) <= 0) break;
      const size_t seat = (own + i) % seats.size();
      if (!claim(seat, now)) continue;
      call(body, static_cast<int>(seat));
      ++done;
    }
    return done;
  }

  void finish(uint32_t bodies) {
    if (bodies > 0) unfinished.add(-bodies, [](uint32_t left) { return left == 0; });
  }

  void begin(uint32_t bodies) {
    unclaimed.store(static_cast<int>(bodies), std::memory_order_relaxed);
    unfinished.store(bodies);
    round.add(1, [](uint32_t) { return true; });
  }

  void work(size_t own) {
    for (uint32_t seen = 0;;) {
      seen = round.wait([&](uint32_t now) { return now != seen; });
      if (stop) return;
      finish(run_claimed(own, seen));
    }
  }

  void join() {
    stop = true;
    round.add(1, [](uint32_t) { return true; });
    for (std::thread& thread : threads) thread.join();
  }
};

ThreadTeam::ThreadTeam(int threads) : threads_(threads) {
  ZT_CHECK(threads >= 1);
  if (threads == 1) return;
  pool_ = std::make_unique<Pool>(threads);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      pool_->threads.emplace_back([pool = pool_.get(), thread] { pool->work(static_cast<size_t>(thread)); });
    }
  } catch (const std::system_error& error) {
    const size_t begun = pool_->threads.size();
    pool_->join();
    fail(
        "the system gives {} of the {} threads that were asked for ({}); ask for fewer, or raise the limit "
        "(ulimit -u, pids.max of the control group)",
        begun + 1, threads, error.code().message());
  }
}

ThreadTeam::~ThreadTeam() {
  if (pool_) pool_->join();
}

void ThreadTeam::run_erased(Erased call, void* body) {
  if (!pool_) {
    call(body, 0);
    return;
  }
  pool_->call = call;
  pool_->body = body;
  pool_->begin(static_cast<uint32_t>(threads_));
  const uint32_t now = pool_->round.load();
  pool_->finish(pool_->run_claimed(0, now));
  pool_->unfinished.wait([](uint32_t left) { return left == 0; });
}

}  // namespace zoetrope
