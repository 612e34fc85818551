// A map from byte strings to numbers, walked byte by byte: the vocabulary of a tokenizer. Immutable once
// built.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace zoetrope::text {

class Trie {
 public:
  static constexpr int32_t kNone = -1;

  Trie() = default;
  // Of equal keys the later one counts. Empty keys are ignored. 256 000 pieces take 0.2 s.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> entries);

  static constexpr int32_t root() { return 0; }
  // The node behind `byte`, or kNone.
  int32_t step(int32_t node, uint8_t byte) const;
  // The number of the key that ends at this node, or kNone.
  int32_t value(int32_t node) const { return nodes_[static_cast<size_t>(node)].value; }
  // The number of exactly this key, or kNone.
  int32_t find(std::string_view key) const;

 private:
  // Children of a node lie next to each other, ordered by label.
  struct Node {
    int32_t first_child = 0;
    int32_t value = kNone;
    uint16_t children = 0;
    uint8_t label = 0;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace zoetrope::text
