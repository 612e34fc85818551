// What the cases are made of: words, shapes, data, the check against the definition, and the peaks. How fast anything
// is, is no test's business.
#include "bench/cases.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <cmath>
#include <cstring>

#include "zoetrope/communicator.h"

#include "base/error.h"
#include "base/test_folder.h"
#include "bench/attention_data.h"
#include "bench/attention_run.h"
#include "bench/peak.h"
#include "bench/words.h"
#include "kernels/flash_attention/flash_attention.h"
#include "tensor/half.h"

namespace zoetrope::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Words, ListsAreSplitAndChecked) {
  EXPECT_THAT(choose_words("softmax", "a,b", {"a", "b", "c"}), ElementsAre("a", "b"));
  EXPECT_THAT(choose_words("softmax", "all", {"a", "b"}), ElementsAre("a", "b"));
  EXPECT_THAT(parse_counts("threads", "1,all,4,1", 4, 64), ElementsAre(1, 4));
  EXPECT_THAT(parse_byte_sizes("sizes", "8,64K,16M,1G"), ElementsAre(8, 65536, 16 << 20, 1 << 30));
}

TEST(Words, DTypesHaveTwoSpellings) {
  EXPECT_THAT(choose_dtypes("dtype", "all"), ElementsAre("bf16", "f32"));
  EXPECT_THAT(choose_dtypes("dtype", "float32,bf16"), ElementsAre("f32", "bf16"));
  EXPECT_THAT(choose_dtypes("dtype", "f32"), ElementsAre("f32"));
  EXPECT_THAT(error_of([] { choose_dtypes("dtype", "f64"); }), HasSubstr("'f64'"));
}

TEST(Words, RefusalsNameKeyWordAndWhatIsRight) {
  EXPECT_EQ(error_of([] {
              choose_words("dtype", "bf61", {"bf16", "f32"});
            }),
            "dtype: there is no 'bf61' (did you mean 'bf16'?); there are: bf16, f32, and all");
  EXPECT_EQ(error_of([] { parse_counts("threads", "0", 2, 64); }),
            "threads: '0' is not a count from 1 to 64, nor 'all'");
  EXPECT_THAT(error_of([] { parse_byte_sizes("sizes", "5G"); }), HasSubstr("sizes: '5G' is not a size"));
  EXPECT_THAT(error_of([] { parse_byte_sizes("sizes", "K"); }), HasSubstr("sizes: 'K' is not a size"));
  EXPECT_THAT(error_of([] { split_words("sizes", "1,,2"); }), HasSubstr("an empty word"));
}

TEST(Words, ShapesAreGroupsOrSizesWithAMask) {
  EXPECT_GE(parse_shapes("shapes", "small").size(), 4u);
  const auto shapes = parse_shapes("shapes", "2x100x3x64:kv=50:mask=0.5");
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].batch, 2);
  EXPECT_EQ(shapes[0].queries, 100);
  EXPECT_EQ(shapes[0].keys, 50);
  EXPECT_EQ(shapes[0].heads, 3);
  EXPECT_EQ(shapes[0].head_dim, 64);
  EXPECT_EQ(shapes[0].key_mask, 0.5);
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "tiny"); }), HasSubstr("neither a group (lengths, two_heads"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "1x0x1x8"); }),
              HasSubstr("'0' in '1x0x1x8' is not a number of tokens"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "1x8x1x8:kv"); }), HasSubstr("not a number of keys"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "1x8x1x8:mask=2"); }), HasSubstr("not a share of valid keys"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "1x8x1x8:q=2"); }), HasSubstr("is unknown"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "1x8x1x8:mask=0.5:lengths=0.5"); }), HasSubstr("two masks"));
  EXPECT_THAT(error_of([] { parse_shapes("shapes", "64x4194304x1024x1024"); }), HasSubstr("elements"));
}

