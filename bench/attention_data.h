// q, k, v and the mask of an attention, random or from a file, and the check of a result against the float64
// definition. Rows of large results are sampled: each costs a scalar pass over all keys.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/thread_team.h"
#include "io/weights/tensor_file.h"
#include "kernels/flash_attention/flash_attention.h"
#include "problems/attention.h"

namespace zoetrope::bench {

// Whole tensors; a rank uses only its own tokens.
struct AttentionData {
  AttentionData() = default;
  AttentionData(const problems::AttentionShape& shape, DType dtype);  // random

  TensorView q;     // [B, Sq, H, D]
  TensorView k, v;  // [B, Skv, H, D]
  std::vector<int64_t> key_lengths;
  TensorView key_mask;  // [B, Skv] U8 or BOOL

  std::shared_ptr<const io::TensorFile> file;  // the memory
  std::vector<Tensor> owned;

  int64_t query_tokens() const { return q.extent(1); }
  int64_t key_tokens() const { return k.extent(1); }
  bool cross() const { return key_tokens() != query_tokens(); }  // then keys are replicated, not sharded
  kernels::MaskKind mask_kind() const;
  int64_t valid_keys() const;  // summed over the batch
  double flop() const;         // 4·Sq·D·H per valid key: two matrix multiplications, a multiply and an add each

  kernels::FlashProblem problem() const;  // without implementation and softmax; scale 1/√D
  kernels::KeyBlock block() const;
};

// Standard normal numbers (|x| below 7), the same for the same seed on every machine. Four axes with any strides, or
// any number of axes without gaps.
void fill_normal(const TensorView& x, uint64_t seed);
// The tokens of x [B, S, H, D], contiguous. Each value depends only on the seed and its place in x, so any thread and
// any rank may fill any part.
void fill_normal(const TensorView& x, IndexRange tokens, uint64_t seed, ThreadTeam& team);

struct Verdict {
  double relative_l2 = 0;  // ‖o − reference‖ / ‖reference‖ of the sampled elements that are finite in the reference
  double max_abs = 0;            // of the same elements; both infinite where o is not finite in one of them
  double tolerance = 0;          // of relative_l2
  bool finite = true;            // every element of o that is finite in the reference
  int64_t rows = 0;              // query tokens compared
  int64_t nonfinite = 0;         // elements that are not finite in the reference
  int64_t nonfinite_missed = 0;  // of these, finite in o
  std::optional<double> log_sum_exp_max_abs;  // where it was given; infinite where another number is not finite
  bool passed() const { return finite && relative_l2 <= tolerance; }
  std::string note() const;  // of its row: empty, or WRONG and the reason
};

// What int8 may add to the tolerance of normal numbers: rounding moves a query, a key and a value by at most 2^-7 of
// itself each, a score, which is about 1, by √2 of that, a weight by as much and by 2^-7 of its own, and o by all four.
constexpr double kInt8AttentionTolerance = 0x1p-6;

// Query tokens first, first + step, …
struct TokenSample {
  int64_t first, step, count;
  TensorView of(const TensorView& x /* [B, S, H, D] */) const;
};

// The float64 result of some query tokens, computed once and compared with every implementation.
class SampledReference {
 public:
  // About `rows` tokens, the first and the last included; 0: as many as take about a tenth of a second.
  explicit SampledReference(const AttentionData& data, int64_t rows = 0);
  SampledReference(const AttentionData& data, const kernels::FlashProblem& problem, std::vector<TokenSample> samples,
                   ThreadTeam& team);

  // o is [B, Sq, H, D] of the data's dtype, any strides; log_sum_exp [B, Sq, H] F32, empty where there is none.
  Verdict check(const TensorView& o, const TensorView& log_sum_exp = {}) const;

 private:
  std::vector<TokenSample> samples_;
  std::vector<Tensor> expected_;       // [B, count, H, D] F64 of each
  std::vector<Tensor> expected_logs_;  // [B, count, H, 1]
  double tolerance_ = 0;
};

}  // namespace zoetrope::bench
