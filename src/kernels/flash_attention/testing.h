// What the tests of flash attention share: problems with their data, the float64 result, and the comparison with its
// derived tolerance. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::kernels::flash_testing {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// An implementation with a dtype it takes, and a softmax; the parameter of most tests.
struct Variant {
  const char* implementation;
  DType dtype;
  Softmax softmax = Softmax::kOnline;
};
std::vector<Variant> variants();                          // online
std::vector<Variant> softmax_variants();                  // each with every softmax
void PrintTo(const Variant& variant, std::ostream* out);  // the name under which ctest lists it
std::string variant_name(const ::testing::TestParamInfo<Variant>& info);

double element(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d);
void set_element(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d, float value);

// A problem with data. q, k, v are normal deviates; tests change what they are about.
struct Case {
  Case(const Variant& variant, int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t head_dim);

  FlashProblem problem;
  Tensor q, k, v, o;  // [B, S, H, D]
  std::vector<int64_t> key_lengths;
  Tensor key_mask;  // [B, Skv]
  Tensor bias;      // [H, Sq, Skv]

  void use_key_lengths(std::vector<int64_t> lengths);
  void use_key_mask(uint64_t seed, double density);
  void use_bias(uint64_t seed, double deviation);

  KeyBlock block() const;                                             // all keys
  KeyBlock block(IndexRange keys) const;                              // some of them, at their global positions
  Tensor reference() const;                                           // float64 [B, Sq, H, D]
  void attend(int threads = 2);                                       // into o
  void fold(const std::vector<IndexRange>& blocks, int threads = 2);  // state, one block after another, into o
  Tensor statistics(const std::vector<IndexRange>& blocks) const;     // of all of them, combined in this order
  void know_statistics(const std::vector<IndexRange>& blocks);        // block() brings them along, in fixed-max
  Tensor known;

  TileCounts counts;  // of the last attend() or fold()
};

// How far `o` is from the definition.
struct Deviation {
  double relative_l2 = 0;  // over the elements that are finite in both
  double max_abs = 0;
  int64_t nonfinite_mismatches = 0;  // elements finite in one and not in the other
};
Deviation deviation(const TensorView& o, const TensorView& reference);

// The tolerance of relative L2, from ε = 2^-24:
//  - a score is a float32 sum of D products; for independent terms its rounding errors add up to at most
//    ε·|scale|·‖q‖·‖k‖ (partial sums grow as √(d/D), D of them), and twice that bounds what softmax makes of it in
//    numerator and denominator. `correlation` is √D where the terms have one sign and partial sums grow as d;
//  - exp2 is within 2^-22, sums of p and of p·v are folded by tile: 8 ε together;
//  - bf16 rounds p and o, at most 2^-9 of the norm each; implementations that keep p in float32 have one of the two.
double tolerance(const Case& c, double correlation = 1.0);

// The bound on the error of a log-sum-exp, from ε = 2^-24 and s = |scale|·‖q‖·‖k‖ + |bias|, which no score exceeds:
//  - of each score: its products ε·s (see above), the rounded scale ε·s, the difference to the reference 2ε·s;
//  - exp2 and the sums, relative to the sum: 8 ε; weights that are rounded to bf16 before they are summed: 2^-8;
//  - the rounding of the result: ε·|result| ≤ ε·(s + ln keys).
double log_sum_tolerance(const Case& c);

// Success where c.o is within the tolerance of the reference and non-finite in the same elements.
::testing::AssertionResult matches_reference(const Case& c, double correlation = 1.0);

}  // namespace zoetrope::kernels::flash_testing

// Ends a test as skipped where the machine lacks the instruction set; a refusal for any other reason is a failure.
#define ZT_SKIP_WHERE_REFUSED(variant)                                                                        \
  do {                                                                                                        \
    ::zoetrope::kernels::FlashProblem probe;                                                                  \
    probe.head_dim = 64;                                                                                      \
    probe.dtype = (variant).dtype;                                                                            \
    const std::string reason = ::zoetrope::kernels::FlashAttention::refusal(probe, (variant).implementation); \
    if (reason.starts_with("needs ")) GTEST_SKIP() << (variant).implementation << " " << reason;              \
    ASSERT_EQ(reason, "");                                                                                    \
  } while (false)
