// Breadth-first construction from the sorted keys, so that siblings end up side by side.
#include "text/trie.h"

#include <algorithm>

namespace zoetrope::text {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  // Node i has the keys [begin, end) that share their first `depth` bytes.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};
  for (size_t node = 0; node < ranges.size(); ++node) {
    const auto [begin, end, depth] = ranges[node];
    size_t at = begin;
    // Keys that end here sort before those that go on; the last of them wins.
    for (; at < end && entries[at].first.size() == depth; ++at) nodes_[node].value = entries[at].second;
    nodes_[node].first_child = static_cast<int32_t>(nodes_.size());
    while (at < end) {
      const uint8_t label = static_cast<uint8_t>(entries[at].first[depth]);
      size_t next = at;
      while (next < end && static_cast<uint8_t>(entries[next].first[depth]) == label) ++next;
      nodes_.push_back({0, kNone, 0, label});
      ++nodes_[node].children;
      ranges.push_back({at, next, depth + 1});
      at = next;
    }
  }
}

int32_t Trie::step(int32_t node, uint8_t byte) const {
  const Node& parent = nodes_[static_cast<size_t>(node)];
  const auto first = nodes_.begin() + parent.first_child;
  const auto last = first + parent.children;
  const auto child = std::lower_bound(first, last, byte, [](const Node& n, uint8_t label) { return n.label < label; });
  return child != last && child->label == byte ? static_cast<int32_t>(child - nodes_.begin()) : kNone;
}

int32_t Trie::find(std::string_view key) const {
  int32_t node = root();
  for (char c : key) {
    node = step(node, static_cast<uint8_t>(c));
    if (node == kNone) return kNone;
  }
  return key.empty() ? kNone : value(node);
}

}  // namespace zoetrope::text
