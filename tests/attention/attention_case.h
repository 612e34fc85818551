// What the tests of context-parallel attention share: whole sequences of data that every rank makes for itself, the
// float64 result, this rank's part of them, and distances over all ranks. For tests only.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

namespace zoetrope::attention::testing {

// A problem with data for the whole sequence: the same on every rank, and on every machine.
struct Case {
  explicit Case(const Problem& what, uint64_t seed = 1);

  Problem problem;
  Tensor q, k, v;  // [B, S, H, D], uniform in [-2, 2); k, v of cross-attention [B, key_tokens, H, D]
  std::vector<int64_t> key_lengths;
  Tensor key_mask;  // [B, S] U8
  int64_t keys() const { return problem.key_tokens > 0 ? problem.key_tokens : problem.tokens; }

  Mask mask() const;
  // Sets the mask of the problem's kind. Masked keys and values become NaN: none may enter the arithmetic.
  void set_key_lengths(std::vector<int64_t> lengths);
  void set_key_mask(uint64_t seed);
  // Adds `offset(s, d)` to every key: a mean that all keys share, or that wanders along the sequence.
  void shift_keys(const std::function<double(int64_t s, int64_t d)>& offset);
  Tensor reference(const TensorView& log_sum_exp = {}) const;  // [B, S, H, D] F64; and [B, S, H] F64

 private:
  bool valid(int64_t b, int64_t s) const;
  void poison_masked();
};

// This rank's tokens of the case in the layout of a model: q, k, v side by side in one tensor, o with a gap after each
// row.
struct Shard {
  Shard(const Case& whole, IndexRange tokens);

  Tensor qkv;       // [B, S_l, 3, H, D]; k and v of cross-attention are the case's
  Tensor o_padded;  // [B, S_l, H, D + 3]
  TensorView q, k, v, o;
};

// Writes the shard's q, k, v where the slots point, as a model does.
void write_slots(const InputSlots& slots, const Shard& shard);

// ‖a − b‖ / ‖b‖ over all ranks, a and b being this rank's tokens of [B, S_l, H, D] tensors of any float dtype; infinite
// where one is not finite and the other is. Collective.
double distance(comm::Communicator& comm, const TensorView& a, const TensorView& b);

bool same_bits(const TensorView& a, const TensorView& b);  // shapes [B, S, H, D]

// Every rank alone: the case over a communicator of one rank.
Tensor run_alone(comm::Communicator& comm, const Case& whole, Softmax softmax = Softmax::kOnline);

// The whole o of a run of ranks that are threads.
Tensor run_threads(const Case& whole, const Strategy& strategy, int threads);

// The bound on the distance between two results for one case.
//  F32: what is asked of N ranks against one, 1e-5. A float32 score of D ≤ 128 terms errs by about
//  √D·2^-24·‖q‖‖k‖/√D ≲ 1e-6, the rest of the chain by a few 2^-24: far inside.
//  BF16: each result rounds o once (≤ 2^-9 of each element) and its weights p once before they meet V (≤ 2^-9 of each
//  term), so either is within 2^-8 of the exact result; two of them may be on opposite sides of it only where both
//  roundings are extreme everywhere, so 2^-8 holds between them as well (in L2 a rounding is 0.58 of its bound).
double bound(DType dtype);

// The bound on the error of a log-sum-exp of a case without shifted keys, over a ring of R ranks, from ε = 2^-24:
//  - every score is at most s = scale·2√D·2√D, and each errs by at most 4ε·s: its products, the rounded scale, twice
//  for
//    the difference to the reference of its row;
//  - exp2 and the sums of a fold: 8ε of the sum, of R folds one rounding more each;
//  - the rounding of the result, ε·(s + ln keys);
//  - BF16: weights are summed after their rounding, at most 2^-8 of each.
double log_sum_bound(const Case& whole, int ring);

// Registers the rank tests SUITE.U1R4, SUITE.U2R2, …: every layout of each of these numbers of ranks, of at least the
// degrees in `least`.
struct Degrees {
  int ulysses = 1, ring = 1;
};
using LayoutTest = void (*)(comm::Communicator& comm, int ulysses, int ring);
bool register_layouts(const char* suite, const std::vector<int>& ranks, LayoutTest test, Degrees least = {},
                      std::source_location where = std::source_location::current());

}  // namespace zoetrope::attention::testing
