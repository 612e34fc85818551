#include "models/wan/vae/frame_pool.h"

#include <algorithm>

namespace zoetrope::wan {

Frame& Frame::operator=(Frame&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    memory_ = std::move(other.memory_);
  }
  return *this;
}

void Frame::release() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->give(std::exchange(memory_, Tensor{}));
}

Frame FramePool::take(int64_t height, int64_t width, int64_t channels) {
  const Shape shape{1, height, width, channels};
  // The one returned last is the likeliest to be in a cache.
  const auto found =
      std::find_if(free_.rbegin(), free_.rend(), [&](const Tensor& tensor) { return tensor.shape() == shape; });
  Tensor memory;
  if (found != free_.rend()) {
    memory = std::move(*found);
    free_.erase(std::next(found).base());
  } else {
    memory = Tensor::uninitialized(DType::kF32, shape);
  }
  bytes_in_use_ += memory.view().bytes();
  return {this, std::move(memory)};
}

void FramePool::trim_to(const Shape& clip_size) {
  if (!(clip_size == clip_size_)) free_.clear();
  clip_size_ = clip_size;
}

void FramePool::give(Tensor memory) {
  bytes_in_use_ -= memory.view().bytes();
  free_.push_back(std::move(memory));
}

size_t FramePool::free_bytes() const {
  size_t bytes = 0;
  for (const Tensor& tensor : free_) bytes += tensor.view().bytes();
  return bytes;
}

}  // namespace zoetrope::wan
