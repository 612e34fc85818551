// Random q, k, v of an attention shape with its mask, and the check of a result against the float64 definition. Rows of
// large results are sampled: the definition costs a scalar pass over all keys for each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/flash_attention/flash_attention.h"
#include "problems/attention.h"

namespace zoetrope::bench {

struct AttentionData {
  AttentionData(const problems::AttentionShape& shape, DType dtype);

  kernels::FlashProblem problem;  // without implementation and softmax
  Tensor q, k, v;                 // [B, S, H, D], normal deviates
  std::vector<int64_t> key_lengths;
  Tensor key_mask;         // [B, Skv]
  int64_t valid_keys = 0;  // over all batch entries
  double flop = 0;         // 4·Sq·valid·D·H, summed over the batch: two products, a multiply and an add each

  kernels::KeyBlock block() const;
};

// Fills with normal deviates (|x| below 9), the same for the same seed on every machine.
// Four axes with any strides, or any number of axes without gaps.
void fill_normal(const TensorView& tensor, uint64_t seed);

struct Verdict {
  double relative_l2 = 0;  // of the sampled rows
  double max_abs = 0;
  double tolerance = 0;  // of relative_l2
  bool finite = true;    // every element of them is
  bool passed() const { return finite && relative_l2 <= tolerance; }
  std::string note() const;  // for its row: empty, or WRONG and why
};

// The float64 result of about `rows` query rows, first and last included, computed once for every implementation that
// is checked against it.
class SampledReference {
 public:
  explicit SampledReference(const AttentionData& data, int64_t rows = 0);  // 0: as many as take a moment

  // o is [B, Sq, H, D] of the data's dtype, any strides.
  Verdict check(const TensorView& o) const;

 private:
  struct Sample {
    int64_t first, step, count;
    Tensor expected;  // [B, count, H, D] F64
  };
  TensorView pick(const TensorView& x, const Sample& sample) const;

  std::vector<Sample> samples_;
  double tolerance_ = 0;
};

}  // namespace zoetrope::bench
