// Properties of the exchange and of the output exchange for all U × R ≤ 16, uneven tokens and heads, and head chunks:
// every (token, head) lands in its place once, sends match receives in order, nothing goes to the sender itself.
#include "parallel/exchange.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

// Calls body(sizes, layout) over the sweep.
template <typename Body>
void sweep(Body&& body) {
  for (int ulysses = 1; ulysses <= 16; ++ulysses) {
    for (int ring = 1; ulysses * ring <= 16; ++ring) {
      const int64_t ranks = ulysses * ring;
      for (const int64_t tokens : {int64_t{1}, ranks - 1, ranks, ranks + 1, 2 * ranks + 3, int64_t{61}}) {
        for (const int64_t heads : {int64_t{ulysses}, int64_t{ulysses} + 1, int64_t{2} * ulysses - 1}) {
          if (tokens < 1) continue;
          for (const int chunks : {1, 2, 3})
            for (const ContextLayout& layout : in_shards({ulysses, ring, Direction::kForward, chunks}))
              body(Sizes{2, tokens, heads, 8, 2}, layout);
        }
      }
    }
  }
}

using Schedule = Exchange (*)(const Sizes&, const ContextLayout&, int, int);

std::vector<Exchange> of_group(Schedule schedule, const Sizes& sizes, const ContextLayout& layout, int ring_index,
                               int chunk) {
  std::vector<Exchange> group;
  for (int u = 0; u < layout.ulysses; ++u)
    group.push_back(schedule(sizes, layout, layout.rank_of(ring_index, u), chunk));
  return group;
}

using Key = std::tuple<Region, int64_t, int64_t, int64_t, int64_t>;
std::vector<Key> between(const std::vector<Segment>& segments, int peer) {
  std::vector<Key> keys;
  for (const Segment& s : segments)
    if (s.peer == peer) keys.emplace_back(s.region, s.heads.begin, s.heads.end, s.tokens.begin, s.tokens.end);
  return keys;
}

void expect_matching(const std::vector<Exchange>& group) {
  const int size = static_cast<int>(group.size());
  for (int a = 0; a < size; ++a) {
    EXPECT_TRUE(between(group[static_cast<size_t>(a)].sends, a).empty());
    EXPECT_TRUE(between(group[static_cast<size_t>(a)].receives, a).empty());
    for (int b = 0; b < size; ++b)
      EXPECT_EQ(between(group[static_cast<size_t>(a)].sends, b), between(group[static_cast<size_t>(b)].receives, a));
  }
}

TEST(Exchange, SendsMatchReceivesInOrder) {
  sweep([](const Sizes& sizes, const ContextLayout& layout) {
    for (int r = 0; r < layout.ring; ++r) {
      for (int chunk = 0; chunk < layout.head_chunks; ++chunk) {
        expect_matching(of_group(exchange_schedule, sizes, layout, r, chunk));
        expect_matching(of_group(output_schedule, sizes, layout, r, chunk));
      }
    }
  });
}

// How often each (token, head) of `tokens` × `heads` is covered by the segments of a region.
std::map<std::pair<int64_t, int64_t>, int> cover(const std::vector<Segment>& segments, Region region) {
  std::map<std::pair<int64_t, int64_t>, int> count;
  for (const Segment& s : segments) {
    if (s.region != region) continue;
    for (int64_t t = s.tokens.begin; t < s.tokens.end; ++t)
      for (int64_t h = s.heads.begin; h < s.heads.end; ++h) ++count[{t, h}];
  }
  return count;
}

TEST(Exchange, FillsTheOwnHeadsOfTheGroupOnce) {
  sweep([](const Sizes& sizes, const ContextLayout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      for (int chunk = 0; chunk < layout.head_chunks; ++chunk) {
        Exchange e = exchange_schedule(sizes, layout, rank, chunk);
        for (const Region region : {Region::kQ, Region::kKV}) {
          e.receives.push_back({0, region, e.heads, e.tokens});  // the own part, written in place
          const auto count = cover(e.receives, region);
          EXPECT_EQ(static_cast<int64_t>(count.size()), e.block.size() * e.heads.size());
          for (const auto& [cell, times] : count) {
            EXPECT_EQ(times, 1);
            EXPECT_TRUE(e.block.contains(cell.first) && e.heads.contains(cell.second));
          }
        }
      }
    }
  });
}

TEST(Exchange, TheOutputExchangeRestoresAllHeadsOfTheOwnTokensOnce) {
  sweep([](const Sizes& sizes, const ContextLayout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<Segment> arrived;
      for (int chunk = 0; chunk < layout.head_chunks; ++chunk) {
        const Exchange back = output_schedule(sizes, layout, rank, chunk);
        arrived.insert(arrived.end(), back.receives.begin(), back.receives.end());
        if (!back.heads.empty()) arrived.push_back({0, Region::kO, back.heads, back.tokens});
      }
      const IndexRange own = token_shard(sizes.tokens, layout, rank);
      const auto count = cover(arrived, Region::kO);
      EXPECT_EQ(static_cast<int64_t>(count.size()), own.size() * sizes.heads);
      for (const auto& [cell, times] : count) {
        EXPECT_EQ(times, 1);
        EXPECT_TRUE(own.contains(cell.first) && 0 <= cell.second && cell.second < sizes.heads);
      }
    }
  });
}

TEST(Exchange, BytesCountKeysAndValuesAndTheBatch) {
  const Sizes sizes{2, 12, 6, 8, 4};
  EXPECT_EQ(segment_bytes(sizes, {0, Region::kQ, {0, 3}, {4, 9}}), 5 * 2 * 3 * 8 * 4);
  EXPECT_EQ(segment_bytes(sizes, {0, Region::kKV, {0, 3}, {4, 9}}), 2 * 5 * 2 * 3 * 8 * 4);
  EXPECT_EQ(segment_bytes(sizes, {0, Region::kO, {0, 3}, {4, 9}}), 5 * 2 * 3 * 8 * 4);
}

}  // namespace
}  // namespace zoetrope::parallel
