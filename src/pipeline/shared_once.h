// Something large that the ranks of one process share: made by the first rank that asks, freed when the last one lets
// go.
#pragma once

#include <memory>
#include <mutex>

namespace zoetrope::pipeline {

template <typename T>
class SharedOnce {
 public:
  // make() → std::shared_ptr<T>; ranks that ask meanwhile wait for it. When make() throws, the next to ask tries again.
  template <typename Make>
  std::shared_ptr<T> get(Make&& make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<T> value = held_.lock();
    if (!value) {
      value = make();
      held_ = value;
    }
    return value;
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<T> held_;
};

}  // namespace zoetrope::pipeline
