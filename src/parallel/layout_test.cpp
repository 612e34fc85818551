// Requests become layouts, layouts are checked, printed and divide the ranks.
#include "parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "base/test_folder.h"
#include "parallel/shards.h"

namespace zoetrope::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Ulysses, LegalValuesAreTheDivisorsNotAboveTheHeads) {
  EXPECT_EQ(legal_ulysses(12, 40), (std::vector<int>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(legal_ulysses(12, 5), (std::vector<int>{1, 2, 3, 4}));
  const auto refusal = [](int64_t ulysses, int ranks, int64_t heads) {
    return error_of([&] { check_ulysses(ulysses, ranks, heads); });
  };
  EXPECT_THAT(refusal(3, 4, 40), HasSubstr("does not divide the context degree 4; legal values: 1, 2, 4"));
  EXPECT_THAT(refusal(8, 8, 6), AllOf(HasSubstr("more than the 6 heads"), HasSubstr("legal values: 1, 2, 4")));
  EXPECT_THAT(refusal(0, 4, 6), HasSubstr("must be at least 1"));
  EXPECT_EQ(refusal(4, 8, 6), "no error");
}

TEST(Filled, OpenFieldsFollowTheRule) {
  EXPECT_EQ(filled({}, 6, 4), (ContextLayout{.ulysses = 3, .ring = 2}));
  EXPECT_EQ(filled({}, 16, 12), (ContextLayout{.ulysses = 8, .ring = 2}));
  EXPECT_EQ(filled({}, 7, 3), (ContextLayout{.ulysses = 1, .ring = 7}));
  EXPECT_EQ(filled({.ring = 6}, 6, 4), (ContextLayout{.ulysses = 1, .ring = 6}));
  EXPECT_EQ(filled({.ulysses = 2}, 6, 4), (ContextLayout{.ulysses = 2, .ring = 3}));
  const ContextLayout all{.ulysses = 2, .ring = 3, .direction = Direction::kOpen, .head_chunks = 5};
  EXPECT_EQ(filled(ContextRequest::exactly(all), 6, 4), all);
}

TEST(Filled, TwoDimensionsAreTwo) {
  EXPECT_EQ(filled({.two_dimensional = true}, 4, 4), (ContextLayout{.ulysses = 2, .ring = 2}));
  EXPECT_EQ(filled({.two_dimensional = true}, 12, 4), (ContextLayout{.ulysses = 4, .ring = 3}));
  EXPECT_EQ(filled({.ulysses = 3, .two_dimensional = true}, 12, 4), (ContextLayout{.ulysses = 3, .ring = 4}));
  const auto of = [](std::optional<int> ulysses, int ranks, int64_t heads) {
    return error_of([&] { filled({.ulysses = ulysses, .two_dimensional = true}, ranks, heads); });
  };
  EXPECT_THAT(of({}, 1, 4), HasSubstr("a context of 1 rank with 4 heads has no such split"));
  EXPECT_THAT(of({}, 5, 4), HasSubstr("a context of 5 ranks with 4 heads has no such split"));
  EXPECT_THAT(of({}, 9, 2), HasSubstr("a context of 9 ranks with 2 heads has no such split"));
  EXPECT_THAT(of(1, 12, 4), AllOf(HasSubstr("ulysses_shards=1 is not possible"), HasSubstr("12 ranks: 2, 3, 4;")));
  EXPECT_THAT(of(12, 12, 40), AllOf(HasSubstr("ulysses_shards=12"), HasSubstr("12 ranks: 2, 3, 4, 6;")));
  EXPECT_THAT(of(5, 12, 40), HasSubstr("ulysses_shards=5"));
  EXPECT_THAT(of({}, 4, 1), AllOf(HasSubstr("4 ranks with 1 head has"), Not(HasSubstr("or a context of"))));
  EXPECT_EQ(filled({.ring = 2, .two_dimensional = true}, 4, 4), (ContextLayout{.ulysses = 2, .ring = 2}));
  EXPECT_NE(error_of([] { filled({.ring = 4, .two_dimensional = true}, 4, 4); }), "no error");
  EXPECT_NE(error_of([] { filled({.ring = 1, .two_dimensional = true}, 4, 4); }), "no error");
}

TEST(Filled, IllegalGridsAreRefused) {
  const auto of = [](const ContextRequest& request) { return error_of([&] { filled(request, 6, 4); }); };
  EXPECT_THAT(of({.ulysses = 2, .ring = 2}), HasSubstr("make 4 ranks, but the context degree is 6"));
  EXPECT_THAT(of({.ulysses = 2, .ring = std::numeric_limits<int>::max()}), HasSubstr("make 4294967294 ranks"));
  EXPECT_THAT(of({.ring = 4}), HasSubstr("ring=4 does not divide the context degree 6; legal values: 1, 2, 3, 6"));
  EXPECT_THAT(of({.ring = -1}), HasSubstr("ring=-1 must be at least 1"));
  EXPECT_THAT(of({.ring = 0}), HasSubstr("ring=0 must be at least 1"));
  EXPECT_THAT(of({.ulysses = 6}), HasSubstr("more than the 4 heads"));
  EXPECT_THAT(of({.ulysses = 0}), HasSubstr("ulysses_shards=0 must be at least 1"));
  EXPECT_THAT(of({.ring = 1}), HasSubstr("ulysses_shards=6 is more than the 4 heads"));
  EXPECT_THAT(of({.head_chunks = 0}), HasSubstr("ulysses_attention_chunks=0 must be from 1"));
  EXPECT_THAT(of({.head_chunks = 4097}), HasSubstr("to 4096"));
}

TEST(Filled, ShardWeightsAreOneForEachRank) {
  EXPECT_EQ(filled({.shard_weights = {4, 2, 2}}, 3, 4), (ContextLayout{3, 1, Direction::kForward, 1, 1, {2, 1, 1}}));
  EXPECT_EQ(filled({.shard_weights = {7, 7}}, 2, 4), (ContextLayout{.ulysses = 2}));
  const auto of = [](const std::vector<int>& weights) {
    return error_of([&] { filled({.shard_weights = weights}, 3, 4); });
  };
  EXPECT_THAT(of({2, 1}), HasSubstr("shard_weights=2,1 has 2 numbers, but the context has 3 ranks; give one for each"));
  EXPECT_THAT(of({2, 1, 0}), HasSubstr("shard_weights=2,1,0: 0 is not from 1 to 1000"));
  EXPECT_THAT(of({2, 1, 1001}), HasSubstr("1001 is not from 1 to 1000"));
}

TEST(Filled, AGatherIsOfAllRanks) {
  EXPECT_EQ(filled({.gather = 4}, 4, 1), (ContextLayout{.gather = 4}));
  EXPECT_EQ(filled({.ulysses = 1, .ring = 1}, 4, 1), (ContextLayout{.gather = 4}));
  EXPECT_EQ(filled({.ulysses = 1, .ring = 1}, 1, 1), ContextLayout{});
  EXPECT_EQ(filled(ContextRequest::exactly({.gather = 4}), 4, 1), (ContextLayout{.gather = 4}));
  const auto of = [](const ContextRequest& request) { return error_of([&] { filled(request, 4, 8); }); };
  for (const int gather : {-1, 0, 2, 8})
    EXPECT_THAT(of({.gather = gather}), HasSubstr("is not possible for a context of 4 ranks; either all ranks gather"));
  EXPECT_THAT(of({.ulysses = 2, .gather = 4}), HasSubstr("gather=4 with ulysses=2 and ring=1"));
  EXPECT_THAT(of({.ring = 4, .gather = 4}), HasSubstr("gather=4 with ulysses=1 and ring=4"));
  EXPECT_THAT(of({.ulysses = 1, .ring = 1, .gather = 1}), HasSubstr("make 1 ranks, but the context degree is 4"));
  EXPECT_THAT(of({.direction = Direction::kOpen, .gather = 4}),
              AllOf(HasSubstr("ring_direction=open is not possible where every rank gathers"), HasSubstr("no ring")));
  EXPECT_THAT(of({.head_chunks = 2, .gather = 4}), AllOf(HasSubstr("ulysses_attention_chunks=2 is not possible where"),
                                                         HasSubstr("all heads arrive at once")));
  EXPECT_NE(of({.two_dimensional = true, .gather = 4}), "no error");
}

TEST(Check, RefusesWhatTheRanksCannotDo) {
  const auto of = [](const ParallelLayout& layout) { return error_of([&] { check(layout, 8, 4); }); };
  EXPECT_EQ(of({.data = 2, .context = {4, 1}, .vae_ranks = 8, .text_ranks = 8}), "no error");
  EXPECT_THAT(of({.data = 3, .context = {1, 1}}), HasSubstr("data_parallelism=3 does not divide the 8 ranks"));
  EXPECT_THAT(of({.data = 0, .context = {1, 8}}), HasSubstr("data_parallelism=0"));
  EXPECT_THAT(of({.data = 2, .context = {2, 4}}), HasSubstr("make 8 ranks, but the context degree is 4"));
  EXPECT_THAT(of({.context = {8, 1}}), HasSubstr("more than the 4 heads"));
  EXPECT_THAT(of({.context = {1, 8}, .vae_ranks = 9}), HasSubstr("9 of 8 ranks cannot share the rows of a frame"));
  EXPECT_THAT(of({.context = {1, 8}, .text_ranks = 0}), HasSubstr("0 of 8 ranks cannot share the text encoder's"));
}

TEST(Check, TensorRanksDivideRanksAndHeads) {
  EXPECT_EQ(legal_tensor(12, 40), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(legal_tensor(6, 12), (std::vector<int>{1, 2, 3, 6}));
  const auto of = [](const ParallelLayout& layout) { return error_of([&] { check(layout, 8, 4); }); };
  EXPECT_EQ(of({.context = {1, 2}, .weight_shards = 2, .tensor = 4}), "no error");
  EXPECT_THAT(of({.context = {}, .tensor = 8}),
              HasSubstr("tensor_parallelism=8 does not divide 8 ranks and 4 heads evenly; legal values: 1, 2, 4"));
  EXPECT_THAT(of({.context = {}, .tensor = 3}), HasSubstr("legal values: 1, 2, 4"));
  // A rank attends to its own heads alone.
  EXPECT_THAT(of({.context = {4, 1}, .tensor = 2}), HasSubstr("more than the 2 heads"));
  EXPECT_THAT(of({.data = 4, .context = {1, 1}, .tensor = 4}),
              HasSubstr("data_parallelism=4 does not divide the 2 ranks that tensor_parallelism=4 leaves of 8"));
  EXPECT_THAT(of({.context = {1, 2}, .weight_shards = 4, .tensor = 4}),
              HasSubstr("fsdp_parallelism=4 does not divide the 2 ranks that tensor_parallelism=4 leaves of 8"));
}

// Every rank has coordinates of its own, and neighbours in rank are neighbours in a context.
TEST(Coordinates, AreABijectionWithContextFast) {
  const ParallelLayout layout{.data = 2, .context = {3, 1}};
  std::set<std::pair<int, int>> seen;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    EXPECT_EQ(layout.data_index(rank) * 3 + layout.context_index(rank), rank);
    EXPECT_LT(layout.context_index(rank), 3);
    seen.insert({layout.data_index(rank), layout.context_index(rank)});
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST(Coordinates, TensorRanksAreNeighbours) {
  const ParallelLayout layout{.data = 2, .context = {3, 1}, .tensor = 2};
  EXPECT_EQ(layout.ranks(), 12);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    EXPECT_EQ(layout.rank_of(layout.data_index(rank), layout.context_index(rank), layout.tensor_index(rank)), rank);
    EXPECT_EQ(layout.tensor_index(rank), rank % 2);
  }
}

TEST(Text, SaysWhatIsNotTheDefault) {
  ParallelLayout layout{.context = {2, 1}};
  EXPECT_EQ(text(layout, Softmax::kOnline), "data 1 x context 2 (Ulysses 2 x ring 1)");
  layout.context.direction = Direction::kOpen;  // of no ring
  EXPECT_EQ(text(layout, Softmax::kOnline), "data 1 x context 2 (Ulysses 2 x ring 1)");
  layout = {.data = 2, .context = {1, 2, Direction::kTwoWay, 3}};
  EXPECT_EQ(text(layout, Softmax::kFixedMax),
            "data 2 x context 2 (Ulysses 1 x ring 2, ring direction two_way, softmax fixed_max, 3 head chunks)");
  EXPECT_EQ(text(ContextLayout{.ring = 2, .shard_weights = {2, 1}}, Softmax::kOnline),
            "Ulysses 1 x ring 2, shard weights 2:1");
  const ParallelLayout gathers{.data = 2, .context = {.gather = 4}};
  EXPECT_EQ(gathers.ranks(), 8);
  EXPECT_EQ(text(gathers, Softmax::kOnline), "data 2 x context 4 (gather 4)");
  EXPECT_EQ(text({.context = {2, 1}, .weight_shards = 2, .tensor = 4}, Softmax::kOnline),
            "data 1 x context 2 (Ulysses 2 x ring 1) x tensor 4, weights over 2");
  layout.sharded = false;
  EXPECT_EQ(text(layout, Softmax::kOnline),
            "data 2 x context 1 (Ulysses 1 x ring 1, 3 head chunks), each sequence whole on 2 ranks, as "
            "flash_min_seq_length says");
}

}  // namespace
}  // namespace zoetrope::parallel
