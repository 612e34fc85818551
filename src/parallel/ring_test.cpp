// Properties of the ring tables for all R ≤ 16, every direction and uneven token counts: every rank computes every
// token once, sends match receives step by step, and no buffer is overwritten while it is computed or sent.
#include "parallel/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>

#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

std::vector<int64_t> token_counts(int ring) {
  return {1, ring - 1 > 0 ? ring - 1 : 1, ring, ring + 1, 3 * ring + 2, 97};
}

template <typename Body>
void sweep(Body&& body) {
  for (int ring = 1; ring <= 16; ++ring)
    for (const Direction direction : kDirections)
      for (const int64_t tokens : token_counts(ring))
        for (const ContextLayout& layout : in_shards({1, ring, direction})) body(tokens, layout);
}

using Key = std::tuple<int, int64_t, int64_t>;
std::vector<Key> between(const UpToTwo<Hop>& hops, int peer) {
  std::vector<Key> keys;
  for (const Hop& t : hops)
    if (t.peer == peer) keys.emplace_back(t.block, t.tokens.begin, t.tokens.end);
  return keys;
}

TEST(Ring, EveryRankComputesEveryTokenOnce) {
  sweep([](int64_t tokens, const ContextLayout& layout) {
    for (int index = 0; index < layout.ring; ++index) {
      std::vector<int> computed(static_cast<size_t>(tokens));
      std::multiset<int> blocks;
      for (const RingStep& step : ring_schedule(tokens, layout, index)) {
        for (const Piece& piece : step.compute) {
          blocks.insert(piece.block);
          const IndexRange block = ring_block(tokens, layout, piece.block);
          EXPECT_TRUE(block.begin <= piece.tokens.begin && piece.tokens.end <= block.end);
          for (int64_t t = piece.tokens.begin; t < piece.tokens.end; ++t) ++computed[static_cast<size_t>(t)];
        }
      }
      for (const int times : computed) EXPECT_EQ(times, 1);
      // R blocks, never 2R; the antipodal one of an even two-way layout.ring comes in two halves.
      const bool halves = layout.direction == Direction::kTwoWay && layout.ring % 2 == 0;
      EXPECT_EQ(blocks.size(), static_cast<size_t>(halves ? layout.ring + 1 : layout.ring));
    }
  });
}

TEST(Ring, SendsMatchReceivesInEveryStep) {
  sweep([](int64_t tokens, const ContextLayout& layout) {
    std::vector<std::vector<RingStep>> tables;
    for (int index = 0; index < layout.ring; ++index) tables.push_back(ring_schedule(tokens, layout, index));
    const size_t steps = tables[0].size();
    for (const auto& table : tables) ASSERT_EQ(table.size(), steps);
    for (size_t t = 0; t < steps; ++t)
      for (int a = 0; a < layout.ring; ++a)
        for (int b = 0; b < layout.ring; ++b)
          EXPECT_EQ(between(tables[static_cast<size_t>(a)][t].sends, b),
                    between(tables[static_cast<size_t>(b)][t].receives, a));
  });
}

// Follows one rank's buffers: what is sent or computed lies where the table says, and no receive touches it meanwhile.
TEST(Ring, BuffersHoldWhatTheTableSays) {
  sweep([](int64_t tokens, const ContextLayout& layout) {
    for (int index = 0; index < layout.ring; ++index) {
      std::array<Piece, kSlots> held{};
      held.fill({-1, {}, -1});
      held[kOwnSlot] = {index, ring_block(tokens, layout, index), kOwnSlot};
      for (const RingStep& step : ring_schedule(tokens, layout, index)) {
        std::set<int> busy;
        const auto expect_held = [&](int slot, int block, IndexRange range) {
          const Piece& piece = held[static_cast<size_t>(slot)];
          EXPECT_EQ(piece.block, block);
          EXPECT_TRUE(piece.tokens.begin <= range.begin && range.end <= piece.tokens.end);
          busy.insert(slot);
        };
        for (const Piece& piece : step.compute) {
          expect_held(piece.slot, piece.block, piece.tokens);
          EXPECT_EQ(held[static_cast<size_t>(piece.slot)].tokens, piece.tokens);
        }
        for (const Hop& send : step.sends) expect_held(send.slot, send.block, send.tokens);
        for (const Hop& receive : step.receives) {
          EXPECT_TRUE(busy.insert(receive.slot).second);
          held[static_cast<size_t>(receive.slot)] = {receive.block, receive.tokens, receive.slot};
        }
      }
    }
  });
}

