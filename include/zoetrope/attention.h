// Exact attention over a sequence that is sharded over ranks (context parallelism). A strategy says how the work is
// spread, plan() validates it once and books all memory, run() computes. Every strategy gives the same numbers.
//
//   rank c of P owns the global tokens [⌊cS/P⌋, ⌊(c+1)S/P⌋), uneven and empty shards included, nothing padded
//   P = U × R: groups of U neighbours trade tokens for heads (Ulysses), K/V blocks go round R groups (ring)
//
//   auto attention = attention::plan({.batch = 1, .tokens = 32760, .heads = 40, .head_dim = 128, .dtype = kBF16},
//                                    {.layout = {.ulysses = 2}}, communicator, /*threads=*/8);
//   attention.run(q, k, v, {}, o);                    // buffers of your own: [B, tokens().size(), H, D]
//
// A model saves the copy by writing q, k, v where input_slots() points and calling run(mask, o).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/context_layout.h"
#include "zoetrope/head_slot.h"
#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

namespace zoetrope {
class Stream;
namespace comm {
class Communicator;
}
}  // namespace zoetrope

namespace zoetrope::attention {

enum class MaskKind : uint8_t {
  kNone,
  kKeyLengths,  // per batch entry, the first so many global tokens are valid keys
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
  // Cross-attention: so many keys beside the sequence, whole on every rank. The queries stay where they are and nothing
  // is sent, whatever the strategy. 0: the keys are the sequence's own.
  int64_t key_tokens = 0;
};

using parallel::Direction;
using parallel::Softmax;

// How it is spread, and how the kernel works.
struct Strategy {
  parallel::ContextRequest layout{};
  std::optional<Softmax> softmax{};  // unset: the faster
  std::string kernel{};              // a flash-attention implementation by name; empty: the fastest that can
  // Query rows and keys of a kernel's tile; 0: what was tuned for this machine, else the kernel's table.
  int64_t block_q = 0;
  int64_t block_kv = 0;
  bool k_smoothing = true;     // fixed-max: offsets about the mean key
  bool deterministic = false;  // tiles as dtype, D and S say and nothing else: no tuned sizes, no search
  bool tile_search = false;    // where this machine was not tuned for the problem: do it now, and remember
};

// The configuration keys of the same names, as a user writes them. What is unset and not said by the name is decided by
// the planner in generate() and TextToVideo, and by parse_strategy() as stated here.
struct StrategyOptions {
  std::string attention = "auto";         // one of strategy_names()
  std::optional<int64_t> ulysses_shards;  // unset: as the name says, else the largest divisor of P that is ≤ H
  std::optional<int64_t> ulysses_attention_chunks;  // unset: 1
  std::string ring_direction;                       // forward, two_way, open; empty: as the name says, else forward
  std::string softmax;                              // online, fixed_max, auto; empty: as the name says, else auto
  std::string flash_block_sizes;                    // {block_q: 256, block_kv: 128}, any of them; empty: tuned
  bool use_base2_exp = true;                        // only true
  bool use_k_smoothing = true;
  bool enable_tile_search = false;
  bool deterministic = false;
};

// A name sets its fields. Knows no planner: plan() and this keep to their rules, whatever machine they run on. Throws
// Error for an unknown name (with the nearest), an illegal value (with the legal ones), and a key that contradicts the
// name.
Strategy parse_strategy(const StrategyOptions& options, int context_degree, int64_t heads);
std::vector<std::string> strategy_names();

// Masks are in global positions and the same on every rank.
struct Mask {
  std::span<const int64_t> key_lengths;  // [B]
  TensorView key_mask;                   // [B, S] (or key_tokens) U8 or BOOL, non-zero = valid
};

// Where q, k and v of this rank's tokens are to be written, range of heads by range of heads.
struct InputSlots {
  // Each covers [0, H) once, ascending; out is [B, tokens().size(), heads.size(), D], of k and v in cross-attention
  // [B, key_tokens, heads.size(), D].
  std::vector<HeadSlot> q, k, v;
};

// What the calls to run() did on this rank since the start or reset_counters().
struct Counters {
  struct Traffic {
    int64_t bytes_sent = 0;      // to other ranks
    int64_t bytes_received = 0;  // from other ranks
    double wait_seconds = 0;     // spent waiting for them
  };
  Traffic ulysses;           // the exchange and its way back
  Traffic ring;              // K/V blocks, and in fixed-max their statistics
  int64_t bytes_copied = 0;  // inside the rank: packed and unpacked
  // Groups of query rows × blocks of keys, by how their softmax went; online ones are counted in fixed-max too.
  int64_t tiles_fixed = 0;
  int64_t tiles_online = 0;
};

// A planned attention of one rank. Made by plan() only; calls are collective over the context ranks.
class ContextAttention {
 public:
  ~ContextAttention();
  ContextAttention(ContextAttention&&) noexcept;

  const Problem& problem() const;  // scale filled in
  const parallel::ContextLayout& layout() const;
  Softmax softmax() const;
  const char* kernel() const;  // the implementation that computes

  // This rank's tokens, as global positions.
  IndexRange tokens() const;

  // The same places for every run; what is written there is lost in run().
  const InputSlots& input_slots() const;
  // Attends what the slots hold. A row without a valid key yields zeros.
  void run(const Mask& mask, const TensorView& o);  // [B, tokens().size(), H, D], D contiguous

  // Packs first. Views [B, tokens().size(), H, D] (k, v in cross-attention [B, key_tokens, H, D]) with D contiguous and
  // any other strides.
  void run(const TensorView& q, const TensorView& k, const TensorView& v, const Mask& mask, const TensorView& o);

  Counters counters() const;
  void reset_counters();
  size_t workspace_bytes() const;  // booked by plan(), kernel state included

 private:
  friend ContextAttention plan(const Problem&, const Strategy&, comm::Communicator&, Stream&);
  friend ContextAttention plan(const Problem&, const Strategy&, comm::Communicator&, int);
  struct Impl;
  explicit ContextAttention(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Validates everything and books the workspace; afterwards nothing allocates. Collective: all ranks must bring the same
// problem and strategy, and ranks that disagree are refused. Throws Error with the legal values where something is not
// possible. The communicator (its ranks are the context ranks) and the stream must outlive the attention.
ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream);
// With `threads` threads of its own for this rank.
ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, int threads);

}  // namespace zoetrope::attention