TEST(AttentionData, CountsTheWorkOfValidKeysOnly) {
  const AttentionData whole({"", 2, 8, 10, 3, 4, 0, 0}, DType::kF32);
  EXPECT_EQ(whole.valid_keys(), 20);
  EXPECT_EQ(whole.flop(), 4.0 * 8 * 20 * 3 * 4);
  const AttentionData lengths({"", 2, 8, 10, 3, 4, 0.5, 0}, DType::kF32);
  EXPECT_THAT(lengths.key_lengths, ElementsAre(5, 5));
  EXPECT_EQ(lengths.flop(), whole.flop() / 2);
  const AttentionData masked({"", 2, 8, 10, 3, 4, 0, 0.5}, DType::kF32);
  int64_t valid = 0;
  for (int64_t i = 0; i < masked.key_mask.size(); ++i) valid += masked.key_mask.data<uint8_t>()[i];
  EXPECT_EQ(masked.valid_keys(), valid);
  EXPECT_LT(valid, 20);
}

TEST(AttentionData, NormalDeviatesHaveMeanZeroAndVarianceOne) {
  const AttentionData data({"", 1, 2048, 16, 1, 32, 0, 0}, DType::kF32);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < data.q.size(); ++i) {
    const double x = data.q.data<float>()[i];
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(data.q.size());
  // Five standard errors: 1/√n of the mean, √(2/n) of the variance.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
}

class Sampled : public testing::TestWithParam<DType> {};

TEST_P(Sampled, PassesWhatIsRightAndFindsAWrongRow) {
  const AttentionData data({"", 2, 300, 70, 2, 16, 0, 0.75}, GetParam());
  Tensor o(GetParam(), data.q.shape());
  Stream stream(1);
  kernels::FlashAttention(data.problem()).attend(stream, data.q, data.block(), o);
  const SampledReference reference(data, 32);
  const Verdict right = reference.check(o);
  EXPECT_EQ(right.note(), "");
  EXPECT_TRUE(right.passed()) << right.relative_l2 << " > " << right.tolerance;
  EXPECT_GT(right.relative_l2, 0) << "something was compared";
  // The first row of the first batch entry and the last of the last are always among the sampled.
  for (const int64_t at : {int64_t{0}, o.size() - 1}) {
    Tensor wrong(GetParam(), data.q.shape());
    std::memcpy(wrong.data<char>(), o.data<char>(), o.view().bytes());
    if (GetParam() == DType::kBF16) {
      wrong.data<BFloat16>()[at] = to_bfloat16(2 + to_float(wrong.data<BFloat16>()[at]));
    } else {
      wrong.data<float>()[at] += 2;
    }
    EXPECT_FALSE(reference.check(wrong).passed()) << at;
    EXPECT_EQ(reference.check(wrong).note(), "WRONG: beyond the tolerance");
  }
  Tensor nothing(GetParam(), data.q.shape());
  std::memset(nothing.data<char>(), 0xff, nothing.view().bytes());
  EXPECT_FALSE(reference.check(nothing).finite);
  EXPECT_FALSE(reference.check(nothing).passed());
  EXPECT_EQ(reference.check(nothing).note(), "WRONG: not finite");
}

INSTANTIATE_TEST_SUITE_P(DTypes, Sampled, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// The shapes that the benchmarks time are tested too: the small ones here, with everything that can run.
TEST(Problems, SmallShapesAreRightInEveryImplementationAndSoftmax) {
  int checked = 0;
  for (const problems::AttentionShape& shape : parse_shapes("shapes", "small")) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionData data(shape, dtype);
      const SampledReference reference(data);
      Stream stream(2);
      for (const std::string& name : kernels::FlashAttention::implementations()) {
        for (const kernels::Softmax softmax :
             {kernels::Softmax::kOnline, kernels::Softmax::kExactOnline, kernels::Softmax::kFixedMax}) {
          kernels::FlashProblem problem = data.problem();
          problem.implementation = name;
          problem.softmax = softmax;
          if (!kernels::FlashAttention::refusal(problem, name).empty()) continue;
          Tensor o(dtype, data.q.shape());
          kernels::FlashAttention(problem).attend(stream, data.q, data.block(), o);
          const Verdict verdict = reference.check(o);
          EXPECT_TRUE(verdict.passed()) << name << " " << dtype_name(dtype) << " " << shape.queries << "x" << shape.keys
                                        << ": " << verdict.relative_l2 << " > " << verdict.tolerance;
          ++checked;
        }
      }
    }
  }
  EXPECT_GE(checked, 4 * 2 * 3) << "the scalar implementation can do them all";
}

