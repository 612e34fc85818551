// How the ranks of a run are used: one value that options are resolved to, ranks agree on, the engine follows, the
// planner prices and reports print. Not here: who owns which tokens and heads (shards.h), what the keys mean
// (attention/, pipeline/), which layout is best (planner/).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/context_layout.h"

namespace zoetrope::parallel {

// More chunks than heads leave empty ones; no run needs this many.
inline constexpr int kMostHeadChunks = 4096;
// Of the weights that ranks' shards can have. Finer ones would change no shard that can be measured.
inline constexpr int kMostShardWeight = 1000;

// ranks = data × context × tensor. Ranks of one tensor group are neighbours, for they add up activations several times
// a layer. A context is every tensor-th rank of a run of neighbours (one node, one chip), which is where attention
// sends; the data axis, which exchanges once a step, crosses the slow links.
struct ParallelLayout {
  int data = 1;           // parts that the guidance branches are dealt to
  ContextLayout context;  // of the sequence of one part
  bool sharded = true;    // false: every rank of a context computes the whole sequence
  int vae_ranks = 1;      // the first ranks of the job, which share the rows of a frame
  int text_ranks = 1;     // those that share the text encoder's layers
  // Neighbours that share the transformer's blocks: each keeps a part, and gathers a block before it is used. Ranks of
  // one process have one copy whatever it says.
  int weight_shards = 1;
  // Neighbours that compute the same tokens, each with its share of the heads and of the feed-forward.
  int tensor = 1;

  constexpr int ranks() const { return data * context.ranks() * tensor; }
  constexpr int data_index(int rank) const { return rank / (context.ranks() * tensor); }
  constexpr int context_index(int rank) const { return rank / tensor % context.ranks(); }
  constexpr int tensor_index(int rank) const { return rank % tensor; }
  constexpr int rank_of(int data_index, int context_index, int tensor_index) const {
    return (data_index * context.ranks() + context_index) * tensor + tensor_index;
  }
  // What attention spreads a sequence over: one rank where sequences stay whole.
  ContextLayout of_sequence() const { return sharded ? context : context.alone(); }
  friend bool operator==(const ParallelLayout&, const ParallelLayout&) = default;
};

// What is fixed of it before anything is chosen: by keys, by the name of a strategy, by what the run is.
struct LayoutRequest {
  std::optional<int> data, context_ranks;
  bool one_context = false;  // data 1 wherever the context can take all ranks
  ContextRequest context;
  std::optional<int> vae_ranks, text_ranks, weight_shards, tensor;

  static LayoutRequest exactly(const ParallelLayout& layout);
};

// What messages call the settings of an attention: the keys of a configuration, or fields of attention::Strategy.
struct SettingNames {
  const char *ulysses, *head_chunks, *direction, *gather, *two_dimensional, *one_dimensional;
  const char *kv_exchange, *tile_search, *block_sizes;
};
inline constexpr SettingNames kKeyNames{"ulysses_shards",         "ulysses_attention_chunks",
                                        "ring_direction",         "attention=gather, or flash over ranks",
                                        "attention=ulysses_ring", "attention=ring or attention=ulysses",
                                        "kv_exchange_dtype",      "enable_tile_search",
                                        "flash_block_sizes: "};
inline constexpr SettingNames kFieldNames{"ulysses",     "head_chunks",          "direction",
                                          "gather",      "two_dimensional=true", "two_dimensional=false",
                                          "kv_exchange", "tile_search",          ""};

// Throws Error where `ulysses` is not one of legal_ulysses(), which it lists.
void check_ulysses(int64_t ulysses, int ranks, int64_t heads, const SettingNames& names = kKeyNames);
// Over how many of `ranks` ranks a model with `heads` heads can be divided by tensors: what divides both.
std::vector<int> legal_tensor(int ranks, int64_t heads);
// Throws Error where `tensor` is not one of legal_tensor(), which it lists.
void check_tensor(int64_t tensor, int ranks, int64_t heads);
// Throws Error where `ranks` ranks have no split with U > 1 and R > 1, or none with the given U.
void check_two_dimensional(std::optional<int64_t> ulysses, int ranks, int64_t heads,
                           const SettingNames& names = kKeyNames);
// Throws Error, with the legal values, for what `ranks` ranks cannot do with `heads` heads.
void check(const ContextLayout& layout, int ranks, int64_t heads, const SettingNames& names = kKeyNames);
void check(const ParallelLayout& layout, int ranks, int64_t heads);

// The request with its open fields by rule, for a context of `ranks` ranks; the planner fills them better. Throws Error
// as check() does.
ContextLayout filled(const ContextRequest& request, int ranks, int64_t heads, const SettingNames& names = kKeyNames);

// What shards of these weights are; equal ones are even shards, which have none.
std::vector<int> reduced(std::vector<int> shard_weights);

// How many settings are not the default, the degrees aside.
int count_changed(const ContextLayout& layout);

// As people read it: "Ulysses 2 x ring 2" or "gather 4".
std::string degrees_text(const ContextLayout& layout);
// The degrees, and after these what is not the default: the ring's direction, the softmax, the head chunks, the shard
// weights.
std::string text(const ContextLayout& layout, Softmax softmax);
// "data 1 x context 4 (Ulysses 2 x ring 2) x tensor 2"
std::string text(const ParallelLayout& layout, Softmax softmax);

}  // namespace zoetrope::parallel
