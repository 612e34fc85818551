// Names, keys and refusals of strategies, and what plan() and run() refuse.
#include "attention/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/test_folder.h"
#include "device/stream.h"
#include "mesh/context_axis.h"

namespace zoetrope::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const StrategyKeys& keys, int degree = 4, int64_t heads = 12) {
  return error_of([&] { parse_strategy(keys, degree, heads); });
}

StrategyKeys named(const std::string& name, int shards = 0) {
  StrategyKeys keys;
  keys.attention = name;
  keys.ulysses_shards = shards;
  return keys;
}

void expect_grid(const std::string& name, int shards, int degree, int ulysses, int ring, Direction direction) {
  const Strategy s = parse_strategy(named(name, shards), degree, 12);
  EXPECT_EQ(s.ulysses, ulysses) << name;
  EXPECT_EQ(s.ring, ring) << name;
  EXPECT_EQ(s.direction, direction) << name;
  EXPECT_EQ(s.softmax, Softmax::kOnline) << name;
}

TEST(Names, MapOntoTheFourFields) {
  expect_grid("dot_product", 0, 1, 1, 1, Direction::kForward);
  EXPECT_EQ(parse_strategy(named("dot_product"), 1, 12).kernel, "scalar");
  expect_grid("flash", 0, 1, 1, 1, Direction::kForward);
  for (const char* name : {"ring", "tokamax_ring", "tokamax_ring_custom"})
    expect_grid(name, 0, 4, 1, 4, Direction::kForward);
  for (const char* name : {"ulysses", "ulysses_custom"}) expect_grid(name, 0, 4, 4, 1, Direction::kForward);
  for (const char* name : {"ulysses_ring", "ulysses_ring_custom"}) expect_grid(name, 2, 4, 2, 2, Direction::kForward);
  expect_grid("ulysses_ring_custom_bidir", 2, 8, 2, 4, Direction::kOpen);
  expect_grid("auto", 0, 16, 8, 2, Direction::kForward);  // the largest divisor of 16 that is ≤ 12 heads
  expect_grid("auto", 2, 16, 2, 8, Direction::kForward);
}

// Every name of the table is accepted, or refused for the one thing that is not built.
TEST(Names, AllAreKnown) {
  for (const std::string& name : strategy_names()) {
    const std::string error = refusal(named(name), name == "flash" || name == "dot_product" ? 1 : 4);
    if (name.ends_with("fixed_m")) {
      EXPECT_THAT(error, HasSubstr("softmax=fixed_max is not built yet"));
    } else {
      EXPECT_EQ(error, "no error") << name;
    }
  }
}

TEST(Names, UnknownOnesGetTheNearest) {
  EXPECT_THAT(refusal(named("ulyses")), AllOf(HasSubstr("attention=ulyses is not known"), HasSubstr("'ulysses'")));
  EXPECT_THAT(refusal(named("rnig")), HasSubstr("did you mean 'ring'"));
  EXPECT_THAT(refusal(named("ulysses_ring_custom_bidirectional")), HasSubstr("'ulysses_ring_custom_bidir'"));
  EXPECT_THAT(refusal(named("")), HasSubstr("There are: auto, dot_product, flash, ring"));
  // "auto" is no help to who asks for something else altogether.
  EXPECT_THAT(refusal(named("xyz")), HasSubstr("attention=xyz is not known. There are: auto"));
}

TEST(Keys, IllegalShardsListTheLegalOnes) {
  EXPECT_THAT(refusal(named("auto", 3)), HasSubstr("does not divide the context degree 4; legal values: 1, 2, 4"));
  EXPECT_THAT(refusal(named("auto", -2)), HasSubstr("must be at least 1; legal values: 1, 2, 4"));
  EXPECT_THAT(refusal(named("auto", 16), 16), HasSubstr("more than the 12 heads"));
  EXPECT_THAT(refusal(named("auto", 16), 16), HasSubstr("legal values: 1, 2, 4, 8"));
  EXPECT_THAT(refusal(named("ulysses"), 16), HasSubstr("ulysses_shards=16 is more than the 12 heads"));
}

TEST(Keys, ContradictionsOfANameAreRefused) {
  EXPECT_THAT(refusal(named("ring", 2)), HasSubstr("attention=ring means ulysses_shards=1, but ulysses_shards=2"));
  EXPECT_THAT(refusal(named("ulysses", 2)), HasSubstr("means ulysses_shards=4"));
  EXPECT_THAT(refusal(named("flash"), 4), HasSubstr("runs on one rank, but the context degree is 4"));
  StrategyKeys keys = named("ring");
  keys.ring_direction = "two_way";
  EXPECT_THAT(refusal(keys), HasSubstr("means ring_direction=forward, but ring_direction=two_way is given"));
  keys.ring_direction = "forward";
  EXPECT_EQ(refusal(keys), "no error");
  keys = named("ulysses_ring_custom_bidir", 2);
  keys.ring_direction = "forward";
  EXPECT_THAT(refusal(keys), HasSubstr("means ring_direction=open"));
  keys = named("ring");
  keys.softmax = "fixed_max";
  EXPECT_THAT(refusal(keys), HasSubstr("means softmax=online, but softmax=fixed_max is given"));
  keys.softmax = "auto";
  EXPECT_EQ(refusal(keys), "no error");
}