TEST(SampledReference, AgreesWithAllRows) {
  const AttentionData data({"", 1, 50, 20, 1, 8, 0, 0}, DType::kF32);
  Tensor o(DType::kF64, data.q.shape());
  kernels::flash_attention_reference(data.problem(), data.q, data.block(), o);
  for (const int64_t rows : {1, 3, 49, 50, 400}) EXPECT_EQ(SampledReference(data, rows).check(o).max_abs, 0) << rows;
}

TEST(Peak, EveryKernelHasAnInstructionSet) {
  for (const std::string& name : kernels::FlashAttention::implementations()) {
    EXPECT_NO_THROW(isa_of_kernel(name)) << name;
  }
  EXPECT_EQ(isa_of_kernel("avx512_bf16"), Isa::kAvx512Bf16);
  EXPECT_THAT(error_of([] { isa_of_kernel("neon"); }), HasSubstr("'neon'"));
}

// 32 ranks on one core do no more than the core does. Held against CPU time, which other processes do not change; the
// margin is for what shares the core unseen.
TEST(Peak, OfMoreRanksThanCoresIsThatOfTheCores) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  constexpr int kRanks = 32;
  const AttentionData data({"", 1, 2 * kRanks, 2 * kRanks, 1, 8, 0, 0}, DType::kF32);
  Tensor o(DType::kF32, data.q.shape());
  AttentionMeasurement measured;
  comm::run_ranks(kRanks, [&](comm::Communicator& world) {
    Stream stream(1);
    const AttentionMeasurement mine = AttentionRank(world, stream, data, o, {}).time(1);
    if (world.rank() == 0) measured = mine;
  });
  ThreadTeam team(1);
  const double core = measure_peak(isa_of_kernel(measured.implementation), team, 0.1).cpu_flops;
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_LT(measured.peak_flops[0] / core, 2);
}

TEST(Peak, IsMeasuredWhereTheCpuCanAndRefusedWhereNot) {
  ThreadTeam team(2);
  for (const Isa isa : all_isas()) {
    if (!isa_available(isa)) {
      EXPECT_THAT(error_of([&] { measure_peak(isa, team, 0.001); }), HasSubstr("lacks"));
      continue;
    }
    const Peak peak = measure_peak(isa, team, 0.001);
    EXPECT_GT(peak.flops, 0) << isa_name(isa);
    EXPECT_GT(peak.cpu_flops, 0) << isa_name(isa);
  }
}

TEST(Peak, CopiesAreCopies) {
  for (const CopyKind kind : {CopyKind::kMemcpy, CopyKind::kStreaming}) {
    for (const size_t bytes : {size_t{1}, size_t{64}, size_t{100000}}) {
      EXPECT_GT(measure_copy_bandwidth(2, bytes, 0.0005, kind), 0);
    }
  }
}

TEST(Peak, PairedTimingsChecksFirstAndRepeats) {
  ThreadTeam team(1);
  int runs = 0, runs_at_check = 0;
  const auto repeats = time_beside_peak(
      Isa::kAvx2, team, 1000, {.repeats = 3, .window = 0.0005}, [&] { ++runs; }, [&] { runs_at_check = runs; });
  ASSERT_EQ(repeats.size(), 3u);
  EXPECT_EQ(runs_at_check, 1);
  for (const PairedRepeat& repeat : repeats) {
    EXPECT_GT(repeat.seconds, 0);
    EXPECT_NEAR(repeat.fraction, 1000 / repeat.seconds / repeat.peak.flops, 1e-9);
  }
  EXPECT_THAT(error_of([&] {
                time_beside_peak(
                    Isa::kAvx2, team, 1, {}, [] {}, [] { fail("bad result"); });
              }),
              "bad result");
}

}  // namespace
}  // namespace zoetrope::bench
