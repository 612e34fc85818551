// Tables of the 3-D rotary embedding (wan.md section 2.2): angles in float64, cos and sin rounded once to float32.
#pragma once

#include "zoetrope/tensor.h"

#include "base/index_range.h"

namespace zoetrope::kernels {

struct RopeTable {
  Tensor cos;  // [tokens, D/2] F32
  Tensor sin;
};

// Axis widths of a head: {dt, dh, dw} with dh = dw = 2·⌊D/6⌋, dt = D − dh − dw.
struct RopeAxes {
  int64_t t, h, w;
};
RopeAxes rope_axes(int64_t head_dim);

// For tokens [tokens.begin, tokens.end) of a grid of `frames`×`height`×`width` patches, t slowest then h then w.
RopeTable make_rope_table(int64_t head_dim, int64_t frames, int64_t height, int64_t width, IndexRange tokens,
                          double theta = 10000.0);

}  // namespace zoetrope::kernels
