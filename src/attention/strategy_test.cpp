// Names, keys and refusals of strategies, and what plan() and run() refuse.
#include "attention/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "zoetrope/communicator.h"

#include "attention/strategy_options.h"
#include "base/error.h"
#include "base/test_folder.h"
#include "device/stream.h"

namespace zoetrope::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const StrategyOptions& options, int degree = 4, int64_t heads = 12) {
  return error_of([&] { parse_strategy(options, degree, heads); });
}

StrategyOptions named(const std::string& name, std::optional<int64_t> shards = {}) {
  StrategyOptions options;
  options.attention = name;
  options.ulysses_shards = shards;
  return options;
}

constexpr std::nullopt_t kUnset = std::nullopt;

void expect_grid(const std::string& name, std::optional<int64_t> shards, int degree, int ulysses, int ring,
                 Direction direction, Softmax softmax = Softmax::kOnline) {
  const Strategy s = parse_strategy(named(name, shards), degree, 12);
  EXPECT_EQ(s.layout.ulysses, ulysses) << name;
  EXPECT_EQ(s.layout.ring, ring) << name;
  EXPECT_EQ(s.layout.gather, degree / (ulysses * ring)) << name;
  EXPECT_EQ(s.layout.direction, direction) << name;
  EXPECT_EQ(s.softmax, softmax) << name;
}

TEST(Names, MapOntoTheFourFields) {
  for (const char* name : {"flash", "tokamax_flash", "cudnn_flash_te", "dot_product"}) {
    expect_grid(name, kUnset, 1, 1, 1, Direction::kForward);
    expect_grid(name, kUnset, 4, 1, 1, Direction::kForward);  // over ranks, a gather
    EXPECT_EQ(parse_strategy(named(name), 1, 12).kernel, "");
    EXPECT_EQ(strategy_note(named(name)),
              std::string(name) == "flash" ? "" : fmt::format("attention={} is computed as flash", name));
  }
  EXPECT_EQ(strategy_note(named("ring")), "");
  for (const int degree : {1, 2, 7}) expect_grid("gather", kUnset, degree, 1, 1, Direction::kForward);
  for (const char* name : {"ring", "tokamax_ring", "tokamax_ring_custom"})
    expect_grid(name, kUnset, 4, 1, 4, Direction::kForward);
  for (const char* name : {"ulysses", "ulysses_custom"}) expect_grid(name, kUnset, 4, 4, 1, Direction::kForward);
  for (const char* name : {"ulysses_ring", "ulysses_ring_custom"}) expect_grid(name, 2, 4, 2, 2, Direction::kForward);
  expect_grid("ulysses_ring_custom_bidir", 2, 8, 2, 4, Direction::kOpen);
  expect_grid("ulysses_custom_fixed_m", kUnset, 4, 4, 1, Direction::kForward, Softmax::kFixedMax);
  expect_grid("ulysses_ring_custom_fixed_m", 2, 4, 2, 2, Direction::kForward, Softmax::kFixedMax);
  expect_grid("auto", kUnset, 16, 8, 2, Direction::kForward);  // the largest divisor of 16 that is ≤ 12 heads
  expect_grid("auto", 2, 16, 2, 8, Direction::kForward);
}

TEST(Names, AllAreKnown) {
  for (const std::string& name : strategy_names())
    for (const int degree : {4, 8}) EXPECT_EQ(refusal(named(name), degree), "no error") << name;
}

TEST(Names, UnknownOnesGetTheNearest) {
  EXPECT_THAT(refusal(named("ulyses")), AllOf(HasSubstr("attention=ulyses is not known"), HasSubstr("'ulysses'")));
  EXPECT_THAT(refusal(named("rnig")), HasSubstr("did you mean 'ring'"));
  EXPECT_THAT(refusal(named("ulysses_ring_custom_bidirectional")), HasSubstr("'ulysses_ring_custom_bidir'"));
  EXPECT_THAT(refusal(named("")), HasSubstr("There are: auto, flash, tokamax_flash"));
  // "auto" is no help to who asks for something else altogether.
  EXPECT_THAT(refusal(named("xyz")), HasSubstr("attention=xyz is not known. There are: auto"));
}

