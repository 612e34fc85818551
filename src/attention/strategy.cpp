// Names of strategies, their fields, and every refusal.
#include "attention/strategy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "base/error.h"
#include "base/options.h"
#include "kernels/flash_attention/flash_attention.h"
#include "parallel/exchange.h"
#include "parallel/shards.h"

namespace zoetrope::attention {
namespace {

constexpr const char* kFlashName = "flash";

enum class Topology : uint8_t { kAny, kFlash, kGather, kRing, kUlysses, kTwoDimensional };

// The published names. What one is about no key can deny: its topology, and softmax and direction where it has them. A
// direction both ways leaves open which one. The rest are defaults.
struct Name {
  const char* name;
  Topology topology;
  std::optional<Softmax> softmax{};
  std::optional<Direction> direction{};

  bool denies(Direction given) const {
    return direction && given != *direction && !(goes_both_ways(*direction) && goes_both_ways(given));
  }
};

constexpr Name kNames[] = {
    {"auto", Topology::kAny},
    {kFlashName, Topology::kFlash},
    {"tokamax_flash", Topology::kFlash},
    {"cudnn_flash_te", Topology::kFlash},
    {"dot_product", Topology::kFlash},
    {"gather", Topology::kGather},
    {"ring", Topology::kRing},
    {"tokamax_ring", Topology::kRing},
    {"tokamax_ring_custom", Topology::kRing},
    {"ulysses", Topology::kUlysses},
    {"ulysses_custom", Topology::kUlysses},
    {"ulysses_custom_fixed_m", Topology::kUlysses, Softmax::kFixedMax},
    {"ulysses_ring", Topology::kTwoDimensional},
    {"ulysses_ring_custom", Topology::kTwoDimensional},
    {"ulysses_ring_custom_fixed_m", Topology::kTwoDimensional, Softmax::kFixedMax},
    {"ulysses_ring_custom_bidir", Topology::kTwoDimensional, {}, Direction::kOpen},
};

const Name& find_name(const std::string& name) {
  for (const Name& candidate : kNames) {
    if (name == candidate.name) return candidate;
  }
  const std::string nearest = nearest_name(name, strategy_names());
  fail("attention={} is not known{} There are: {}", name,
       nearest.empty() ? "." : fmt::format("; did you mean '{}'?", nearest), fmt::join(strategy_names(), ", "));
}

[[noreturn]] void contradiction(const Name& name, const char* key, const std::string& implied,
                                const std::string& given) {
  fail("attention={} means {}={}, but {}={} is given; leave one of them out", name.name, key, implied, key, given);
}

// Checks what the name and the keys say about the context against the number of its ranks.
void check_name(const Name& name, const StrategyOptions& options, int degree, int64_t heads) {
  const std::optional<int64_t>& given = options.ulysses_shards;
  if (name.topology == Topology::kTwoDimensional) parallel::check_two_dimensional(given, degree, heads);
  if (!given) return;
  if (name.topology == Topology::kUlysses && *given != degree)
    contradiction(name, "ulysses_shards", std::to_string(degree), std::to_string(*given));
  parallel::check_ulysses(*given, degree, heads);
}

// The fields of the context that the name or a key sets.
parallel::ContextRequest request_of(const Name& name, const StrategyOptions& options) {
  parallel::ContextRequest request;
  // Over ranks, flash is a gather.
  const bool gathers = name.topology == Topology::kFlash || name.topology == Topology::kGather;
  const std::optional<int64_t>& shards = options.ulysses_shards;
  if (gathers || name.topology == Topology::kRing) {
    if (shards && *shards != 1) contradiction(name, "ulysses_shards", "1", std::to_string(*shards));
    request.ulysses = 1;
  } else if (shards) {
    request.ulysses = static_cast<int>(std::clamp<int64_t>(*shards, INT_MIN, INT_MAX));
  }
  if (gathers || name.topology == Topology::kUlysses) request.ring = 1;
  request.two_dimensional = name.topology == Topology::kTwoDimensional;
  // Any other name, and any key about the degrees, the ring or the head chunks, leaves the gather out.
  const bool refined = shards || options.ring_direction || options.ulysses_attention_chunks;
  if (!gathers && (name.topology != Topology::kAny || refined)) request.gather = 1;
  request.direction = options.ring_direction;
  if (!request.direction && name.topology != Topology::kAny)
    request.direction = name.direction.value_or(Direction::kForward);
  if (request.direction && name.denies(*request.direction))
    contradiction(name, "ring_direction", direction_name(*name.direction), direction_name(*request.direction));
  // Out of int's range, it is out of the legal one too.
  if (const std::optional<int64_t>& chunks = options.ulysses_attention_chunks)
    request.head_chunks = static_cast<int>(std::clamp<int64_t>(*chunks, 0, parallel::kMostHeadChunks + 1));
  else if (gathers) request.head_chunks = 1;
  request.shard_weights = options.shard_weights.fixed;
  return request;
}

// Left open with a name, it is what the name says, else what holds without a planner.
std::optional<Softmax> softmax_of(const Name& name, const StrategyOptions& options) {
  const std::optional<Softmax>& given = options.softmax;
  if (name.softmax && given && *given != *name.softmax)
    contradiction(name, "softmax", softmax_name(*name.softmax), softmax_name(*given));
  return given || name.topology == Topology::kAny ? given : name.softmax.value_or(Softmax::kOnline);
}

void set_block_sizes(Strategy& strategy, const StrategyOptions& options) {
  const BlockSizes& sizes = options.flash_block_sizes;
  strategy.block_q = sizes.block_q;
  strategy.block_kv = sizes.block_kv;
  if (sizes.block_kv_compute < 0)
    fail("flash_block_sizes: block_kv_compute={} must be at least 1, or 0", sizes.block_kv_compute);
}

// Programs can bring any number as an enum.
template <typename Value, size_t N, typename Text>
void check_value(const char* name, Value value, const Value (&values)[N], Text&& text) {
  if (std::find(std::begin(values), std::end(values), value) != std::end(values)) return;
  std::vector<std::string> legal;
  for (const Value known : values) legal.emplace_back(text(known));
  fail("{}: there is no value {}; legal are {}", name, static_cast<int>(value), fmt::join(legal, ", "));
}

void check_values(std::optional<Direction> direction, std::optional<Softmax> softmax, KVExchange exchange,
                  AttentionDtype attention_dtype, const parallel::SettingNames& names) {
  constexpr AttentionDtype kAttentionDtypes[] = {AttentionDtype::kAsComputed, AttentionDtype::kInt8};
  if (direction) check_value(names.direction, *direction, parallel::kDirections, parallel::direction_name);
  if (softmax) check_value("softmax", *softmax, parallel::kSoftmaxes, parallel::softmax_name);
  check_value(names.kv_exchange, exchange, parallel::kKVExchanges, parallel::kv_exchange_name);
  check_value("attention_dtype", attention_dtype, kAttentionDtypes,
              [](AttentionDtype d) { return d == AttentionDtype::kInt8 ? "int8" : "as_computed"; });
}

}  // namespace

bool names_topology(const StrategyOptions& options) {
  const Topology topology = find_name(options.attention).topology;
  return topology != Topology::kAny && topology != Topology::kFlash;
}

void require_fixed_shards(const StrategyOptions& options, const char* command) {
  if (!options.shard_weights.automatic) return;
  fail(
      "shard_weights=auto is not possible in {}: ranks are measured from step to step of a video; give a list, or even",
      command);
}

std::string strategy_note(const StrategyOptions& options) {
  const Name& name = find_name(options.attention);
  if (name.topology != Topology::kFlash || name.name == std::string_view(kFlashName)) return "";
  return fmt::format("attention={} is computed as {}", name.name, kFlashName);
}

std::string tile_note(const BlockSizes& sizes) {
  std::vector<std::string> notes;
  const auto most = [&](const char* name, int64_t asked, int64_t possible) {
    if (asked > possible) notes.push_back(fmt::format("{}={} is computed as {}, the most here", name, asked, possible));
  };
  most("block_q", sizes.block_q, kernels::kMostTileRows);
  most("block_kv", sizes.block_kv, kernels::kMostTileKeys);
  if (sizes.block_kv_compute > 0 && sizes.block_kv_compute != sizes.block_kv) {
    notes.push_back(
        fmt::format("block_kv_compute={} has no effect on CPUs, where keys are computed by panels of registers",
                    sizes.block_kv_compute));
  }
  return notes.empty() ? "" : fmt::format("flash_block_sizes: {}", fmt::join(notes, "; "));
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Name& name : kNames) names.emplace_back(name.name);
  return names;
}

