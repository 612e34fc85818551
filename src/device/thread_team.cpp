#include "device/thread_team.h"

#include <omp.h>

#include "base/error.h"

#ifdef ZOETROPE_STD_THREAD_TEAM
#include <condition_variable>
#include <mutex>
#include <vector>
#endif

namespace zoetrope {

#ifdef ZOETROPE_STD_THREAD_TEAM

struct ThreadTeam::Pool {
  std::mutex mutex;
  std::condition_variable start, finished;
  Erased call = nullptr;
  void* body = nullptr;
  uint64_t generation = 0;
  int running = 0;
  bool stop = false;
  std::vector<std::thread> threads;

  void work(int thread) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      lock.unlock();
      call(body, thread);
      lock.lock();
      if (--running == 0) finished.notify_one();
    }
  }
};

ThreadTeam::ThreadTeam(int threads) : threads_(threads), pool_(std::make_unique<Pool>()) {
  ZT_CHECK(threads >= 1);
  omp_set_num_threads(1);  // third-party libraries stay on the rank's own thread
  for (int thread = 1; thread < threads; ++thread) {
    pool_->threads.emplace_back([pool = pool_.get(), thread] { pool->work(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->stop = true;
  }
  pool_->start.notify_all();
  for (std::thread& thread : pool_->threads) thread.join();
}

void ThreadTeam::run_erased(Erased call, void* body) {
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->call = call;
    pool_->body = body;
    pool_->running = threads_ - 1;
    ++pool_->generation;
  }
  pool_->start.notify_all();
  call(body, 0);
  std::unique_lock lock(pool_->mutex);
  pool_->finished.wait(lock, [&] { return pool_->running == 0; });
}

#else

struct ThreadTeam::Pool {};

// The number of OpenMP threads is a property of the calling (rank) thread: set here, it also holds for oneDNN's
// regions.
ThreadTeam::ThreadTeam(int threads) : threads_(threads) {
  ZT_CHECK(threads >= 1);
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
}

ThreadTeam::~ThreadTeam() = default;

void ThreadTeam::run_erased(Erased call, void* body) {
  if (threads_ == 1) {
    call(body, 0);
    return;
  }
  omp_set_num_threads(threads_);
  // OpenMP may give fewer threads than asked for (OMP_THREAD_LIMIT, a caller inside a parallel region): those that come
  // do the work of the missing too. Bodies never wait for one another, so one after the other is as good.
#pragma omp parallel num_threads(threads_)
  for (int thread = omp_get_thread_num(); thread < threads_; thread += omp_get_num_threads()) call(body, thread);
}

#endif

}  // namespace zoetrope