TEST(Keys, IllegalShardsListTheLegalOnes) {
  EXPECT_THAT(refusal(named("auto", 3)), HasSubstr("does not divide the context degree 4; legal values: 1, 2, 4"));
  EXPECT_THAT(refusal(named("auto", -2)), HasSubstr("must be at least 1; legal values: 1, 2, 4"));
  EXPECT_THAT(refusal(named("auto", 16), 16), HasSubstr("more than the 12 heads"));
  EXPECT_THAT(refusal({}, 1, 0), HasSubstr("0 heads"));
  EXPECT_THAT(refusal(named("auto", 16), 16), HasSubstr("legal values: 1, 2, 4, 8"));
  EXPECT_THAT(refusal(named("ulysses"), 16), HasSubstr("ulysses_shards=16 is more than the 12 heads"));
}

TEST(Keys, WhatDeniesANameIsRefused) {
  EXPECT_THAT(refusal(named("ring", 2)), HasSubstr("attention=ring means ulysses_shards=1, but ulysses_shards=2"));
  EXPECT_THAT(refusal(named("ulysses", 2)), HasSubstr("means ulysses_shards=4"));
  StrategyOptions options;
  for (const char* name : {"flash", "gather"}) {
    EXPECT_THAT(refusal(named(name, 2)),
                HasSubstr(fmt::format("attention={} means ulysses_shards=1, but ulysses_shards=2", name)));
    options = named(name);
    options.ring_direction = Direction::kTwoWay;
    EXPECT_THAT(refusal(options), HasSubstr("ring_direction=two_way is not possible where every rank gathers"));
    options = named(name);
    options.ulysses_attention_chunks = 2;
    EXPECT_THAT(refusal(options), HasSubstr("ulysses_attention_chunks=2 is not possible where every rank gathers"));
  }
  options = named("ulysses_ring_custom_bidir", 2);
  options.ring_direction = Direction::kForward;
  EXPECT_THAT(refusal(options), HasSubstr("means ring_direction=open, but ring_direction=forward is given"));
  for (const char* name : {"ulysses_custom_fixed_m", "ulysses_ring_custom_fixed_m"}) {
    options = named(name);
    options.softmax = Softmax::kOnline;
    EXPECT_THAT(refusal(options), HasSubstr("means softmax=fixed_max, but softmax=online is given"));
  }
}

// Every key beside every name that it does not deny.
TEST(Keys, RefineANamesDefaults) {
  for (const std::string& name : strategy_names()) {
    const bool gathers = requested_strategy(named(name)).layout.ring == 1 && name.find("ulysses") == std::string::npos;
    const int degree = gathers ? 1 : 4;
    for (const Direction direction : parallel::kDirections) {
      for (const Softmax softmax : parallel::kSoftmaxes) {
        if (name.ends_with("_bidir") && !goes_both_ways(direction)) continue;
        if (name.ends_with("_fixed_m") && softmax != Softmax::kFixedMax) continue;
        StrategyOptions options = named(name);
        options.ring_direction = direction;
        options.softmax = softmax;
        options.ulysses_attention_chunks = 3;
        const Strategy s = parse_strategy(options, degree, 12);
        EXPECT_EQ(s.layout.direction, direction) << name;
        EXPECT_EQ(s.softmax, softmax) << name;
        EXPECT_EQ(s.layout.head_chunks, 3) << name;
      }
    }
  }
}

TEST(Names, UlyssesRingIsTwoDimensional) {
  for (const char* name : {"ulysses_ring", "ulysses_ring_custom"}) {
    expect_grid(name, kUnset, 4, 2, 2, Direction::kForward);
    expect_grid(name, kUnset, 8, 4, 2, Direction::kForward);
    expect_grid(name, kUnset, 24, 12, 2, Direction::kForward);
    expect_grid(name, 2, 24, 2, 12, Direction::kForward);
    expect_grid(name, kUnset, 9, 3, 3, Direction::kForward);
    for (const int degree : {1, 2, 3, 5, 7})
      EXPECT_THAT(refusal(named(name), degree),
                  AllOf(HasSubstr(fmt::format("a context of {} rank", degree)),
                        HasSubstr("has no such split; use attention=ring or attention=ulysses")));
    EXPECT_THAT(refusal(named(name), 4, 1), HasSubstr("4 ranks with 1 head has no such split"));
    for (const int shards : {-1, 1, 3, 8})
      EXPECT_THAT(refusal(named(name, shards), 8),
                  AllOf(HasSubstr(fmt::format("ulysses_shards={} is not possible with attention=ulysses_ring", shards)),
                        HasSubstr("legal values with a context of 8 ranks: 2, 4;")));
  }
}