Strategy requested_strategy(const StrategyOptions& options) {
  const Name& name = find_name(options.attention);
  check_values(options.ring_direction, options.softmax, options.kv_exchange_dtype, options.attention_dtype,
               parallel::kKeyNames);
  Strategy strategy;
  strategy.layout = request_of(name, options);
  strategy.softmax = softmax_of(name, options);
  set_block_sizes(strategy, options);
  if (options.shard_weights.automatic && options.deterministic) {
    fail(
        "shard_weights=auto with deterministic=true is not possible: what is measured depends on the machine and the "
        "moment; give a list, or leave one of them out");
  }
  if (!options.use_base2_exp) fail("use_base2_exp=false is not possible: the kernels compute powers of 2 only");
  strategy.k_smoothing = options.use_k_smoothing;
  strategy.tile_search = options.enable_tile_search;
  strategy.deterministic = options.deterministic;
  strategy.kv_exchange = options.kv_exchange_dtype;
  strategy.attention_dtype = options.attention_dtype;
  strategy.attention_int8_limit = options.attention_int8_limit.value_or(kInt8Limit);
  if (options.attention_dtype != AttentionDtype::kInt8 && strategy.attention_int8_limit != kInt8Limit)
    fail("attention_int8_limit={}: is of attention_dtype=int8; set that, or leave attention_int8_limit out",
         strategy.attention_int8_limit);
  return strategy;
}

