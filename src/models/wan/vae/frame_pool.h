// Frames of values, [1, H, W, C], handed from layer to layer and returned for reuse when nobody needs them. A layer
// that must remember a frame keeps it instead of copying it, so a history costs its frames and no traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

namespace zoetrope::wan {

class FramePool;

// Owns a frame of a pool and returns it at the end; empty after a move.
class Frame {
 public:
  Frame() = default;
  Frame(Frame&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), memory_(std::move(other.memory_)) {}
  Frame& operator=(Frame&& other) noexcept;
  ~Frame() { release(); }

  explicit operator bool() const { return pool_ != nullptr; }
  const TensorView& view() const { return memory_.view(); }
  int64_t height() const { return view().extent(1); }
  int64_t width() const { return view().extent(2); }
  int64_t channels() const { return view().extent(3); }
  void release();

 private:
  friend class FramePool;
  Frame(FramePool* pool, Tensor memory) : pool_(pool), memory_(std::move(memory)) {}
  FramePool* pool_ = nullptr;
  Tensor memory_;
};

// One rank's; must outlive its frames.
class FramePool {
 public:
  Frame take(int64_t height, int64_t width, int64_t channels);  // contents undefined
  // Gives the memory of free frames back if the clip that begins is of another size than the one before.
  void trim_to(const Shape& clip_size);
  size_t bytes() const { return bytes_in_use_ + free_bytes(); }

 private:
  friend class Frame;
  void give(Tensor memory);
  size_t free_bytes() const;

  std::vector<Tensor> free_;
  Shape clip_size_;
  size_t bytes_in_use_ = 0;
};

}  // namespace zoetrope::wan
