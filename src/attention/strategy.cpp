// Names of strategies, their fields, and every refusal.
#include "attention/strategy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/options.h"
#include "mesh/context_axis.h"

namespace zoetrope::attention {
namespace {

enum class Topology : uint8_t { kAny, kOneRank, kRing, kUlysses, kBoth };

// The published names, by field. What a name leaves open is decided by keys or defaults.
struct Name {
  const char* name;
  Topology topology;
  const char* direction;  // empty: no ring, any direction will do
  const char* softmax;    // empty: open
  const char* kernel;
};

constexpr const char* kBlockQ = "block_q";
constexpr const char* kBlockKv = "block_kv";

constexpr Name kNames[] = {
    {"auto", Topology::kAny, "", "", ""},
    {"dot_product", Topology::kOneRank, "", "", "scalar"},
    {"flash", Topology::kOneRank, "", "online", ""},
    {"ring", Topology::kRing, "forward", "online", ""},
    {"tokamax_ring", Topology::kRing, "forward", "online", ""},
    {"tokamax_ring_custom", Topology::kRing, "forward", "online", ""},
    {"ulysses", Topology::kUlysses, "", "online", ""},
    {"ulysses_custom", Topology::kUlysses, "", "online", ""},
    {"ulysses_custom_fixed_m", Topology::kUlysses, "", "fixed_max", ""},
    {"ulysses_ring", Topology::kBoth, "forward", "online", ""},
    {"ulysses_ring_custom", Topology::kBoth, "forward", "online", ""},
    {"ulysses_ring_custom_fixed_m", Topology::kBoth, "forward", "fixed_max", ""},
    {"ulysses_ring_custom_bidir", Topology::kBoth, "open", "online", ""},
};

const Name& find_name(const std::string& name) {
  for (const Name& candidate : kNames) {
    if (name == candidate.name) return candidate;
  }
  const std::string nearest = nearest_name(name, strategy_names());
  fail("attention={} is not known{} There are: {}", name,
       nearest.empty() ? "." : fmt::format("; did you mean '{}'?", nearest), fmt::join(strategy_names(), ", "));
}

template <typename Value>
struct Word {
  const char* word;
  Value value;
};

constexpr Word<Direction> kDirections[] = {
    {"forward", Direction::kForward}, {"two_way", Direction::kTwoWay}, {"open", Direction::kOpen}};
constexpr Word<Softmax> kSoftmaxes[] = {
    {"online", Softmax::kOnline}, {"fixed_max", Softmax::kFixedMax}, {"auto", Softmax::kAuto}};

template <typename Value, size_t N>
const char* word_of(Value value, const Word<Value> (&words)[N]) {
  for (const auto& word : words)
    if (word.value == value) return word.word;
  ZT_CHECK(false, "no word for {}", static_cast<int>(value));
  return "";
}

template <typename Value, size_t N>
Value parse_word(const char* key, const std::string& text, const Word<Value> (&words)[N]) {
  std::vector<const char*> legal;
  for (const auto& word : words) {
    if (text == word.word) return word.value;
    legal.push_back(word.word);
  }
  fail("{}={} is not known; legal values: {}", key, text, fmt::join(legal, ", "));
}

[[noreturn]] void contradiction(const Name& name, const char* key, const std::string& implied,
                                const std::string& given) {
  fail("attention={} means {}={}, but {}={} is given; leave one of them out", name.name, key, implied, key, given);
}

// U of a name, or 0 where it leaves that open.
int implied_ulysses(const Name& name, int degree) {
  switch (name.topology) {
    case Topology::kOneRank:
    case Topology::kRing:
      return 1;
    case Topology::kUlysses:
      return degree;
    default:
      return 0;
  }
}

void set_topology(Strategy& strategy, const Name& name, const StrategyOptions& options, int degree, int64_t heads) {
  if (name.topology == Topology::kOneRank && degree != 1) {
    fail(
        "attention={} runs on one rank, but the context degree is {}; strategies over ranks are ring, ulysses and "
        "ulysses_ring",
        name.name, degree);
  }
  const int implied = implied_ulysses(name, degree);
  if (options.ulysses_shards) {
    const int64_t given = *options.ulysses_shards;
    if (implied != 0 && given != implied)
      contradiction(name, "ulysses_shards", std::to_string(implied), std::to_string(given));
    mesh::check_ulysses(given, degree, heads);
    strategy.ulysses = static_cast<int>(given);
  } else if (implied != 0) {
    mesh::check_ulysses(implied, degree, heads);
    strategy.ulysses = implied;
  } else {
    strategy.ulysses = mesh::default_ulysses(degree, heads);
  }
  strategy.ring = degree / strategy.ulysses;
}

void set_block_sizes(Strategy& strategy, const StrategyOptions& options) {
  std::optional<int64_t> compute;
  try {
    for (const auto& [name, size] : parse_sizes(options.flash_block_sizes, block_size_names()))
      (name == kBlockQ ? strategy.block_q : name == kBlockKv ? strategy.block_kv : compute.emplace()) = size;
  } catch (const Error& error) {
    fail("flash_block_sizes={}: {}", options.flash_block_sizes, error.what());
  }
  if (compute && *compute != strategy.block_kv) {
    fail(
        "flash_block_sizes={}: block_kv_compute={} is not possible; on CPUs keys are computed by panels of registers "
        "inside block_kv, which have one size: leave it out, or give it the value of block_kv",
        options.flash_block_sizes, *compute);
  }
}

}  // namespace

const std::vector<std::string>& block_size_names() {
  static const std::vector<std::string> names{kBlockQ, kBlockKv, "block_kv_compute"};
  return names;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Name& name : kNames) names.emplace_back(name.name);
  return names;
}

