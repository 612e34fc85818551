// Names of strategies, their fields, and every refusal.
#include "attention/strategy.h"

#include <fmt/ranges.h>

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

void set_topology(Strategy& strategy, const Name& name, const StrategyKeys& keys, int degree, int64_t heads) {
  if (name.topology == Topology::kOneRank && degree != 1) {
    fail(
        "attention={} runs on one rank, but the context degree is {}; strategies over ranks are ring, ulysses and "
        "ulysses_ring",
        name.name, degree);
  }
  const int implied = implied_ulysses(name, degree);
  if (keys.ulysses_shards != 0) {
    if (implied != 0 && keys.ulysses_shards != implied)
      contradiction(name, "ulysses_shards", std::to_string(implied), std::to_string(keys.ulysses_shards));
    mesh::check_ulysses(keys.ulysses_shards, degree, heads);
    strategy.ulysses = keys.ulysses_shards;
  } else if (implied != 0) {
    mesh::check_ulysses(implied, degree, heads);
    strategy.ulysses = implied;
  } else {
    strategy.ulysses = mesh::default_ulysses(degree, heads);
  }
  strategy.ring = degree / strategy.ulysses;
}

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Name& name : kNames) names.emplace_back(name.name);
  return names;
}

Strategy parse_strategy(const StrategyKeys& keys, int context_degree, int64_t heads) {
  ZT_CHECK(context_degree >= 1 && heads >= 1);
  const Name& name = find_name(keys.attention);
  Strategy strategy;
  set_topology(strategy, name, keys, context_degree, heads);

  const std::string implied_direction = name.direction, implied_softmax = name.softmax;
  if (!implied_direction.empty()) strategy.direction = parse_word("ring_direction", implied_direction, kDirections);
  if (!keys.ring_direction.empty()) {
    strategy.direction = parse_word("ring_direction", keys.ring_direction, kDirections);
    if (!implied_direction.empty() && keys.ring_direction != implied_direction)
      contradiction(name, "ring_direction", implied_direction, keys.ring_direction);
  }
  if (!implied_softmax.empty()) strategy.softmax = parse_word("softmax", implied_softmax, kSoftmaxes);
  if (!keys.softmax.empty()) {
    const Softmax given = parse_word("softmax", keys.softmax, kSoftmaxes);
    if (!implied_softmax.empty() && given != Softmax::kAuto && given != strategy.softmax)
      contradiction(name, "softmax", implied_softmax, keys.softmax);
    if (implied_softmax.empty()) strategy.softmax = given;
  }
  if (keys.ulysses_attention_chunks != 0) strategy.head_chunks = keys.ulysses_attention_chunks;
  strategy.kernel = name.kernel;
  return checked_strategy(strategy, context_degree, heads);
}

Problem checked_problem(const Problem& problem) {
  if (problem.batch < 1) fail("attention: batch {} must be at least 1", problem.batch);
  if (problem.tokens < 1) fail("attention: {} tokens; the sequence needs at least one", problem.tokens);
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
           fmt::join(mesh::legal_ulysses(degree, degree), ", "));
    }
    checked.ulysses = degree / checked.ring;
  }
  mesh::check_ulysses(checked.ulysses, degree, heads);
  if (checked.ring == 0) checked.ring = degree / checked.ulysses;
  if (checked.ulysses * checked.ring != degree) {
    fail("ulysses={} × ring={} make {} ranks, but the context degree is {}; with ulysses={} the ring is {}",
         checked.ulysses, checked.ring, checked.ulysses * checked.ring, degree, checked.ulysses,
         degree / checked.ulysses);
  }
  if (checked.head_chunks < 1) {
    fail("ulysses_attention_chunks={} must be at least 1, which is one group of all heads", checked.head_chunks);
  }
  if (checked.softmax == Softmax::kFixedMax) fail("softmax=fixed_max is not built yet; legal values: online, auto");
  checked.softmax = Softmax::kOnline;
  return checked;
}

schedule::Direction schedule_direction(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return schedule::Direction::kForward;
    case Direction::kTwoWay:
      return schedule::Direction::kTwoWay;
    case Direction::kOpen:
      return schedule::Direction::kOpen;
  }
  ZT_CHECK(false, "direction {}", static_cast<int>(direction));
  return {};
}

schedule::Sizes schedule_sizes(const Problem& problem) {
  return {problem.batch, problem.tokens, problem.heads, problem.head_dim,
          static_cast<int64_t>(dtype_size(problem.dtype))};
}

}  // namespace zoetrope::attention
