#include "models/wan/vae/frame_pool.h"

#include <algorithm>
#include <cstring>

namespace zoetrope::wan {
namespace {

// Zeroes the border.
void clear_border(ThreadTeam& team, const TensorView& frame /* [rows + 2, W + 2, C] */) {
  const auto clear = [](const TensorView& part) { std::memset(part.raw(), 0, part.bytes()); };
  const int64_t rows = frame.extent(0), width = frame.extent(1);
  team.parallel_for(rows, 1, [&](IndexRange range, int) {
    for (int64_t y = range.begin; y < range.end; ++y) {
      const TensorView row = frame.select(0, y);
      const bool outside = y == 0 || y + 1 == rows;
      clear(outside ? row : row.select(0, 0));
      clear(row.select(0, width - 1));
    }
  });
}

}  // namespace

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

Frame FramePool::take(ThreadTeam& team, const FrameRows& place, int64_t channels, Border border) {
  const int64_t both = border == Border::kOne ? 2 : 0;
  const Shape shape{place.count() + both, place.width + both, channels};
  // The frame returned last is most likely in cache. The place matters besides the shape: where a border is the
  // picture's it must be zeros.
  const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Free& free) {
    return free.place == place && free.border == both / 2 && free.memory.shape() == shape;
  });
  Tensor memory;
  if (found != free_.rend()) {
    memory = std::move(found->memory);
    free_.erase(std::next(found).base());
  } else {
    memory = Tensor::uninitialized(dtype_, shape);
    if (border == Border::kOne) clear_border(team, memory);
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
