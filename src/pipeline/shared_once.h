// Something large that the ranks of one process share: made by the first rank that asks, freed when the last one
// releases it, or kept for the next run.
#pragma once

#include <memory>
#include <mutex>

namespace zoetrope::pipeline {

template <typename T>
class SharedOnce {
 public:
  explicit SharedOnce(bool keeps = false) : keeps_(keeps) {}

  // make() → std::shared_ptr<T>; ranks that ask meanwhile wait for it. When make() throws, the next to ask tries again.
  template <typename Make>
  std::shared_ptr<T> get(Make&& make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<T> value = value_.lock();
    if (!value) {
      value = make();
      value_ = value;
    }
    if (keeps_) kept_ = value;
    return value;
  }

  // Whether it outlives the ranks that use it.
  void keep(bool keeps) {
    const std::lock_guard lock(mutex_);
    keeps_ = keeps;
  }
  bool keeps() const { return keeps_; }
  bool known() {
    const std::lock_guard lock(mutex_);
    return !value_.expired();
  }
  void release_kept() {
    const std::lock_guard lock(mutex_);
    kept_.reset();
  }

 private:
  std::mutex mutex_;
  bool keeps_;
  std::weak_ptr<T> value_;
  std::shared_ptr<T> kept_;
};

}  // namespace zoetrope::pipeline
