// Weights with changes (LoRA) added when a tensor is read, so that only the tensor being read exists twice. Names and
// strengths of changes are decided by models/lora.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/weights/weights.h"

namespace zoetrope::io {

// A matrix as its file stores it: up · down, or whole. The first axis is the rows; others are flattened.
struct DeltaMatrix {
  std::string up, down;  // [rows, rank] and [rank, columns]
  std::string whole;     // [rows, columns]; given instead of the two
};

enum class DeltaJoin : uint8_t {
  kNone,
  kHadamard,   // element by element, of two products: LoHa
  kKronecker,  // every element of the first times all of the second: LoKr
};

// A change of one tensor W with `rows` = W's first extent, columns = elements / rows: W += scale · the first matrix, or
// what it and the second make.
struct WeightDelta {
  std::shared_ptr<const WeightSource> from;  // that holds the tensors named below, F32, BF16, F16 or F64
  DeltaMatrix first;
  double scale = 1;
  DeltaJoin join = DeltaJoin::kNone;
  DeltaMatrix second{};
};

using WeightDeltas = std::map<std::string, std::vector<WeightDelta>>;  // by the tensor they change, added in this order

// `base` with `deltas`, whose sizes fit (a CHECK). Changed tensors are stored as F32 here: the sum is rounded once, by
// the reader. On machines of one kind it does not depend on the number of threads. A read runs on the calling thread.
// With `check_finite` it throws Error if a sum is NaN or infinite, and names the tensor and the file whose change
// caused it.
std::shared_ptr<const WeightSource> merged_source(std::shared_ptr<const WeightSource> base, WeightDeltas deltas,
                                                  bool check_finite = true);

// The most elements (F32) that a read allocates besides its result: for a product of this rank, and for any change.
int64_t merge_scratch_elements(int64_t rows, int64_t columns, int64_t rank);
int64_t merge_scratch_elements(int64_t rows, int64_t columns, const WeightDelta& delta);

}  // namespace zoetrope::io