TEST(Keys, HeadChunksHaveARange) {
  StrategyOptions options;
  options.ulysses_attention_chunks = 0;
  EXPECT_THAT(refusal(options), HasSubstr("ulysses_attention_chunks=0 must be from 1"));
  options.ulysses_attention_chunks = int64_t{1} << 40;
  EXPECT_THAT(refusal(options), HasSubstr("to 4096"));
}

TEST(Keys, WithoutANameTheyAreFree) {
  StrategyOptions options;
  options.ulysses_shards = 2;
  options.ring_direction = Direction::kTwoWay;
  options.ulysses_attention_chunks = 3;
  options.softmax = Softmax::kFixedMax;
  options.use_k_smoothing = false;
  options.deterministic = true;
  const Strategy strategy = parse_strategy(options, 4, 12);
  EXPECT_EQ(strategy.layout.ulysses, 2);
  EXPECT_EQ(strategy.layout.ring, 2);
  EXPECT_EQ(strategy.layout.direction, Direction::kTwoWay);
  EXPECT_EQ(strategy.layout.head_chunks, 3);
  EXPECT_EQ(strategy.softmax, Softmax::kFixedMax);
  EXPECT_FALSE(strategy.k_smoothing);
  EXPECT_TRUE(strategy.deterministic);
  EXPECT_FALSE(strategy.tile_search);
}

TEST(Keys, BlockSizesAreNumbers) {
  StrategyOptions options;
  options.flash_block_sizes = {.block_kv = 512, .block_kv_compute = 512};
  const Strategy strategy = parse_strategy(options, 1, 12);
  EXPECT_EQ(strategy.block_q, 0);
  EXPECT_EQ(strategy.block_kv, 512);
  EXPECT_EQ(tile_note(options.flash_block_sizes), "");
  // Tiles of other machines are taken and said.
  options.flash_block_sizes = {.block_q = 9472, .block_kv = 1024, .block_kv_compute = 512};
  EXPECT_EQ(parse_strategy(options, 1, 12).block_q, 9472);
  EXPECT_THAT(tile_note(options.flash_block_sizes),
              AllOf(HasSubstr("flash_block_sizes: block_q=9472 is computed as 4096, the most here"),
                    HasSubstr("block_kv_compute=512 has no effect on CPUs")));
  options.flash_block_sizes = {.block_kv_compute = -1};
  EXPECT_THAT(refusal(options), HasSubstr("block_kv_compute=-1"));
  options.flash_block_sizes = {.block_q = -1};
  EXPECT_THAT(refusal(options), HasSubstr("flash_block_sizes: block_q=-1"));
}

TEST(Keys, WhatExcludesEachOtherIsRefused) {
  StrategyOptions options;
  options.use_base2_exp = false;
  EXPECT_THAT(refusal(options), HasSubstr("use_base2_exp=false is not possible"));
  options = {};
  options.deterministic = options.enable_tile_search = true;
  EXPECT_THAT(refusal(options), HasSubstr("enable_tile_search=true with deterministic=true is not possible"));
  options.deterministic = false;
  EXPECT_EQ(refusal(options), "no error");
}