// Whatever arrives is computed in the next step, and what arrives altogether is what the rank lacked.
TEST(Ring, NothingIsSentUnused) {
  sweep([](int64_t tokens, const ContextLayout& layout) {
    for (int index = 0; index < layout.ring; ++index) {
      const auto table = ring_schedule(tokens, layout, index);
      int64_t arrived = 0;
      for (size_t t = 0; t < table.size(); ++t) {
        for (size_t i = 0; i < table[t].receives.size(); ++i) {
          const Hop& receive = table[t].receives[i];
          arrived += receive.tokens.size();
          ASSERT_LT(t + 1, table.size());
          ASSERT_LT(i, table[t + 1].compute.size());
          // In the order of arrival: left before right.
          EXPECT_EQ(table[t + 1].compute[i].block, receive.block);
          EXPECT_EQ(table[t + 1].compute[i].tokens, receive.tokens);
        }
      }
      EXPECT_EQ(arrived, tokens - ring_block(tokens, layout, index).size());
      // Nothing follows the last needed block.
      for (size_t t = static_cast<size_t>(layout.ring - 1); t < table.size(); ++t) {
        EXPECT_TRUE(table[t].sends.empty());
        EXPECT_TRUE(table[t].receives.empty());
      }
    }
  });
}

int64_t sent_blocks(const std::vector<RingStep>& table) {
  int64_t count = 0;
  for (const RingStep& step : table) count += static_cast<int64_t>(step.sends.size());
  return count;
}

size_t transfer_steps(const std::vector<RingStep>& table) {
  size_t last = 0;
  for (size_t t = 0; t < table.size(); ++t)
    if (!table[t].sends.empty() || !table[t].receives.empty()) last = t + 1;
  return last;
}

TEST(Ring, StepsAndTransfersAreTheFormulas) {
  for (int ring = 1; ring <= 16; ++ring) {
    for (int index = 0; index < ring; ++index) {
      const auto forward = ring_schedule(64, {1, ring, Direction::kForward}, index);
      EXPECT_EQ(sent_blocks(forward), ring - 1);
      EXPECT_EQ(transfer_steps(forward), static_cast<size_t>(ring - 1));
      const auto two_way = ring_schedule(64, {1, ring, Direction::kTwoWay}, index);
      EXPECT_EQ(transfer_steps(two_way), static_cast<size_t>(ring / 2));  // ⌈(R−1)/2⌉
      const auto open = ring_schedule(64, {1, ring, Direction::kOpen}, index);
      const bool end = index == 0 || index == ring - 1;
      EXPECT_EQ(sent_blocks(open), ring == 1 ? 0 : end ? 1 : ring + 1);
      if (end) {
        EXPECT_EQ(transfer_steps(open), static_cast<size_t>(ring - 1));
      }
    }
  }
}

// At R = 2 each of the two links carries half a block.
TEST(Ring, TwoWayOverTwoRanksHalvesTheBlock) {
  const auto table = ring_schedule(21, {1, 2, Direction::kTwoWay}, 0);  // blocks of 10 and 11 tokens
  ASSERT_EQ(table[0].sends.size(), 2u);
  EXPECT_EQ(table[0].sends[0].tokens, (IndexRange{0, 5}));
  EXPECT_EQ(table[0].sends[1].tokens, (IndexRange{5, 10}));
  EXPECT_EQ(table[0].receives[0].tokens, (IndexRange{10, 15}));
  EXPECT_EQ(table[0].receives[1].tokens, (IndexRange{15, 21}));
}

// The drawing of ring.h: rank 1 of an open chain of four.
TEST(Ring, OpenChainAsDrawn) {
  const auto table = ring_schedule(40, {1, 4, Direction::kOpen}, 1);
  ASSERT_EQ(table.size(), 4u);
  const auto blocks = [](const auto& items) {
    std::vector<int> list;
    for (const auto& item : items) list.push_back(item.block);
    return list;
  };
  EXPECT_EQ(blocks(table[0].compute), (std::vector<int>{1}));
  EXPECT_EQ(blocks(table[0].sends), (std::vector<int>{1, 1}));
  EXPECT_EQ(blocks(table[1].compute), (std::vector<int>{0, 2}));
  EXPECT_EQ(blocks(table[1].sends), (std::vector<int>{0, 2}));
  EXPECT_EQ(blocks(table[2].compute), (std::vector<int>{3}));
  EXPECT_EQ(blocks(table[2].sends), (std::vector<int>{3}));
  EXPECT_TRUE(table[3].compute.empty() && table[3].sends.empty() && table[3].receives.empty());
}

}  // namespace
}  // namespace zoetrope::parallel