TEST(Keys, UnknownWordsListTheLegalOnes) {
  StrategyKeys keys;
  keys.ring_direction = "backward";
  EXPECT_THAT(refusal(keys), HasSubstr("ring_direction=backward is not known; legal values: forward, two_way, open"));
  keys = {};
  keys.softmax = "exact";
  EXPECT_THAT(refusal(keys), HasSubstr("softmax=exact is not known; legal values: online, fixed_max, auto"));
  keys = {};
  keys.softmax = "fixed_max";
  EXPECT_THAT(refusal(keys), HasSubstr("fixed_max is not built yet; legal values: online, auto"));
  keys = {};
  keys.ulysses_attention_chunks = -1;
  EXPECT_THAT(refusal(keys), HasSubstr("ulysses_attention_chunks=-1 must be at least 1"));
}

TEST(Keys, WithoutANameTheyAreFree) {
  StrategyKeys keys;
  keys.ulysses_shards = 2;
  keys.ring_direction = "two_way";
  keys.ulysses_attention_chunks = 3;
  const Strategy strategy = parse_strategy(keys, 4, 12);
  EXPECT_EQ(strategy.ulysses, 2);
  EXPECT_EQ(strategy.ring, 2);
  EXPECT_EQ(strategy.direction, Direction::kTwoWay);
  EXPECT_EQ(strategy.head_chunks, 3);
}

TEST(Strategies, ZeroIsFilledIn) {
  EXPECT_EQ(checked_strategy({}, 6, 4).ulysses, 3);
  EXPECT_EQ(checked_strategy({.ring = 6}, 6, 4).ulysses, 1);
  EXPECT_EQ(checked_strategy({.ulysses = 2}, 6, 4).ring, 3);
}

TEST(Strategies, IllegalGridsAreRefused) {
  const auto of = [](const Strategy& strategy) { return error_of([&] { checked_strategy(strategy, 6, 4); }); };
  EXPECT_THAT(of({.ulysses = 2, .ring = 2}), HasSubstr("make 4 ranks, but the context degree is 6"));
  EXPECT_THAT(of({.ring = 4}), HasSubstr("ring=4 does not divide the context degree 6; legal values: 1, 2, 3, 6"));
  EXPECT_THAT(of({.ring = -1}), HasSubstr("ring=-1 must each be at least 1"));
  EXPECT_THAT(of({.ulysses = 6}), HasSubstr("more than the 4 heads"));
  EXPECT_THAT(of({.ring = 1}), HasSubstr("ulysses_shards=6 is more than the 4 heads"));
}

const Problem kProblem{2, 10, 4, 8, DType::kF32};

std::string plan_refusal(Problem problem, const Strategy& strategy = {}, int ranks = 1) {
  return error_of([&] { comm::run_ranks(ranks, [&](comm::Communicator& comm) { plan(problem, strategy, comm, 1); }); });
}

TEST(Plan, RefusesProblemsThatAreNone) {
  const auto with = [](auto&& change) {
    Problem problem = kProblem;
    change(problem);
    return plan_refusal(problem);
  };
  EXPECT_THAT(with([](Problem& p) { p.batch = 0; }), HasSubstr("batch 0 must be at least 1"));
  EXPECT_THAT(with([](Problem& p) { p.tokens = 0; }), HasSubstr("0 tokens"));
  EXPECT_THAT(with([](Problem& p) { p.heads = -1; }), HasSubstr("-1 heads"));
  EXPECT_THAT(with([](Problem& p) { p.head_dim = 1025; }), HasSubstr("head_dim 1025 must be from 1 to 1024"));
  EXPECT_THAT(with([](Problem& p) { p.dtype = DType::kF16; }), HasSubstr("dtype F16 is not possible"));
  EXPECT_THAT(with([](Problem& p) { p.scale = std::numeric_limits<float>::infinity(); }), HasSubstr("not finite"));
  EXPECT_EQ(with([](Problem&) {}), "no error");
}

TEST(Plan, RefusesStrategies) {
  EXPECT_THAT(plan_refusal(kProblem, {.ulysses = 2}), HasSubstr("legal values: 1"));
  EXPECT_THAT(plan_refusal(kProblem, {.softmax = Softmax::kFixedMax}), HasSubstr("not built yet"));
  EXPECT_THAT(plan_refusal(kProblem, {.head_chunks = 0}), HasSubstr("must be at least 1"));
  EXPECT_THAT(plan_refusal(kProblem, {.kernel = "warp"}), HasSubstr("warp"));
}