// Every key, through the set that the commands use.
TEST(Keys, AreDescribedOnce) {
  StrategyOptions options;
  OptionSet set;
  describe_strategy_options(set, options);
  for (const char* argument :
       {"attention=ulysses_ring", "ulysses_shards=2", "ulysses_attention_chunks=3", "ring_direction=forward",
        "softmax=online", "flash_block_sizes={block_q: 64}", "use_base2_exp=true", "use_k_smoothing=false",
        "enable_tile_search=true", "deterministic=false", "kv_exchange_dtype=int8", "attention_dtype=int8"})
    set.set_argument(argument);
  EXPECT_EQ(options.softmax, Softmax::kOnline);
  const Strategy strategy = parse_strategy(options, 4, 12);
  EXPECT_EQ(strategy.layout.ulysses, 2);
  EXPECT_EQ(strategy.layout.head_chunks, 3);
  EXPECT_EQ(strategy.block_q, 64);
  EXPECT_TRUE(strategy.tile_search);
  EXPECT_EQ(strategy.kv_exchange, KVExchange::kInt8);
  EXPECT_EQ(strategy.attention_dtype, AttentionDtype::kInt8);
  EXPECT_THAT(error_of([&] { set.set_argument("attention_dtype=bf16"); }),
              HasSubstr("'bf16' is unknown; one of: as_computed, int8"));
  EXPECT_THAT(error_of([&] { set.set_argument("kv_exchange_dtype=fp8"); }),
              HasSubstr("'fp8' is unknown; one of: as_computed, bf16, int8"));
  set.set_argument("flash_block_sizes={block_kv: 512}");
  EXPECT_EQ(parse_strategy(options, 4, 12).block_q, 0);  // the whole key is set again
  set.set_argument("softmax=auto");
  EXPECT_FALSE(options.softmax);
  EXPECT_THAT(error_of([&] { set.set_argument("softmax=exact"); }),
              HasSubstr("'exact' is unknown; one of: online, fixed_max, auto"));
  EXPECT_THAT(error_of([&] { set.set_argument("ring_direction=sideways"); }),
              HasSubstr("'sideways' is unknown; one of: forward, "));
  EXPECT_THAT(
      error_of([&] { set.set_argument("flash_block_sizes=block_k:3"); }),
      HasSubstr("flash_block_sizes=block_k:3: 'block_k' is unknown; one of: block_q, block_kv, block_kv_compute"));
  EXPECT_THAT(error_of([&] { set.set_argument("ulysses_attention_chunks=0"); }), HasSubstr("1 to 4096"));
}

TEST(Keys, ShardWeightsAreAWordOrAList) {
  StrategyOptions options;
  OptionSet set;
  describe_strategy_options(set, options);
  set.set_argument("shard_weights=4,2,1");
  EXPECT_EQ(parse_strategy(options, 3, 12).layout.shard_weights, (std::vector<int>{4, 2, 1}));
  EXPECT_THAT(refusal(options), HasSubstr("shard_weights=4,2,1 has 3 numbers, but the context has 4 ranks"));
  set.set_argument("shard_weights=6,6,6");
  EXPECT_EQ(parse_strategy(options, 3, 12).layout.shard_weights, std::vector<int>());
  EXPECT_THAT(set.values(), HasSubstr("shard_weights=6,6,6"));
  set.set_argument("shard_weights=even");
  EXPECT_EQ(parse_strategy(options, 4, 12).layout.shard_weights, std::vector<int>());
  EXPECT_EQ(error_of([&] { require_fixed_shards(options, "attention"); }), "no error");
  set.set_argument("shard_weights=auto");
  EXPECT_TRUE(options.shard_weights.automatic);
  EXPECT_EQ(parse_strategy(options, 4, 12).layout.shard_weights, std::vector<int>());
  EXPECT_THAT(error_of([&] { require_fixed_shards(options, "attention"); }),
              HasSubstr("shard_weights=auto is not possible in attention"));
  options.deterministic = true;
  EXPECT_THAT(refusal(options), HasSubstr("shard_weights=auto with deterministic=true is not possible"));
  for (const char* argument : {"shard_weights=2,", "shard_weights=2,x", "shard_weights=fast",
                               "shard_weights=", "shard_weights= ", "shard_weights=1 2", "shard_weights=0,1"}) {
    EXPECT_THAT(error_of([&] { set.set_argument(argument); }),
                AllOf(HasSubstr("shard_weights="), HasSubstr("even, auto, or one whole number for each context rank")))
        << argument;
  }
  set.set_argument("shard_weights= 1, 2 ,3 ");
  EXPECT_EQ(options.shard_weights.fixed, (std::vector<int>{1, 2, 3}));
  EXPECT_THAT(error_of([&] { set.set_argument("shard_weights=2,0"); }), HasSubstr("1 to 1000"));
  EXPECT_THAT(error_of([&] { set.set_argument("shard_weights=2,1001"); }), HasSubstr("1 to 1000"));
}

