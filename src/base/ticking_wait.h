// A wait for another thread that goes on asking whether it still makes sense.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace zoetrope {

// Returns when done(), with the lock held. done() is asked with the lock, tick() is called without it every `between`;
// what it throws ends the wait, without the lock.
template <typename Done, typename Tick>
void wait_ticking(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                  std::chrono::milliseconds between, Done&& done, Tick&& tick) {
  while (!changed.wait_for(lock, between, done)) {
    lock.unlock();
    tick();
    lock.lock();
  }
}

}  // namespace zoetrope
