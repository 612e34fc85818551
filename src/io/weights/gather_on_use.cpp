#include "io/weights/gather_on_use.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {

GatherOnUse::Weight GatherOnUse::divide(const PackedWeight& weight, size_t number, std::byte* place,
                                        const WeightShards& shards) {
  int64_t rows = 0;
  for (const Shape& shape : weight.shapes) rows += shape.rank() > 0 ? shape[0] : 1;
  const int64_t step = weight.part_rows > 0 ? weight.part_rows : rows, parts = ceil_div(rows, step);
  Weight divided;
  divided.place = place;
  for (int share = 0; share < shards.size(); ++share) {
    const int owner = static_cast<int>((static_cast<size_t>(share) + number) % static_cast<size_t>(shards.size()));
    const IndexRange range = split_range(parts, shards.size(), share);
    if (range.size() == 0) continue;
    const IndexRange own{range.begin * step, std::min(rows, range.end * step)};
    const size_t begin = own.begin == 0 ? 0 : weight.begin(own.begin);
    const size_t end = own.end == rows ? weight.bytes : weight.begin(own.end);
    divided.pieces.push_back({owner, place + begin, end - begin});
    if (owner != shards.rank()) continue;
    divided.own_rows = own;
    divided.own_begin = begin;
    divided.own_bytes = end - begin;
  }
  return divided;
}

GatherOnUse::GatherOnUse(std::shared_ptr<WeightShards> shards, std::vector<Weight> weights)
    : shards_(std::move(shards)) {
  for (Weight& weight : weights) {
    const std::byte* const place = weight.place;
    weights_.emplace(place, std::move(weight));
  }
}

void GatherOnUse::read(std::span<const WeightStream::Range> ranges) {
  std::vector<WeightShards::Piece> pieces;
  for (const WeightStream::Range& range : ranges) {
    for (auto at = weights_.lower_bound(range.begin); at != weights_.end() && at->first < range.begin + range.bytes;
         ++at) {
      const Weight& weight = at->second;
      for (WeightShards::Piece piece : weight.pieces) {
        if (piece.owner == shards_->rank()) {
          std::memcpy(piece.data, weight.own, piece.bytes);
          piece.data = weight.own;
        }
        pieces.push_back(piece);
      }
    }
  }
  shards_->gather(pieces);
}

}  // namespace zoetrope::io