// What the planner may choose.
TEST(Requests, HoldWhatANameOrAKeySays) {
  const auto open = [](const StrategyOptions& options) {
    const Strategy s = requested_strategy(options);
    std::string fields;
    if (!s.layout.ulysses) fields += "U";
    if (!s.layout.ring) fields += "R";
    if (!s.layout.direction) fields += "d";
    if (!s.layout.head_chunks) fields += "c";
    if (!s.layout.gather) fields += "g";
    if (!s.softmax) fields += "s";
    return fields;
  };
  EXPECT_EQ(open({}), "URdcgs");
  EXPECT_EQ(open(named("ring")), "Rc");
  EXPECT_EQ(open(named("ulysses")), "Uc");
  EXPECT_EQ(open(named("ulysses_ring")), "URc");
  for (const char* name : {"flash", "dot_product", "gather"}) EXPECT_EQ(open(named(name)), "g");
  StrategyOptions options;
  options.ulysses_shards = 2;
  options.ring_direction = Direction::kOpen;
  options.ulysses_attention_chunks = 3;
  EXPECT_EQ(open(options), "Rs");
  EXPECT_EQ(requested_strategy(options).layout.direction, Direction::kOpen);
  options.softmax = Softmax::kFixedMax;
  EXPECT_EQ(open(options), "R");
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
  // Their product in 64 bits is 0.
  EXPECT_THAT(with([](Problem& p) { p.tokens = int64_t{1} << 62; }), HasSubstr("more than any machine holds"));
  EXPECT_THAT(with([](Problem& p) { p.batch = int64_t{1} << 61; }), HasSubstr("more than any machine holds"));
  EXPECT_THAT(with([](Problem& p) { p.key_tokens = int64_t{1} << 60; }), HasSubstr("1152921504606846976 key tokens"));
  EXPECT_EQ(with([](Problem&) {}), "no error");
  comm::run_ranks(1, [](comm::Communicator& comm) {
    for (const int threads : {0, 1'000'000'000})
      EXPECT_THAT(error_of([&] { plan(kProblem, {}, comm, threads); }), HasSubstr("1 to 4096 can be had"));
  });
}

TEST(Plan, RefusesStrategies) {
  // By the names of the fields, not of a configuration's keys.
  EXPECT_THAT(plan_refusal(kProblem, {.layout = {.ulysses = 2}}),
              StartsWith("ulysses=2 does not divide the context degree 1; legal values: 1"));
  EXPECT_THAT(plan_refusal(kProblem, {.layout = {.head_chunks = 0}}), StartsWith("head_chunks=0 must be from 1"));
  EXPECT_THAT(plan_refusal(kProblem, {.layout = {.two_dimensional = true}}),
              AllOf(StartsWith("two_dimensional=true needs Ulysses x ring"), HasSubstr("use two_dimensional=false")));
  EXPECT_THAT(plan_refusal(kProblem, {.block_q = -1}), StartsWith("block_q=-1"));
  EXPECT_THAT(plan_refusal(kProblem, {.deterministic = true, .tile_search = true}),
              StartsWith("tile_search=true with deterministic=true is not possible"));
  EXPECT_THAT(plan_refusal(kProblem, {.kernel = "warp"}), HasSubstr("warp"));
  Problem problem = kProblem;
  EXPECT_EQ(plan_refusal(problem, {.kv_exchange = KVExchange::kBFloat16}), "no error");
  problem.dtype = DType::kBF16;
  EXPECT_EQ(plan_refusal(problem, {.kv_exchange = KVExchange::kInt8}), "no error");
  EXPECT_THAT(plan_refusal(problem, {.kv_exchange = KVExchange::kBFloat16}),
              StartsWith("kv_exchange=bf16: keys and values are computed in bf16 and travel so anyway"));
}

// As a program may bring them, on every rank.
TEST(Plan, RefusesWhatIsNoValueOfAnEnum) {
  constexpr int kNone = 99;
  Problem problem = kProblem;
  problem.dtype = static_cast<DType>(kNone);
  EXPECT_EQ(plan_refusal(problem, {}, 2), "attention: there is no dtype 99; legal are F32 and BF16");
  problem = kProblem;
  problem.mask = static_cast<MaskKind>(kNone);
  EXPECT_EQ(plan_refusal(problem, {}, 2), "attention: there is no mask 99; legal are none, key_lengths and key_mask");
  const auto direction = static_cast<Direction>(kNone);
  const auto softmax = static_cast<Softmax>(kNone);
  const auto exchange = static_cast<KVExchange>(kNone);
  const auto dtype = static_cast<AttentionDtype>(kNone);
  EXPECT_EQ(plan_refusal(kProblem, {.layout = {.direction = direction}}, 2),
            "direction: there is no value 99; legal are forward, two_way, open");
  EXPECT_EQ(plan_refusal(kProblem, {.softmax = softmax}, 2),
            "softmax: there is no value 99; legal are online, fixed_max");
  EXPECT_EQ(plan_refusal(kProblem, {.kv_exchange = exchange}, 2),
            "kv_exchange: there is no value 99; legal are as_computed, bf16, int8");
  EXPECT_EQ(plan_refusal(kProblem, {.attention_dtype = dtype}, 2),
            "attention_dtype: there is no value 99; legal are as_computed, int8");
  StrategyOptions options = named("ulysses_ring_custom_bidir");
  options.ring_direction = direction;
  EXPECT_EQ(refusal(options), "ring_direction: there is no value 99; legal are forward, two_way, open");
  options = {};
  options.softmax = softmax;
  EXPECT_THAT(refusal(options), StartsWith("softmax: there is no value 99"));
  options = {};
  options.kv_exchange_dtype = exchange;
  EXPECT_THAT(refusal(options), StartsWith("kv_exchange_dtype: there is no value 99"));
  options = {};
  options.attention_dtype = dtype;
  EXPECT_THAT(refusal(options), StartsWith("attention_dtype: there is no value 99"));
  for (const int degree : {0, -1})
    EXPECT_EQ(refusal({}, degree), fmt::format("attention: a context of {} ranks; there must be at least one", degree));
}

TEST(Plan, RefusesInt8WhereItIsNotPossible) {
  const Strategy int8{.attention_dtype = AttentionDtype::kInt8};
  EXPECT_EQ(plan_refusal(kProblem, int8),
            "attention_dtype=int8: attention is computed in float32, and int8 is of bf16; leave it out");
  Problem problem = kProblem;
  problem.dtype = DType::kBF16;
  EXPECT_EQ(plan_refusal(problem, int8), "no error");
  for (const double limit : {0.0, -0.1, 0.06, std::nan("")})
    EXPECT_THAT(plan_refusal(problem, {.attention_dtype = AttentionDtype::kInt8, .attention_int8_limit = limit}),
                HasSubstr("must be above 0 and at most 0.05"));
  Strategy named = int8;
  named.kernel = "avx512_bf16";
  EXPECT_THAT(plan_refusal(problem, named), HasSubstr("'avx512_bf16' cannot run here: does not multiply in int8"));
}

TEST(Plan, RefusesRanksThatDisagree) {
  const auto disagree = [](auto&& change) {
    return error_of([&] {
      comm::run_ranks(4, [&](comm::Communicator& comm) {
        Problem problem = kProblem;
        Strategy strategy{.layout = {.ulysses = 2}};
        if (comm.rank() == 2) change(problem, strategy);
        plan(problem, strategy, comm, 1);
      });
    });
  };
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.tokens = 11; }),
              HasSubstr("attention: rank 0 planned tokens=10, but rank 2 planned 11; all ranks must bring"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.dtype = DType::kBF16; }),
              HasSubstr("dtype=F32, but rank 2 planned BF16;"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.mask = MaskKind::kKeyMask; }),
              HasSubstr("mask=none, but rank 2 planned key_mask;"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.scale = 1; }),
              HasSubstr("scale=0.35355338, but rank 2 planned 1;"));
  EXPECT_THAT(disagree([](Problem& p, Strategy&) { p.log_sum_exp = true; }),
              HasSubstr("log_sum_exp=false, but rank 2 planned true;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.layout.ulysses = 4; }),
              HasSubstr("ulysses=2, but rank 2 planned 4;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) {
                s.layout.shard_weights = {1, 1, 1, 5};
              }),
              HasSubstr("rank 0 planned shard_weights[3]=1, but rank 2 planned 5;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.kernel = "scalar"; }),
              HasSubstr("rank 0 planned kernel=auto, but rank 2 planned scalar;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.layout.direction = Direction::kOpen; }),
              HasSubstr("direction=forward, but rank 2 planned open;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.softmax = Softmax::kFixedMax; }),
              HasSubstr("softmax=online, but rank 2 planned fixed_max;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.layout.head_chunks = 2; }),
              HasSubstr("head_chunks=1, but rank 2 planned 2;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.block_q = 64; }), HasSubstr("block_q=0, but rank 2 planned 64;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.block_kv = 64; }),
              HasSubstr("block_kv=0, but rank 2 planned 64;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.kv_exchange = KVExchange::kInt8; }),
              HasSubstr("kv_exchange=as_computed, but rank 2 planned int8;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.attention_int8_limit = 0.01; }),
              HasSubstr("attention_int8_limit=0.05, but rank 2 planned 0.01;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.k_smoothing = false; }),
              HasSubstr("k_smoothing=true, but rank 2 planned false;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.deterministic = true; }),
              HasSubstr("deterministic=false, but rank 2 planned true;"));
  EXPECT_THAT(disagree([](Problem&, Strategy& s) { s.tile_search = true; }),
              HasSubstr("tile_search=false, but rank 2 planned true;"));
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
    const auto repeated = [&](const Shape& strides) {
      return TensorView(wide.view().raw(), DType::kF32, {2, 10, 4, 8}, strides);
    };
    EXPECT_EQ(refused(good, repeated({320, 32, 0, 1}), repeated({0, 32, 8, 1}), good), "no error");
    EXPECT_THAT(refused(good, good, good, repeated({320, 32, 0, 1})), HasSubstr("axis 2 of o has stride 0, so that"));
    EXPECT_THAT(error_of([&] { attention.run({}, repeated({0, 32, 8, 1})); }), HasSubstr("axis 0 of o has stride 0"));
    EXPECT_THAT(refused({nullptr, DType::kF32, {2, 10, 4, 8}}, good, good, good), HasSubstr("q has no data"));
    EXPECT_EQ(refused(good, good, good, good), "no error");
  });
}

TEST(Run, RefusesALogSumExpThatWasNotPlanned) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    Problem problem = kProblem;
    ContextAttention without = plan(problem, {}, comm, 1);
    problem.log_sum_exp = true;
    ContextAttention with = plan(problem, {}, comm, 1);
    const Tensor x(DType::kF32, {2, 10, 4, 8}), good(DType::kF32, {2, 10, 4}), wide(DType::kF32, {2, 10, 4, 1}),
        half(DType::kBF16, {2, 10, 4});
    const auto refused = [&](ContextAttention& attention, const TensorView& logs) {
      const std::string slots = error_of([&] { attention.run({}, x, logs); });
      EXPECT_EQ(error_of([&] { attention.run(x, x, x, {}, x, logs); }), slots);
      return slots;
    };
    EXPECT_THAT(refused(without, good), HasSubstr("log_sum_exp was not planned but is given"));
    EXPECT_THAT(refused(with, {}), HasSubstr("log_sum_exp was planned but is not given"));
    EXPECT_THAT(refused(with, wide), HasSubstr("log_sum_exp is F32 [2, 10, 4, 1], but must be F32 [2, 10, 4]"));
    const TensorView repeated(good.view().raw(), DType::kF32, {2, 10, 4}, {40, 0, 1});
    EXPECT_THAT(refused(with, repeated), HasSubstr("axis 1 of log_sum_exp has stride 0, so that its 10 parts would"));
    EXPECT_THAT(refused(with, half), HasSubstr("log_sum_exp is BF16 [2, 10, 4], but must be F32"));
    EXPECT_EQ(refused(with, good), "no error");
    EXPECT_EQ(refused(without, {}), "no error");
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
  EXPECT_THAT(refused(MaskKind::kKeyMask, {}), HasSubstr("a key mask was planned, but none is given"));
  for (const int64_t length : {int64_t{-1}, int64_t{11}, INT64_MIN, INT64_MAX}) {
    const std::vector<int64_t> outside{3, length};
    EXPECT_THAT(refused(MaskKind::kKeyLengths, {outside, {}}),
                HasSubstr(fmt::format("key length {} of batch 1 must be from 0 to 10", length)));
  }
}

// The slots of a rank cover every head once for q, k and v, at every grid, chunked or not.
TEST(Slots, CoverEveryHeadOnce) {
  for (const int ulysses : {1, 2, 3, 6}) {
    for (const int chunks : {1, 3}) {
      comm::run_ranks(6, [&](comm::Communicator& comm) {
        for (const int64_t tokens : {4, 13}) {  // four tokens over six ranks: two shards are empty
          ContextAttention attention =
              plan({2, tokens, 7, 8, DType::kBF16}, {.layout = {.ulysses = ulysses, .head_chunks = chunks}}, comm, 1);
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