StrategyOptions on_one_rank(const StrategyOptions& options) {
  StrategyOptions alone;
  alone.deterministic = options.deterministic;
  alone.attention_dtype = options.attention_dtype;
  alone.attention_int8_limit = options.attention_int8_limit;
  return alone;
}

Strategy parse_strategy(const StrategyOptions& options, int context_degree, int64_t heads) {
  if (context_degree < 1) fail("attention: a context of {} ranks; there must be at least one", context_degree);
  if (heads < 1) fail("attention: {} heads; there must be at least one", heads);
  check_name(find_name(options.attention), options, context_degree, heads);
  return checked_strategy(requested_strategy(options), context_degree, heads);
}

Problem checked_problem(const Problem& problem) {
  if (problem.batch < 1) fail("attention: batch {} must be at least 1", problem.batch);
  if (problem.tokens < 1) fail("attention: {} tokens; the sequence needs at least one", problem.tokens);
  if (problem.key_tokens < 0) {
    fail("attention: {} key tokens; there must be at least one, or 0 where the keys are the sequence's own",
         problem.key_tokens);
  }
  if (problem.heads < 1) fail("attention: {} heads; there must be at least one", problem.heads);
  constexpr int64_t kMostHeadDim = 1024;
  if (problem.head_dim < 1 || problem.head_dim > kMostHeadDim)
    fail("attention: head_dim {} must be from 1 to {}", problem.head_dim, kMostHeadDim);
  // Far beyond any machine, and far below what 64 bits can count.
  constexpr double kMostElements = 0x1p48;
  const double row =
      static_cast<double>(problem.batch) * static_cast<double>(problem.heads) * static_cast<double>(problem.head_dim);
  for (const auto& [rows, name] : {std::pair(problem.tokens, "tokens"), std::pair(problem.key_tokens, "key tokens")}) {
    if (row * static_cast<double>(rows) <= kMostElements) continue;
    fail("attention: batch {}, {} {}, {} heads and head_dim {} are more than any machine holds", problem.batch, rows,
         name, problem.heads, problem.head_dim);
  }
  if (problem.mask > MaskKind::kKeyMask)
    fail("attention: there is no mask {}; legal are none, key_lengths and key_mask", static_cast<int>(problem.mask));
  if (problem.dtype > DType::kI8)
    fail("attention: there is no dtype {}; legal are F32 and BF16", static_cast<int>(problem.dtype));
  if (problem.dtype != DType::kF32 && problem.dtype != DType::kBF16)
    fail("attention: dtype {} is not possible; legal are F32 and BF16", dtype_name(problem.dtype));
  if (!std::isfinite(problem.scale)) fail("attention: scale {} is not finite", problem.scale);
  Problem checked = problem;
  if (checked.scale == 0) checked.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  return checked;
}