TEST(Plan, RefusesAnAxisOfAnotherGrid) {
  const std::string error = error_of([] {
    comm::run_ranks(4, [](comm::Communicator& comm) {
      mesh::ContextAxis axis(comm, 2);
      Stream stream(1);
      plan(kProblem, {.ulysses = 4}, axis, stream);
    });
  });
  EXPECT_THAT(error, HasSubstr("the axis is split with ulysses=2"));
}

TEST(Plan, RefusesRanksThatDisagree) {
  const auto disagree = [](auto&& change) {
    return error_of([&] {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        Problem problem = kProblem;
        Strategy strategy{.ulysses = 2};
        if (comm.rank() == 2) change(problem, strategy);
        plan(problem, strategy, comm, 1);
      });
    });
  };
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.tokens = 11; }),
              HasSubstr("rank 0 planned tokens 10, but rank 2 11"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.mask = MaskKind::kKeyMask; }), HasSubstr("mask"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.scale = 1; }), HasSubstr("scale"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.ulysses = 4; }), HasSubstr("ring 2, but rank 2 1"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.kernel = "scalar"; }), HasSubstr("kernel"));
}

TEST(Run, RefusesTensorsOfAnotherShape) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    ContextAttention attention = plan(kProblem, {}, comm, 1);
    const Tensor good(DType::kF32, {2, 10, 4, 8}), shorter(DType::kF32, {2, 9, 4, 8}),
        half(DType::kBF16, {2, 10, 4, 8}), wide(DType::kF32, {2, 10, 4, 16});
    const auto refused = [&](const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o) {
      return error_of([&] { attention.run(q, k, v, {}, o); });
    };
    EXPECT_THAT(refused(shorter, good, good, good), HasSubstr("q is [2, 9, 4, 8], but must be [2, 10, 4, 8]"));
    EXPECT_THAT(refused(good, half, good, good), HasSubstr("k has dtype BF16, but F32 was planned"));
    EXPECT_THAT(refused(good, good, wide, good), HasSubstr("v is [2, 10, 4, 16]"));
    const TensorView strided(wide.view().raw(), DType::kF32, {2, 10, 4, 8}, {640, 64, 16, 2});
    EXPECT_THAT(refused(good, good, good, strided), HasSubstr("last axis of o must be contiguous"));
    EXPECT_EQ(refused(good, good, good, good), "no error");
  });
}

TEST(Run, RefusesMasksThatWereNotPlanned) {
  const std::vector<int64_t> lengths{3, 4}, short_lengths{3};
  const Tensor keys(DType::kU8, {2, 10}), few_keys(DType::kU8, {2, 9}), float_keys(DType::kF32, {2, 10});
  const auto refused = [&](MaskKind kind, const Mask& mask) {
    return error_of([&] {
      comm::run_ranks(1, [&](comm::Communicator& comm) {
        Problem problem = kProblem;
        problem.mask = kind;
        ContextAttention attention = plan(problem, {}, comm, 1);
        const Tensor o(DType::kF32, {2, 10, 4, 8});
        attention.run(mask, o);
      });
    });
  };
  EXPECT_THAT(refused(MaskKind::kNone, {lengths, {}}), HasSubstr("key lengths were given, but none were planned"));
  EXPECT_THAT(refused(MaskKind::kNone, {{}, keys}), HasSubstr("a key mask was given, but none was planned"));
  EXPECT_THAT(refused(MaskKind::kKeyLengths, {short_lengths, {}}), HasSubstr("1 key lengths were given"));
  EXPECT_THAT(refused(MaskKind::kKeyMask, {{}, few_keys}), HasSubstr("key_mask is [2, 9], but must be [2, 10]"));
  EXPECT_THAT(refused(MaskKind::kKeyMask, {{}, float_keys}), HasSubstr("must be U8 or BOOL"));
}

// The slots of a rank cover every head once for q, k and v, at every grid, chunked or not.
TEST(Slots, CoverEveryHeadOnce) {
  for (const int ulysses : {1, 2, 3, 6}) {
    for (const int chunks : {1, 3}) {
      comm::run_ranks(6, [&](comm::Communicator& comm) {
        for (const int64_t tokens : {4, 13}) {  // four tokens over six ranks: two shards are empty
          ContextAttention attention =
              plan({2, tokens, 7, 8, DType::kBF16}, {.ulysses = ulysses, .head_chunks = chunks}, comm, 1);
          for (const auto* list :
               {&attention.input_slots().q, &attention.input_slots().k, &attention.input_slots().v}) {
            std::vector<int> covered(7);
            for (const HeadSlot& slot : *list) {
              EXPECT_EQ(slot.out.shape(), (Shape{2, attention.tokens().size(), slot.heads.size(), 8}));
              for (int64_t h = slot.heads.begin; h < slot.heads.end; ++h) ++covered[static_cast<size_t>(h)];
            }
            EXPECT_EQ(covered, std::vector<int>(7, 1));
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace zoetrope::attention
