// Exact attention without an S×S matrix: o = softmax(scale·q·kᵀ + bias) v per (batch, head), folded over key blocks
// into a running state. The same calls serve a whole sequence, one ring block, and cross-attention. Knows no ranks.
//
// Softmax is base-2, online or with a fixed offset per row (attention.md section 5). Masked keys and values never enter
// the arithmetic, not even as NaN; a row without a valid key yields zeros.
//
// Optional output log_sum_exp [B, Sq, H] F32, any strides: ln Σ exp(scale·q·k + bias) over the valid keys, −∞ without
// one, not finite where a score is NaN or +∞. Implementations that round weights to bf16 sum the rounded ones, so that
// o is a weighted mean exactly: the sum is off by at most 2^-8 of itself, and its logarithm by as much. In int8,
// weights below 1/510 of the largest of a row and 64 keys become 0, so that the sum may lack 64/510 of itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

enum class MaskKind : uint8_t { kNone, kKeyLengths, kKeyMask };

enum class Softmax : uint8_t {
  kOnline,       // lazy: a row keeps the reference of its first keys while its sums stay in range
  kExactOnline,  // the running maximum, raised tile by tile as in the textbook; to compare with
  kFixedMax,     // an offset per row from statistics of all keys; groups of rows that are not safe with it go online
};

// The sizes of one tile; 0: as in the implementation's table. Others are rounded to what it can do.
struct TileSizes {
  int64_t query = 0;  // rows
  int64_t keys = 0;   // keys whose weights are in memory at once
  friend bool operator==(const TileSizes&, const TileSizes&) = default;
};

inline constexpr int64_t kMostHeadDim = 1024;
// Of a tile: beyond, a thread's weights alone would take hundreds of megabytes.
inline constexpr int64_t kMostTileRows = 4096;
inline constexpr int64_t kMostTileKeys = 8192;

// Bytes of packed keys and values beyond which threads no longer work on several heads at once.
inline constexpr int64_t kFlashPackBudget = int64_t{64} << 20;

struct FlashProblem {
  int64_t batch = 1;
  int64_t query_tokens = 0;  // rows of the state
  int64_t key_tokens = 0;    // the most keys one accumulate() brings
  int64_t heads = 1;
  int64_t head_dim = 0;       // ≤ kMostHeadDim
  DType dtype = DType::kF32;  // of q, k, v, o: F32 or BF16; accumulation and state are float32
  float scale = 0;            // applied to q·k; usually 1/√head_dim, explicit always
  MaskKind mask = MaskKind::kNone;
  bool bias = false;  // additive, float32; not with kFixedMax
  bool int8 = false;  // both matrix multiplications are int8 (int8_attention.h); BF16 only
  // Of a head in a block: where int8 moves o of a sample by more (relative L2), it is multiplied in BF16.
  // Infinite: all heads are multiplied in int8.
  double int8_limit = 0.05;
  std::string implementation;  // empty: the fastest that can
  Softmax softmax = Softmax::kOnline;
  bool center_keys = true;  // kFixedMax: offsets about the mean key, a tighter bound
  TileSizes tiles;
};

// Keys and values of one block, with what masks them. Any strides except a contiguous last axis.
struct KeyBlock {
  TensorView k;                          // [B, Skv, H, D]
  TensorView v;                          // [B, Skv, H, D]
  int64_t first_key = 0;                 // global position of the block's first key: masks are in global positions
  std::span<const int64_t> key_lengths;  // [B] valid keys from global position 0 (mask = kKeyLengths)
  TensorView key_mask;                   // [B, S] U8 or BOOL over global positions, non-zero = valid (mask = kKeyMask)
  TensorView bias;                       // [H, Sq, Skv] F32 of this block, added after the scale (bias = true)
  // [B, H, 3 + D] F32 of all keys the rows will meet (softmax = kFixedMax), from key_statistics() and, over several
  // blocks, combine_key_statistics(). attend() measures its one block itself where this is empty.
  TensorView statistics;
};

// Groups of query rows, counted once for every block they met, by how their softmax went. Groups depend on the
// implementation and the rows alone, not on threads or heads.
struct TileCounts {
  int64_t fixed = 0;
  int64_t online = 0;
  // With int8: heads in int8 and in bf16, and the largest error of a sample that was within the limit.
  int64_t int8_heads = 0;
  int64_t bf16_heads = 0;
  double int8_error = 0;
};

// {o, l, m} of every (batch, query row, head), float32: o the weighted sum, l the sum of weights, m the reference they
// were taken at. Laid out as the implementation likes; created by FlashAttention::make_state, valid with that object
// only.
class FlashState {
 public:
  virtual ~FlashState() = default;
};

class FlashAttention {
 public:
  // Chooses the implementation and allocates nothing. Throws Error where no implementation can do the problem.
  explicit FlashAttention(const FlashProblem& problem);
  ~FlashAttention();
  FlashAttention(FlashAttention&&) noexcept;
  FlashAttention& operator=(FlashAttention&&) noexcept;

  const FlashProblem& problem() const;
  const char* implementation() const;
  static std::vector<std::string> implementations();  // every name, fastest first
  // Why `name` cannot do the problem on this machine; empty when it can.
  static std::string refusal(const FlashProblem& problem, const std::string& name);
  // Why attention of a dtype cannot be multiplied in int8; empty when it can.
  static std::string int8_refusal(DType dtype);

  std::unique_ptr<FlashState> make_state() const;
  size_t state_bytes() const;

  // q is [B, Sq, H, D] and must be the same in every accumulate() of a state.
  void init(Stream& stream, FlashState& state) const;
  TileCounts accumulate(Stream& stream, FlashState& state, const TensorView& q, const KeyBlock& block) const;
  // o is [B, Sq, H, D], any strides, D contiguous; log_sum_exp empty: not wanted.
  void finish(Stream& stream, FlashState& state, const TensorView& o, const TensorView& log_sum_exp = {}) const;

  // init + accumulate + finish over one block, without a state in memory.
  TileCounts attend(Stream& stream, const TensorView& q, const KeyBlock& block, const TensorView& o,
                    const TensorView& log_sum_exp = {}) const;

  // What fixed-max offsets are computed from, over the valid keys of a block, per (batch, head):
  //   [0] their number n, [1] ρ = max ‖k − k̄‖, [2] max |v|, [3, 3 + D) the mean k̄;  k̄ = 0 without center_keys.
  void key_statistics(Stream& stream, const KeyBlock& block, const TensorView& out) const;  // [B, H, 3 + D] F32
  // The statistics of all blocks together, from those of each in ring order; ρ may grow by a bound. Elementwise in
  // (b, h), so that heads may be anything. `into` may not be one of `parts`.
  static void combine_key_statistics(std::span<const TensorView> parts, const TensorView& into);  // [B, H, 3 + D] F32

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The float64 definition, row by row, against which every test compares. Slow.
void flash_attention_reference(const FlashProblem& problem, const TensorView& q, const KeyBlock& block,
                               const TensorView& o /* [B, Sq, H, D] F32 or F64 */,
                               const TensorView& log_sum_exp = {} /* [B, Sq, H] F64 */);

}  // namespace zoetrope::kernels