const char* direction_name(Direction direction) { return word_of(direction, kDirections); }
const char* softmax_name(Softmax softmax) { return word_of(softmax, kSoftmaxes); }

Strategy parse_strategy(const StrategyOptions& options, int context_degree, int64_t heads) {
  ZT_CHECK(context_degree >= 1 && heads >= 1);
  const Name& name = find_name(options.attention);
  Strategy strategy;
  set_topology(strategy, name, options, context_degree, heads);

  const std::string implied_direction = name.direction, implied_softmax = name.softmax;
  if (!implied_direction.empty()) strategy.direction = parse_word("ring_direction", implied_direction, kDirections);
  if (!options.ring_direction.empty()) {
    strategy.direction = parse_word("ring_direction", options.ring_direction, kDirections);
    if (!implied_direction.empty() && options.ring_direction != implied_direction)
      contradiction(name, "ring_direction", implied_direction, options.ring_direction);
  }
  if (!implied_softmax.empty()) strategy.softmax = parse_word("softmax", implied_softmax, kSoftmaxes);
  if (!options.softmax.empty()) {
    const Softmax given = parse_word("softmax", options.softmax, kSoftmaxes);
    if (!implied_softmax.empty() && given != Softmax::kAuto && given != strategy.softmax)
      contradiction(name, "softmax", implied_softmax, options.softmax);
    if (implied_softmax.empty()) strategy.softmax = given;
  }
  // Out of int's range, it is out of the legal one too.
  strategy.head_chunks =
      static_cast<int>(std::clamp<int64_t>(options.ulysses_attention_chunks.value_or(1), 0, kMostHeadChunks + 1));
  strategy.kernel = name.kernel;
  set_block_sizes(strategy, options);
  if (!options.use_base2_exp) fail("use_base2_exp=false is not possible: the kernels compute powers of 2 only");
  strategy.k_smoothing = options.use_k_smoothing;
  strategy.tile_search = options.enable_tile_search;
  strategy.deterministic = options.deterministic;
  return checked_strategy(strategy, context_degree, heads);
}

OpenFields open_fields(const StrategyOptions& options) {
  const Name& name = find_name(options.attention);
  const bool one = name.topology == Topology::kOneRank;
  OpenFields open;
  open.ulysses = options.ulysses_shards;
  if (one || name.topology == Topology::kRing) open.ulysses = 1;
  if (one || name.topology == Topology::kUlysses) open.ring = 1;
  open.topology = !open.ulysses && !open.ring;
  open.direction = options.ring_direction.empty() && name.topology == Topology::kAny;
  open.head_chunks = !options.ulysses_attention_chunks && !one;
  return open;
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
  if (problem.dtype != DType::kF32 && problem.dtype != DType::kBF16)
    fail("attention: dtype {} is not possible; legal are F32 and BF16", dtype_name(problem.dtype));
  if (!std::isfinite(problem.scale)) fail("attention: scale {} is not finite", problem.scale);
  Problem checked = problem;
  if (checked.scale == 0) checked.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  return checked;
}

Strategy checked_strategy(const Strategy& strategy, int degree, int64_t heads) {
  Strategy checked = strategy;
  if (strategy.ulysses < 0 || strategy.ring < 0) {
    fail("ulysses={} and ring={} must each be at least 1, or 0 for what is left of the context degree {}",
         strategy.ulysses, strategy.ring, degree);
  }
  if (checked.ulysses == 0 && checked.ring == 0) checked.ulysses = mesh::default_ulysses(degree, heads);
  if (checked.ulysses == 0) {
    if (degree % checked.ring != 0) {
      fail("ring={} does not divide the context degree {}; legal values: {}", checked.ring, degree,
           fmt::join(parallel::legal_ulysses(degree, degree), ", "));
    }
    checked.ulysses = degree / checked.ring;
  }
  mesh::check_ulysses(checked.ulysses, degree, heads);
  if (checked.ring == 0) checked.ring = degree / checked.ulysses;
  if (const int64_t ranks = int64_t{checked.ulysses} * checked.ring; ranks != degree) {
    fail("ulysses={} × ring={} make {} ranks, but the context degree is {}; with ulysses={} the ring is {}",
         checked.ulysses, checked.ring, ranks, degree, checked.ulysses, degree / checked.ulysses);
  }
  if (checked.head_chunks < 1 || checked.head_chunks > kMostHeadChunks) {
    fail("ulysses_attention_chunks={} must be from 1, which is one group of all heads, to {}", checked.head_chunks,
         kMostHeadChunks);
  }
  if (checked.block_q < 0 || checked.block_kv < 0) {
    fail("flash_block_sizes: block_q={} and block_kv={} must be at least 1, or 0 for the tuned ones", checked.block_q,
         checked.block_kv);
  }
  if (checked.tile_search && checked.deterministic) {
    fail(
        "enable_tile_search=true with deterministic=true is not possible: what a search finds depends on the machine "
        "and the moment; leave one of them out");
  }
  // Lazy online costs up to 0.3 % more than fixed-max on CPUs, within noise, and fixed-max reads all keys once more for
  // its statistics and, over a ring, waits for those of others: online wins at every length measured.
  if (checked.softmax == Softmax::kAuto) checked.softmax = Softmax::kOnline;
  return checked;
}

parallel::Direction schedule_direction(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return parallel::Direction::kForward;
    case Direction::kTwoWay:
      return parallel::Direction::kTwoWay;
    case Direction::kOpen:
      return parallel::Direction::kOpen;
  }
  ZT_CHECK(false, "direction {}", static_cast<int>(direction));
  return {};
}

parallel::Sizes schedule_sizes(const Problem& problem) {
  return {problem.batch, problem.tokens, problem.heads, problem.head_dim,
          static_cast<int64_t>(dtype_size(problem.dtype))};
}

}  // namespace zoetrope::attention
