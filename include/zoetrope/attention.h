// Exact attention over a sequence that is sharded over ranks (context parallelism). A strategy says how the ranks share
// the work, plan() checks it once and allocates all memory, run() computes. Every strategy gives the same numbers, up
// to rounding.
//
//   rank c of P owns the global tokens [⌊cS/P⌋, ⌊(c+1)S/P⌋), uneven and empty shards included, nothing padded; with
//   weights for ranks that are not equally fast, its part of their sum
//   P = U × R: groups of U neighbours trade tokens for heads (Ulysses), K/V blocks go round R groups (ring)
//   P = G:     every rank gathers the keys and values of all
//
//   auto attention = attention::plan({.batch = 1, .tokens = 32760, .heads = 40, .head_dim = 128, .dtype = kBF16},
//                                    {.layout = {.ulysses = 2}}, communicator, /*threads=*/8);
//   attention.run(q, k, v, {}, o);                    // buffers of your own: [B, tokens().size(), H, D]
//
// A model saves the copy by writing q, k, v where input_slots() points and calling run(mask, o). With
// Problem::log_sum_exp, run() also gives the logarithm of the sum that each row of o was divided by: what it takes to
// merge results over different keys, or to compute gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/api.h"
#include "zoetrope/communicator.h"
#include "zoetrope/context_layout.h"
#include "zoetrope/head_slot.h"
#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

namespace zoetrope::attention {

enum class MaskKind : uint8_t {
  kNone,
  kKeyLengths,  // per batch entry, the number of valid keys, counted from global token 0
  kKeyMask,     // per batch entry and global token
};

// What is computed: softmax(scale·q·kᵀ) v per (batch, head), bidirectional. Global sizes, the same on every rank.
struct Problem {
  int64_t batch = 1;
  int64_t tokens = 0;  // S, of the whole sequence
  int64_t heads = 1;
  int64_t head_dim = 0;
  DType dtype = DType::kF32;  // of q, k, v, o: F32 or BF16; accumulation is float32
  float scale = 0;            // 0: 1/√head_dim
  MaskKind mask = MaskKind::kNone;
  // Cross-attention: the number of keys, which are not the sequence's and are whole on every rank. The queries stay
  // where they are and nothing is sent, whatever the strategy. 0: the keys are the sequence's own.
  int64_t key_tokens = 0;
  bool log_sum_exp = false;  // run() writes the log-sum-exp too
};

// Dtype of both matrix multiplications of self-attention; cross-attention is in the problem's dtype.
enum class AttentionDtype : uint8_t {
  kAsComputed,  // the problem's dtype
  kInt8,        // of BF16 problems; heads for which it is too coarse stay in BF16
};
// The most that int8 may move the output of a head's sample by, relative L2.
inline constexpr double kInt8Limit = 0.05;

using parallel::Direction;
using parallel::KVExchange;
using parallel::Softmax;

// How the ranks share the work, and how the kernel works.
struct Strategy {
  parallel::ContextRequest layout{};
  std::optional<Softmax> softmax{};  // unset: online
  std::string kernel{};              // a flash-attention implementation by name; empty: the fastest that can
  // Query rows and keys of a kernel's tile, rounded to what it can do, at most 4096 and 8192; 0: the sizes tuned for
  // this machine, else those of the kernel's table.
  int64_t block_q = 0;
  int64_t block_kv = 0;
  bool k_smoothing = true;     // fixed-max: offsets about the mean key
  bool deterministic = false;  // tile sizes from dtype, D and S alone: no tuned sizes, no search
  bool tile_search = false;    // where this machine was not tuned for the problem, do it now and remember the sizes
  // Where keys and values leave their rank, all ranks, theirs included, attend them as rounded for the exchange: the
  // result depends neither on the rank nor on how many there are, but differs from that of one rank alone, which
  // exchanges nothing. Counters has the error.
  KVExchange kv_exchange = KVExchange::kAsComputed;
  AttentionDtype attention_dtype = AttentionDtype::kAsComputed;
  double attention_int8_limit = kInt8Limit;  // above 0, at most this
};

// Of a kernel's tile; 0: tuned.
struct BlockSizes {
  int64_t block_q = 0;           // query rows
  int64_t block_kv = 0;          // keys
  int64_t block_kv_compute = 0;  // without effect on CPUs
};

// Of the key shard_weights: how much of the work each context rank has.
struct ShardWeights {
  bool automatic = false;    // as measured, step by step; `zoetrope generate` only
  std::vector<int> fixed{};  // per rank, 1 to 1000; empty: even
};

// The configuration keys of the same names, as a user writes them. Keys that are unset and not implied by the name are
// chosen by the planner when a video is generated, and by parse_strategy() as stated here.
struct StrategyOptions {
  std::string attention = "auto";  // one of strategy_names()
  // Unset: as the name says, else the largest divisor of P that is ≤ H; of ulysses_ring*, < P too.
  std::optional<int64_t> ulysses_shards;
  std::optional<int64_t> ulysses_attention_chunks;  // unset: 1
  std::optional<Direction> ring_direction;          // unset: as the name says, else forward
  std::optional<Softmax> softmax;                   // unset: as the name says
  ShardWeights shard_weights;
  BlockSizes flash_block_sizes;
  bool use_base2_exp = true;  // only true
  bool use_k_smoothing = true;
  bool enable_tile_search = false;
  bool deterministic = false;
  KVExchange kv_exchange_dtype = KVExchange::kAsComputed;
  AttentionDtype attention_dtype = AttentionDtype::kAsComputed;
  std::optional<double> attention_int8_limit;  // unset: kInt8Limit
};

// A name sets defaults, which keys refine; the result does not depend on the machine. Throws Error for an unknown name
// (with the nearest), an illegal value (with the legal ones), and a key that denies what the name is about: its
// topology (ulysses_ring*: U > 1 and R > 1; gather, and flash over ranks: no ring and no head chunks), _fixed_m its
// softmax, _bidir a ring or an open chain both ways. `context_degree`: ranks that share the sequence, at least 1.
ZOETROPE_API Strategy parse_strategy(const StrategyOptions& options, int context_degree, int64_t heads);
ZOETROPE_API std::vector<std::string> strategy_names();

// Masks are in global positions and the same on every rank.
struct Mask {
  std::span<const int64_t> key_lengths;  // [B], each from 0 to S (or key_tokens)
  TensorView key_mask;                   // [B, S] (or key_tokens) U8 or BOOL, non-zero = valid
};

// Where to write q, k and v of this rank's tokens, one slot per range of heads.
struct InputSlots {
  // Each covers [0, H) once, ascending; out is [B, tokens().size(), heads.size(), D], of k and v in cross-attention
  // [B, key_tokens, heads.size(), D].
  std::vector<HeadSlot> q, k, v;
};

// Totals of run() on this rank since plan() or reset_counters().
struct Counters {
  struct Traffic {
    int64_t bytes_sent = 0;      // to other ranks
    int64_t bytes_received = 0;  // from other ranks
    double wait_seconds = 0;     // spent waiting for them
  };
  Traffic ulysses;           // the exchange of q, k, v and the output exchange
  Traffic ring;              // K/V blocks, and in fixed-max their statistics
  Traffic gather;            // all keys and values at once
  int64_t bytes_copied = 0;  // inside the rank: packed and unpacked
  // Relative L2 of what the exchange changed in this rank's keys and in its values, the largest of any run.
  double key_rounding = 0;
  double value_rounding = 0;
  // Groups of query rows × blocks of keys, by the softmax that computed them; fixed-max may compute some online.
  int64_t tiles_fixed = 0;
  int64_t tiles_online = 0;
  // attention_dtype=int8: heads × blocks of keys by what multiplied them, the problem's dtype where int8 would have
  // moved o too far, and the largest relative L2 by which it moved that of a sample.
  int64_t heads_int8 = 0;
  int64_t heads_as_computed = 0;
  double int8_error = 0;
};

// A planned attention of one rank. plan() makes it; calls are collective over the context ranks.
class ZOETROPE_API ContextAttention {
 public:
  struct ZOETROPE_PRIVATE Impl;  // the engine; only the library defines it
  ~ContextAttention();
  ContextAttention(ContextAttention&&) noexcept;

