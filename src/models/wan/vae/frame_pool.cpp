#include "models/wan/vae/frame_pool.h"

#include <algorithm>

namespace zoetrope::wan {

Frame::Frame(Frame&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      place_(other.place_),
      border_(other.border_),
      memory_(std::move(other.memory_)) {}

Frame& Frame::operator=(Frame&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    place_ = other.place_;
    border_ = other.border_;
    memory_ = std::move(other.memory_);
  }
  return *this;
}

TensorView Frame::view() const {
  return memory_.view().slice(0, border_, border_ + place_.count()).slice(1, border_, border_ + place_.width);
}

TensorView Frame::row(int64_t index) const {
  return memory_.view().select(0, border_ + index).slice(0, border_, border_ + place_.width);
}

void Frame::release() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->give(place_, border_, std::exchange(memory_, Tensor{}));
}

Frame FramePool::take(const FrameRows& place, int64_t channels, Border border) {
  const int64_t both = border == Border::kOne ? 2 : 0;
  const Shape shape{place.count() + both, place.width + both, channels};
  // The one returned last is the likeliest to be in a cache. The place counts beside the shape: where a border is the
  // picture's it must be zeros.
  const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Free& free) {
    return free.place == place && free.border == both / 2 && free.memory.shape() == shape;
  });
  Tensor memory;
  if (found != free_.rend()) {
    memory = std::move(found->memory);
    free_.erase(std::next(found).base());
  } else {
    memory = both != 0 ? Tensor(dtype_, shape) : Tensor::uninitialized(dtype_, shape);
  }
  bytes_in_use_ += memory.view().bytes();
  return {this, place, border, std::move(memory)};
}

void FramePool::trim_to(const FrameRows& clip) {
  if (!(clip == clip_)) free_.clear();
  clip_ = clip;
}

void FramePool::give(const FrameRows& place, int64_t border, Tensor memory) {
  bytes_in_use_ -= memory.view().bytes();
  free_.push_back({place, border, std::move(memory)});
}

size_t FramePool::free_bytes() const {
  size_t bytes = 0;
  for (const Free& free : free_) bytes += free.memory.view().bytes();
  return bytes;
}

}  // namespace zoetrope::wan