Strategy checked_strategy(const Strategy& strategy, int degree, int64_t heads, const parallel::SettingNames& names) {
  check_values(strategy.layout.direction, strategy.softmax, strategy.kv_exchange, strategy.attention_dtype, names);
  Strategy checked = strategy;
  checked.layout = parallel::ContextRequest::exactly(filled(strategy.layout, degree, heads, names));
  if (checked.block_q < 0 || checked.block_kv < 0) {
    fail("{}block_q={} and block_kv={} must be at least 1, or 0 for the tuned ones", names.block_sizes, checked.block_q,
         checked.block_kv);
  }
  if (checked.tile_search && checked.deterministic) {
    fail(
        "{}=true with deterministic=true is not possible: what a search finds depends on the machine and the moment; "
        "leave one of them out",
        names.tile_search);
  }
  // Lazy online costs up to 0.3 % more than fixed-max on CPUs, within noise, and fixed-max reads all keys once more for
  // its statistics and, over a ring, waits for those of others: online wins at every length measured.
  if (!checked.softmax) checked.softmax = Softmax::kOnline;
  return checked;
}

void check_kv_exchange(KVExchange exchange, DType dtype, const parallel::SettingNames& names) {
  if (exchange != KVExchange::kBFloat16 || dtype != DType::kBF16) return;
  fail("{0}=bf16: keys and values are computed in bf16 and travel so anyway; leave it out, or use {0}=int8",
       names.kv_exchange);
}

void check_attention_dtype(AttentionDtype attention_dtype, DType dtype) {
  if (attention_dtype == AttentionDtype::kAsComputed) return;
  if (const std::string why = kernels::FlashAttention::int8_refusal(dtype); !why.empty())
    fail("attention_dtype=int8: {}; leave it out", why);
}

void check_int8_limit(double limit) {
  if (!(limit > 0 && limit <= kInt8Limit))
    fail("attention_int8_limit={}: must be above 0 and at most {}", limit, kInt8Limit);
}

std::optional<kernels::NarrowFormat> narrow_format(KVExchange exchange) {
  switch (exchange) {
    case KVExchange::kAsComputed:
      return std::nullopt;
    case KVExchange::kBFloat16:
      return kernels::NarrowFormat::kBFloat16;
    case KVExchange::kInt8:
      return kernels::NarrowFormat::kInt8;
  }
  ZT_CHECK(false, "exchange {}", static_cast<int>(exchange));
  return {};
}

parallel::Sizes sizes_of(const Problem& problem, KVExchange exchange) {
  parallel::Sizes sizes{problem.batch, problem.tokens, problem.heads, problem.head_dim,
                        static_cast<int64_t>(dtype_size(problem.dtype))};
  sizes.log_sum_exp = problem.log_sum_exp;
  sizes.kv_vector_bytes = parallel::kv_vector_bytes(exchange, problem.head_dim);
  return sizes;
}

}  // namespace zoetrope::attention
