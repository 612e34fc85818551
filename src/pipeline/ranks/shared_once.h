// Something large that the ranks of one process share: made by the first rank that asks, freed when the last one
// releases it, or kept for the next run.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "base/ticking_wait.h"

namespace zoetrope::pipeline {

template <typename T>
class SharedOnce {
 public:
  explicit SharedOnce(bool keeps = false) : keeps_(keeps) {}

  // make() → std::shared_ptr<T>; ranks that ask meanwhile wait for it. When make() throws, the next to ask tries again.
  // `tick` is called now and then by those that wait; what it throws ends the wait.
  template <typename Make>
  std::shared_ptr<T> get(Make&& make, const std::function<void()>& tick = {}) {
    std::unique_lock lock(mutex_);
    constexpr std::chrono::milliseconds kBetweenTicks{100};
    wait_ticking(
        lock, made_, kBetweenTicks, [&] { return !being_made_; },
        [&] {
          if (tick) tick();
        });
    std::shared_ptr<T> value = value_.lock();
    if (!value) {
      const Making making(*this, lock);
      value = make();
    }
    value_ = value;
    if (keeps_) kept_ = value;
    return value;
  }

  // Whether it outlives the ranks that use it.
  void keep(bool keeps) {
    const std::lock_guard lock(mutex_);
    keeps_ = keeps;
  }
  bool keeps() const { return keeps_; }
  bool known() { return value() != nullptr; }
  // What is in memory; null where nothing is. While it is held, nobody makes another.
  std::shared_ptr<T> value() {
    const std::lock_guard lock(mutex_);
    return value_.lock();
  }
  // Gives up what is kept where unfit(it) says so.
  template <typename Unfit>
  void release_kept_if(Unfit&& unfit) {
    const std::lock_guard lock(mutex_);
    if (kept_ && unfit(*kept_)) kept_.reset();
  }
  void release_kept() {
    const std::lock_guard lock(mutex_);
    kept_.reset();
  }

 private:
  // Makes it without the lock, which is held before and after.
  class Making {
   public:
    Making(SharedOnce& shared, std::unique_lock<std::mutex>& lock) : shared_(shared), lock_(lock) {
      shared_.being_made_ = true;
      lock_.unlock();
    }
    ~Making() {
      lock_.lock();
      shared_.being_made_ = false;
      shared_.made_.notify_all();
    }
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;

   private:
    SharedOnce& shared_;
    std::unique_lock<std::mutex>& lock_;
  };

  std::mutex mutex_;
  std::condition_variable made_;
  bool being_made_ = false;  // by a rank at this moment
  bool keeps_;
  std::weak_ptr<T> value_;
  std::shared_ptr<T> kept_;
};

}  // namespace zoetrope::pipeline
