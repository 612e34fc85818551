// The additive bias of UMT5's self-attention: a learned value per head and bucket of the distance between key and query
// (wan.md section 5.2).
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "base/index_range.h"

namespace zoetrope::encoders {

// bucket of the distance key − query: half of the buckets for keys behind, half for keys ahead; in each half one per
// distance up to half of its buckets, then logarithmic up to max_distance, which the last one shares with all beyond.
int64_t relative_position_bucket(int64_t distance, int64_t buckets, int64_t max_distance);

// values[h, i] = table[bucket(i − (L − 1)), heads.begin + h]: what a head adds, by distance. table [buckets, H] F32 or
// BF16, values [heads, 2L − 1] F32, both contiguous.
void fill_relative_values(const TensorView& table, IndexRange heads, int64_t max_distance, const TensorView& values);

// Those values as the bias [heads, L, L] of L tokens: row i is the line of values seen through a window that begins at
// distance −i, so nothing is written out (67 MB a layer for 512 tokens of UMT5-XXL).
TensorView as_relative_bias(const TensorView& values, int64_t tokens);

}  // namespace zoetrope::encoders
