#include "parallel/shards.h"

namespace zoetrope::parallel {

IndexRange head_share(int64_t heads, const ContextLayout& layout, int index) {
  if (layout.shard_weights.empty()) return split_range(heads, layout.ulysses, index);
  const auto count = static_cast<size_t>(layout.ulysses);
  std::vector<int64_t> weights(count, 0), shares(count, 1);
  for (int rank = 0; rank < layout.ranks(); ++rank)
    weights[static_cast<size_t>(layout.ulysses_index(rank))] += layout.shard_weight(rank);
  // Head by head, to whom it makes the least work in relation to its weight.
  for (int64_t given = layout.ulysses; given < heads; ++given) {
    size_t best = 0;
    for (size_t u = 1; u < count; ++u)
      if ((shares[u] + 1) * weights[best] < (shares[best] + 1) * weights[u]) best = u;
    ++shares[best];
  }
  int64_t begin = 0;
  for (int u = 0; u < index; ++u) begin += shares[static_cast<size_t>(u)];
  return {begin, begin + shares[static_cast<size_t>(index)]};
}

}  // namespace zoetrope::parallel
