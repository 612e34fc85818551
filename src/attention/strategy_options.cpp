#include "attention/strategy_options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/print.h"
#include "base/words.h"
#include "parallel/layout.h"

namespace zoetrope::attention {
namespace {

// The words of a key, which may be unset where To is an optional.
template <typename To, typename Value, size_t N>
std::vector<std::pair<std::string, To>> words(const Value (&values)[N], const char* (*name)(Value)) {
  std::vector<std::pair<std::string, To>> words;
  for (const Value value : values) words.emplace_back(name(value), value);
  return words;
}

std::optional<int64_t> parse_shards(std::string_view text) {
  const int64_t shards = parse_integer(text, {});
  return shards == -1 ? std::nullopt : std::optional(shards);
}
std::string shards_text(const std::optional<int64_t>& shards) { return shards ? fmt::to_string(*shards) : ""; }

constexpr const char *kEven = "even", *kAutomatic = "auto";

int parse_weight(std::string_view text) {
  try {
    return static_cast<int>(parse_integer(trimmed(text, " \t"), {1, parallel::kMostShardWeight}));
  } catch (const Error& error) {
    fail("{}; legal are even, auto, or one whole number for each context rank, as 2,1", error.what());
  }
}

ShardWeights parse_weights(std::string_view text) {
  ShardWeights weights;
  if (text == kEven) return weights;
  weights.automatic = text == kAutomatic;
  if (weights.automatic) return weights;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    weights.fixed.push_back(parse_weight(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return weights;
}
std::string weights_text(const ShardWeights& weights) {
  if (weights.automatic) return kAutomatic;
  return weights.fixed.empty() ? kEven : fmt::format("{}", fmt::join(weights.fixed, ","));
}

}  // namespace

void describe_layout_options(OptionSet& set, StrategyOptions& o) {
  auto softmaxes = words<std::optional<Softmax>>(parallel::kSoftmaxes, parallel::softmax_name);
  softmaxes.emplace_back("auto", std::nullopt);
  const auto as_it_is = [](const auto& text) { return std::string(text); };
  set.value<std::string>("attention", o.attention, "auto, flash, gather, ring, ulysses, ulysses_ring, …", as_it_is,
                         as_it_is, "strategy; docs/attention.md lists all names")
      .value<std::optional<int64_t>>(
          "ulysses_shards", o.ulysses_shards, "integer", parse_shards, shards_text,
          "Ulysses degree: a divisor of the context ranks, at most the heads; unset or -1: the planner's choice")
      .integer("ulysses_attention_chunks", o.ulysses_attention_chunks, {1, parallel::kMostHeadChunks},
               "groups of heads; the exchange of one overlaps the attention of another; unset: the planner's choice")
      .choice("ring_direction", o.ring_direction,
              words<std::optional<Direction>>(parallel::kDirections, parallel::direction_name),
              "how K/V blocks travel: one way round, both ways round, or both ways along a chain; unset: the planner's "
              "choice with attention=auto, else as the name says")
      .choice("softmax", o.softmax, softmaxes,
              "running reference per row, or one fixed offset per row; auto: as the name says, with attention=auto the "
              "faster one as measured");
}

void describe_strategy_options(OptionSet& set, StrategyOptions& o) {
  describe_layout_options(set, o);
  set.value<ShardWeights>("shard_weights", o.shard_weights, "even, auto, or whole numbers 1 … 1000 as 2,1",
                          parse_weights, weights_text,
                          "share of the tokens and heads of each context rank: equal, by measured speed, or in "
                          "proportion to these numbers, one for each")
      .or_list("shard_weights");
  BlockSizes& blocks = o.flash_block_sizes;
  set.sizes(
         "flash_block_sizes",
         {{"block_q", &blocks.block_q}, {"block_kv", &blocks.block_kv}, {"block_kv_compute", &blocks.block_kv_compute}},
         "rows of queries and keys of the kernel's tile, rounded to what it can do, on CPUs at most 4096 and 8192; "
         "block_kv_compute has no effect there; unset: tuned",
         {"block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq", "block_kv_dq",
          "use_fused_bwd_kernel", "block_kv_compute_in", "heads_per_tile", "vmem_limit_bytes"})
      .flag("use_base2_exp", o.use_base2_exp, "exponents to base 2; only true is possible")
      .flag("use_k_smoothing", o.use_k_smoothing, "fixed_max: offsets about the mean key, a tighter bound")
      .flag("enable_tile_search", o.enable_tile_search, "search the tile sizes of a new problem, and remember them")
      .flag("deterministic", o.deterministic,
            "no tuned tile sizes: the same bits for any number of threads and any Ulysses degree")
      .choice("kv_exchange_dtype", o.kv_exchange_dtype,
              words<KVExchange>(parallel::kKVExchanges, parallel::kv_exchange_name),
              "dtype of keys and values between ranks: as_computed, or rounded to bf16 (where the transformer computes "
              "in float32) or int8 (a scale per 32 values)")
      .choice("attention_dtype", o.attention_dtype,
              std::vector<std::pair<std::string, AttentionDtype>>{{"as_computed", AttentionDtype::kAsComputed},
                                                                  {"int8", AttentionDtype::kInt8}},
              "what self-attention is multiplied in: as_computed, or where that is bf16 in int8")
      .number("attention_int8_limit", o.attention_int8_limit, {1e-6, kInt8Limit},
              "largest relative L2 error of a head's output in int8, on a sample; other heads stay bf16; "
              "unset: 0.05, or what a budget allows");
}

}  // namespace zoetrope::attention
