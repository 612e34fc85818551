// Builds the tables of ring.h.
#include "parallel/ring.h"

#include "base/error.h"

namespace zoetrope::parallel {
namespace {

// One direction of travel: pieces come from `from` and go on to `to`; -1 where the chain ends.
struct Stream {
  int from = -1;
  int to = -1;
  int slot = kLeftSlot;  // the first of its two buffers
};

class Builder {
 public:
  Builder(int64_t tokens, const ContextLayout& layout, int index, int steps)
      : tokens_(tokens), layout_(layout), index_(index) {
    steps_.resize(static_cast<size_t>(steps));
    steps_[0].compute.push_back({index, block_tokens(index), kOwnSlot});
  }

  int wrap(int index) const { return ((index % layout_.ring) + layout_.ring) % layout_.ring; }
  IndexRange block_tokens(int block) const { return ring_block(tokens_, layout_, block); }
  IndexRange half_tokens(int block, int half) const {
    const IndexRange all = block_tokens(block), part = split_range(all.size(), 2, half);
    return {all.begin + part.begin, all.begin + part.end};
  }

  // While step t computes: `block` leaves for stream.to. It lies where it was received, or in the own slot.
  void send(int t, const Stream& stream, int block, IndexRange tokens) {
    at(t).sends.push_back({stream.to, block, tokens, block == index_ ? kOwnSlot : stream.slot + (t - 1) % 2});
  }
  // While step t computes: `block` arrives from stream.from, to be computed in step t+1.
  void receive(int t, const Stream& stream, int block, IndexRange tokens) {
    const int slot = stream.slot + t % 2;
    at(t).receives.push_back({stream.from, block, tokens, slot});
    at(t + 1).compute.push_back({block, tokens, slot});
  }

  std::vector<RingStep> take() { return std::move(steps_); }

 private:
  RingStep& at(int t) { return steps_[static_cast<size_t>(t)]; }

  int64_t tokens_;
  const ContextLayout& layout_;
  int index_;
  std::vector<RingStep> steps_;
};

std::vector<RingStep> forward(Builder builder, int ring, int index) {
  const Stream stream{builder.wrap(index - 1), builder.wrap(index + 1), kLeftSlot};
  for (int t = 0; t < ring - 1; ++t) {
    const int current = builder.wrap(index - t), next = builder.wrap(index - t - 1);
    builder.send(t, stream, current, builder.block_tokens(current));
    builder.receive(t, stream, next, builder.block_tokens(next));
  }
  return builder.take();
}

std::vector<RingStep> two_way(Builder builder, int ring, int index) {
  const int left = builder.wrap(index - 1), right = builder.wrap(index + 1);
  const Stream rightward{left, right, kLeftSlot}, leftward{right, left, kRightSlot};
  const int transfers = ring / 2;
  for (int t = 0; t < transfers; ++t) {
    const bool antipodal = ring % 2 == 0 && t == transfers - 1;
    const auto part = [&](int block, int half) {
      return antipodal ? builder.half_tokens(block, half) : builder.block_tokens(block);
    };
    const int to_right = builder.wrap(index - t), to_left = builder.wrap(index + t);
    const int from_left = builder.wrap(index - t - 1), from_right = builder.wrap(index + t + 1);
    builder.send(t, rightward, to_right, part(to_right, 0));
    builder.send(t, leftward, to_left, part(to_left, 1));
    builder.receive(t, rightward, from_left, part(from_left, 0));
    builder.receive(t, leftward, from_right, part(from_right, 1));
  }
  return builder.take();
}

std::vector<RingStep> open(Builder builder, int ring, int index) {
  const Stream rightward{index - 1, index + 1, kLeftSlot}, leftward{index + 1, index - 1, kRightSlot};
  const bool has_left = index > 0, has_right = index < ring - 1;
  for (int t = 0; t < ring - 1; ++t) {
    const int to_right = index - t, to_left = index + t, from_left = index - t - 1, from_right = index + t + 1;
    if (has_right && to_right >= 0) builder.send(t, rightward, to_right, builder.block_tokens(to_right));
    if (has_left && to_left < ring) builder.send(t, leftward, to_left, builder.block_tokens(to_left));
    if (from_left >= 0) builder.receive(t, rightward, from_left, builder.block_tokens(from_left));
    if (from_right < ring) builder.receive(t, leftward, from_right, builder.block_tokens(from_right));
  }
  return builder.take();
}

}  // namespace

std::vector<RingStep> ring_schedule(int64_t tokens, const ContextLayout& layout, int index) {
  const int ring = layout.ring;
  ZT_CHECK(ring >= 1 && index >= 0 && index < ring, "rank {} of a ring of {}", index, ring);
  const int transfers = layout.direction == Direction::kTwoWay ? ring / 2 : ring - 1;  // two-way: ⌈(R−1)/2⌉
  Builder builder(tokens, layout, index, transfers + 1);
  switch (layout.direction) {
    case Direction::kForward:
      return forward(std::move(builder), ring, index);
    case Direction::kTwoWay:
      return two_way(std::move(builder), ring, index);
    case Direction::kOpen:
      return open(std::move(builder), ring, index);
  }
  ZT_CHECK(false, "direction {}", static_cast<int>(layout.direction));
  return {};
}

std::vector<int> statistics_ranks(int64_t tokens, const ContextLayout& layout) {
  std::vector<int> ranks;
  for (int index = 0; index < layout.ring; ++index)
    if (!ring_block(tokens, layout, index).empty()) ranks.push_back(index);
  return ranks;
}

int64_t statistics_bytes(const Sizes& sizes, int64_t heads) {
  return sizes.batch * heads * (3 + sizes.head_dim) * static_cast<int64_t>(sizeof(float));
}

int64_t kv_bytes(const Sizes& sizes, IndexRange tokens, int64_t heads) {
  return tokens.size() * 2 * sizes.batch * heads * sizes.sent_kv_vector_bytes();
}

}  // namespace zoetrope::parallel
