// Weights with changes added to them, tensor by tensor as they are asked for: nothing but the tensor in work exists a
// second time. What a change is called in its file and how strong it is, is decided elsewhere (models/wan/lora/).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/weights.h"

namespace zoetrope::io {

// A change of one tensor W with `rows` = W's first extent: W += scale · up · down, or W += scale · whole.
struct WeightDelta {
  std::shared_ptr<const WeightSource> from;  // that holds the tensors named below, F32, BF16, F16 or F64
  std::string up, down;                      // [rows, rank] and [rank, elements of W / rows], in any axes
  std::string whole;                         // as many elements as W; given instead of the two
  double scale = 1;
};

using WeightDeltas = std::map<std::string, std::vector<WeightDelta>>;  // by the tensor they change, added in this order

// `base` with `deltas`, whose sizes fit (a CHECK). Changed tensors are stored as F32 here: the sum is rounded once, by
// whoever asks for less, and is the same on every machine of one kind whatever the number of threads. A read works on
// the calling thread.
std::shared_ptr<const WeightSource> merged_source(std::shared_ptr<const WeightSource> base, WeightDeltas deltas);

// Elements (F32) that a read holds beside its result, at most, for a change of this rank.
int64_t merge_scratch_elements(int64_t rows, int64_t columns, int64_t rank);

}  // namespace zoetrope::io
