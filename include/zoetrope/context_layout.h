// How the tokens of one sequence are spread over the P ranks of a context, as plain numbers.
//
//   P = U × R: groups of U neighbours trade tokens for heads (Ulysses), K/V blocks go round R groups (ring)
//   P = G:     every rank gathers the keys and values of all
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "zoetrope/api.h"

namespace zoetrope::parallel {

enum class Direction : uint8_t {
  kForward,  // one way round the ring
  kTwoWay,   // both ways round at once
  kOpen,     // both ways along a chain that has no wrap link
};
inline constexpr Direction kDirections[] = {Direction::kForward, Direction::kTwoWay, Direction::kOpen};
constexpr bool goes_both_ways(Direction direction) { return direction != Direction::kForward; }

// Fixed-max offsets need statistics of all keys, which go round the ring before the keys do.
enum class Softmax : uint8_t { kOnline, kFixedMax };
inline constexpr Softmax kSoftmaxes[] = {Softmax::kOnline, Softmax::kFixedMax};

// How keys and values travel between ranks. Nothing else is sent in fewer bits: not q, not o.
enum class KVExchange : uint8_t {
  kAsComputed,
  kBFloat16,  // of float32 attention
  kInt8,      // with a float32 scale per 32 values
};
inline constexpr KVExchange kKVExchanges[] = {KVExchange::kAsComputed, KVExchange::kBFloat16, KVExchange::kInt8};

ZOETROPE_API const char* direction_name(Direction direction);  // as the keys of the same names spell them
ZOETROPE_API const char* softmax_name(Softmax softmax);
ZOETROPE_API const char* kv_exchange_name(KVExchange exchange);

struct ContextLayout {
  int ulysses = 1;  // U
  int ring = 1;     // R
  Direction direction = Direction::kForward;
  int head_chunks = 1;  // groups of heads, at most 4096; the exchange of one overlaps the attention of another
  int gather = 1;       // G; above 1 there is no Ulysses, ring, direction or head chunk
  // By rank: how much of the work it has, relative to the others; empty: all as much. Tokens are divided by these,
  // heads of a Ulysses index by their sum over the ring.
  std::vector<int> shard_weights{};

  // Ulysses innermost: groups are neighbours, the ring crosses the slow links.
  constexpr int ranks() const { return ulysses * ring * gather; }
  constexpr int ring_index(int rank) const { return rank / ulysses; }
  constexpr int ulysses_index(int rank) const { return rank % ulysses; }
  constexpr int rank_of(int ring_index, int ulysses_index) const { return ring_index * ulysses + ulysses_index; }
  // The layout of one rank that has the whole sequence.
  ContextLayout alone() const { return {1, 1, Direction::kForward, head_chunks}; }
  constexpr int shard_weight(int rank) const {
    return shard_weights.empty() ? 1 : shard_weights[static_cast<size_t>(rank)];
  }
  // Calls body(name, value) for each setting that is one number.
  template <typename Body>
  void for_each(Body&& body) const {
    visit(*this, body);
  }
  template <typename Body>
  void for_each(Body&& body) {
    visit(*this, body);
  }
  friend bool operator==(const ContextLayout&, const ContextLayout&) = default;

 private:
  template <typename Layout, typename Body>
  static void visit(Layout& layout, Body& body) {
    body("ulysses", layout.ulysses);
    body("ring", layout.ring);
    body("direction", layout.direction);
    body("head_chunks", layout.head_chunks);
    body("gather", layout.gather);
  }
};

// A ContextLayout of which a caller may leave fields open.
struct ContextRequest {
  // Unset: P / ring, or where that is unset too the largest divisor of P that is ≤ H and, if two_dimensional, < P.
  // With gather above 1, it and ring are 1 where they are unset.
  std::optional<int> ulysses{};
  std::optional<int> ring{};             // unset: P / ulysses
  std::optional<Direction> direction{};  // unset: forward
  std::optional<int> head_chunks{};      // unset: 1
  bool two_dimensional = false;          // U > 1 and R > 1; degrees that say otherwise are refused
  std::optional<int> gather{};           // unset: P where ulysses and ring are both set to 1, else 1
  std::vector<int> shard_weights{};      // empty: even

  static ContextRequest exactly(const ContextLayout& layout) {
    return {layout.ulysses, layout.ring,   layout.direction,    layout.head_chunks,
            false,          layout.gather, layout.shard_weights};
  }
};

}  // namespace zoetrope::parallel
