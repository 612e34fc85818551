// The result of `zoetrope attention` against the definition in float64.
#pragma once

#include <cstdint>

#include "zoetrope/attention.h"
#include "zoetrope/tensor.h"

#include "cli/attention_data.h"

namespace zoetrope::cli {

struct ReferenceErrors {
  double rel_l2 = 0;      // ‖o − reference‖ / ‖reference‖ over the elements that are finite in the reference
  double max_abs = 0;     // of the same elements; both infinite where o is not finite in one of them
  int64_t rows = 0;       // query tokens compared, evenly spread over all
  int64_t nonfinite = 0;  // elements that are not finite in the reference
  int64_t nonfinite_missed = 0;  // of these, finite in o
};

// All query tokens, as long as Sq·Skv·H·B·D is at most 2·10^10 (masked keys included); otherwise as many as that
// allows.
ReferenceErrors compare_with_reference(const AttentionData& data, const attention::Problem& problem,
                                       const TensorView& o /* [B, Sq, H, D] */, int threads);

}  // namespace zoetrope::cli
