// Pixels of pictures and values of frames. A frame has one value, of many channels, for `patch` × `patch` pixels: of
// channel c of the pixel at (row, column) of its patch it is channel (c·patch + column)·patch + row (wan.md
// section 4.3).
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "device/thread_team.h"

namespace zoetrope::wan {

// A picture, or rows of it, into a frame, rounded to its dtype. pixels [H, W, C] F32, any strides; values
// [H / patch, W / patch, C·patch²], rounded down, the last axis contiguous.
void load_pixels(ThreadTeam& team, const TensorView& pixels, int64_t patch, const TensorView& values);

// And back, clamped to [−1, 1]. Without patches both may be the same memory.
void store_pixels(ThreadTeam& team, const TensorView& values, int64_t patch, const TensorView& pixels);

}  // namespace zoetrope::wan
