// The numbers behind fixed-max softmax (attention.md section 5): statistics of the keys, the bound they put on a row's
// exponents, and the gate that says where a fixed offset is exact enough. Nothing here multiplies with keys.
//
// With t the base-2 exponents of a row and c = q·k̄·scale·log₂e, Cauchy and Schwarz give |t − c| ≤ β =
// ‖q‖·ρ·|scale|·log₂e. Weights are p = 2^(t − c)·2^E. The largest E with which neither l nor o can overflow is C − ⌈β⌉,
//   C = 126 − ⌈log₂ n⌉ − max(0, ⌈log₂ v̂⌉), in int8 max(7, ⌈log₂ v̂⌉): weights meet values as integers, up to 127,
// and a row is safe when terms 24 bits below its largest one are normal numbers then, with and without their values.
// Its largest t − c is at least 0 (their sum is 0), and at least −β where the keys are not centred:
//   ⌈β⌉ ≤ C + 102 + min(0, ⌊log₂ v̂⌋)          2·⌈β⌉ ≤ the same
// The scale 2^E drops out of o / l exactly, so E = 0 is as good wherever it is safe too, which is where the models of
// this family are (β ≈ 16 at D = 128); it saves two instructions a vector.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::kernels {

inline constexpr double kLog2E = 1.4426950408889634;

// A record of statistics: KeyBlock::statistics along its last axis.
enum StatisticsField : int64_t { kStatCount, kStatRadius, kStatValueMaximum, kStatMean };
constexpr int64_t statistics_floats(int64_t head_dim) { return kStatMean + head_dim; }

// Rows are gated together in groups of about this many: a head of models whose rows differ wildly keeps its safe
// groups, and the tile's row loop stays long.
constexpr int64_t kGateRows = 64;

enum class RowMode : uint8_t {
  kPlain,     // E = 0 for all rows
  kExponent,  // E per row
  kOnline,    // some row is not safe
};

// What one (batch, head) gives all its rows.
class OffsetBound {
 public:
  // Of the statistics' record of (b, h), which must outlive the bound.
  OffsetBound(const FlashProblem& problem, const TensorView& statistics, int64_t b, int64_t h);

  // c and, for kExponent, E of a group of rows. `q` is the first row, `stride` elements between rows.
  RowMode rows(const void* q, int64_t stride, int64_t count, float* center, float* exponent) const;

 private:
  template <typename T>
  RowMode rows_of(const T* q, int64_t stride, int64_t count, float* center, float* exponent) const;

  DType dtype_;
  int64_t head_dim_;
  const float* mean_;
  float scale_log2e_;
  float radius_log2e_ = 0;  // ρ and what rounding may add, times |scale|·log₂e
  float headroom_ = 0;      // C
  float most_safe_ = -1;    // ⌈β⌉ up to which a row is safe; negative: never
  float most_plain_ = -1;   // with E = 0
};

// What a block's rows are offset by: the statistics it brings, those of its own keys, measured into the stream's
// scratch, where it brings none, or nothing where softmax is online.
TensorView statistics_of(Stream& stream, const FlashProblem& problem, const KeyBlock& block);

// Records of which only the number of valid keys and their mean are set, whatever center_keys says; in the stream's
// scratch.
TensorView means_of(Stream& stream, const FlashProblem& problem, const KeyBlock& block);

void measure_keys(Stream& stream, const FlashProblem& problem, const KeyBlock& block, const TensorView& out);
void combine_statistics(std::span<const TensorView> parts, const TensorView& into);

}  // namespace zoetrope::kernels