  const Problem& problem() const;  // scale filled in
  const parallel::ContextLayout& layout() const;
  Softmax softmax() const;
  const char* kernel() const;  // the implementation that computes

  // This rank's tokens, as global positions.
  IndexRange tokens() const;

  // The same places for every run; run() overwrites them.
  const InputSlots& input_slots() const;
  // Attends q, k, v in the slots. A row without a valid key yields zeros. Throws Error for a tensor or mask of another
  // shape, dtype or stride, on this rank alone, and where messages fail.
  //   o            [B, tokens().size(), H, D] of the problem's dtype, D contiguous
  //   log_sum_exp  [B, tokens().size(), H] F32, any strides but 0; given if and only if Problem::log_sum_exp:
  //                ln Σ exp(scale·q·k) over the valid keys, the natural logarithm; −∞ for a row without a valid key,
  //                not finite where a score is NaN or +∞. In BF16 the sum is that of the weights after their rounding,
  //                which is at most 2^-8 of it: the logarithm is off by no more. With AttentionDtype::kInt8 it is off
  //                by at most 1/8 + (2ε + ε²)·|scale|·‖q‖·max‖k − k̄‖ with ε = √D/254 and k̄ the mean key, in a ring that
  //                of each rank's; typically by 2^-6 of the deviation of the scores.
  void run(const Mask& mask, const TensorView& o, const TensorView& log_sum_exp = {});

  // Packs first. Views [B, tokens().size(), H, D] (k, v in cross-attention [B, key_tokens, H, D]) with D contiguous and
  // any other strides.
  void run(const TensorView& q, const TensorView& k, const TensorView& v, const Mask& mask, const TensorView& o,
           const TensorView& log_sum_exp = {});

  Counters counters() const;
  void reset_counters();
  size_t workspace_bytes() const;  // allocated by plan(), kernel state included

 private:
  ZOETROPE_PRIVATE explicit ContextAttention(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Checks everything and allocates the workspace; run() allocates nothing. Collective: all ranks must bring the same
// problem and strategy, and ranks that disagree are refused. Throws Error with the legal values where something is not
// possible. `context` (its ranks are the context ranks) must outlive the attention, which computes on `threads` threads
// of its own.
ZOETROPE_API ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context,
                                   int threads);

}  // namespace zoetrope::attention
