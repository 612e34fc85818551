// The additive bias of UMT5's self-attention: a learned value per head and bucket of the distance between key and query
// (wan.md section 5.2).
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::wan {

// bucket of the distance key − query: half of the buckets for keys behind, half for keys ahead; in each half one per
// distance up to half of its buckets, then logarithmic up to max_distance, which the last one shares with all beyond.
int64_t relative_position_bucket(int64_t distance, int64_t buckets, int64_t max_distance);

// bias[h, i, j] = table[bucket(j − i), h]. table [buckets, H] F32 or BF16, bias [H, L, L] F32, both contiguous.
void fill_relative_bias(Stream& stream, const TensorView& table, int64_t max_distance, const TensorView& bias);

}  // namespace zoetrope::wan
