// Frames of values, channels last, passed from layer to layer and returned for reuse. A layer that needs a frame later
// keeps it instead of copying it, so a history costs memory and no copies.
//
// A frame that a 3×3 convolution reads has a border of one pixel: zeros around the picture, and rows of the parts above
// and below where the picture is split. Nobody overwrites the zeros, so they are set once, at allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

#include "device/thread_team.h"

namespace zoetrope::wan {

// Rows of a picture and what they belong to.
struct FrameRows {
  IndexRange rows;     // of the picture, that this part has
  int64_t height = 0;  // of the picture
  int64_t width = 0;
  int64_t count() const { return rows.size(); }
  friend bool operator==(const FrameRows&, const FrameRows&) = default;
};

enum class Border : uint8_t { kOne, kNone };

class FramePool;

// Owns a frame of a pool and returns it at the end; empty after a move.
class Frame {
 public:
  Frame() = default;
  Frame(Frame&& other) noexcept;
  Frame& operator=(Frame&& other) noexcept;
  ~Frame() { release(); }

  explicit operator bool() const { return pool_ != nullptr; }
  const FrameRows& place() const { return place_; }
  int64_t channels() const { return memory_.extent(2); }
  TensorView bordered() const { return memory_.view(); }  // [rows + 2, W + 2, C]; without border [rows, W, C]
  TensorView view() const;                                // [rows, W, C]; contiguous only without border
  TensorView row(int64_t index) const;                    // [W, C] contiguous; −1 and `rows` are the border
  void release();

 private:
  friend class FramePool;
  Frame(FramePool* pool, const FrameRows& place, Border border, Tensor memory)
      : pool_(pool), place_(place), border_(border == Border::kOne ? 1 : 0), memory_(std::move(memory)) {}
  FramePool* pool_ = nullptr;
  FrameRows place_;
  int64_t border_ = 0;
  Tensor memory_;
};

// One rank's, of one dtype; must outlive its frames.
class FramePool {
 public:
  explicit FramePool(DType dtype) : dtype_(dtype) {}
  DType dtype() const { return dtype_; }
  // Contents undefined, zeros in the border. The team's threads touch new memory first, because the system creates
  // pages on the thread that touches them.
  Frame take(ThreadTeam& team, const FrameRows& place, int64_t channels, Border border);
  // Frees unused frames if the next clip has another size, or is another part of the picture, than the one before.
  void trim_to(const FrameRows& clip);
  size_t bytes() const { return bytes_in_use_ + free_bytes(); }

 private:
  friend class Frame;
  struct Free {
    FrameRows place;
    int64_t border;
    Tensor memory;
  };
  void give(const FrameRows& place, int64_t border, Tensor memory);
  size_t free_bytes() const;

  DType dtype_;
  std::vector<Free> free_;
  FrameRows clip_;
  size_t bytes_in_use_ = 0;
};

}  // namespace zoetrope::wan
