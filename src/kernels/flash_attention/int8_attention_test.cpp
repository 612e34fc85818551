// Attention in int8: the rounded rows and channels against their formula, the vector implementation against the scalar
// one, which rounds the same, and both against the definition.
#include "kernels/flash_attention/int8_attention.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/test_folder.h"
#include "kernels/flash_attention/testing.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

constexpr const char* kFast[] = {"avx512_int8", "avx_vnni_int8", "avx2_int8"};

// ---- rows ----

// One term at a time.
std::vector<float> rotated(std::vector<float> row) {
  const size_t block = row.size() & -row.size();
  for (size_t half = 1; half < block; half *= 2)
    for (size_t i = 0; i < row.size(); ++i) {
      if ((i & half) != 0) continue;
      const float a = row[i], b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  return row;
}

TEST(Int8Rows, AreRotatedAndRoundedAsTheFormulaSays) {
  for (const int64_t head_dim : {1, 2, 3, 4, 7, 8, 12, 16, 20, 40, 64, 80, 96, 128, 160, 1024}) {
    SCOPED_TRACE(head_dim);
    const Tensor x(DType::kBF16, {head_dim}), mean(DType::kF32, {head_dim});
    test::fill_random(x, 1, 0, 2);
    test::fill_random(mean, 2, 1, 1);
    std::vector<float> row;
    for (int64_t d = 0; d < head_dim; ++d) row.push_back(to_float(x.data<BFloat16>()[d]) - mean.data<float>()[d]);
    row = rotated(row);
    float most = 0;
    for (const float value : row) most = std::max(most, std::abs(value));
    std::vector<int8_t> values(static_cast<size_t>(int8_row_bytes(head_dim)), int8_t{99});
    const Int8Row found = int8_row(x.data<BFloat16>(), mean.data<float>(), head_dim, values.data());
    EXPECT_EQ(found.scale, most / 127);
    int32_t sum = 0;
    for (size_t d = 0; d < values.size(); ++d) {
      const float expected = d < row.size() ? std::nearbyint(row[d] * (127 / most)) : 0.0f;
      EXPECT_EQ(static_cast<float>(values[d]), expected) << d;
      sum += values[d];
    }
    EXPECT_EQ(found.sum, sum);
  }
}

TEST(Int8Rows, OfNothingAndOfWhatIsNoNumber) {
  const Tensor x(DType::kBF16, {40});
  std::vector<int8_t> values(40, int8_t{99});
  EXPECT_EQ(int8_row(x.data<BFloat16>(), nullptr, 40, values.data()).scale, 0);
  EXPECT_EQ(values, std::vector<int8_t>(40));
  for (const float bad : {kNaN, kInfinity, -kInfinity, 3e38f}) {  // of the last, sums overflow
    for (int64_t d = 0; d < 40; ++d) x.data<BFloat16>()[d] = to_bfloat16(bad == 3e38f || d == 17 ? bad : 1.0f);
    const Int8Row row = int8_row(x.data<BFloat16>(), nullptr, 40, values.data());
    EXPECT_TRUE(std::isnan(row.scale)) << bad;
    EXPECT_EQ(row.sum, 0);
  }
}

// The bound that fixed offsets rely on, for rows of any shape; and that it is none without the rounding: some product
// grows.
TEST(Int8Rows, ProductsGrowByNoMoreThanTheBound) {
  for (const int64_t head_dim : {1, 3, 16, 40, 128}) {
    const Tensor x(DType::kBF16, {2, head_dim});
    std::vector<int8_t> q(1024), k(1024);
    double largest = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      test::fill_random(x, seed, seed % 3 == 0 ? 2 : 0, 1);
      for (int64_t d = 0; seed % 2 == 0 && d < head_dim; ++d)  // large in a few places only
        if (d % 17 != 0) x.data<BFloat16>()[d] = to_bfloat16(0.01f * to_float(x.data<BFloat16>()[d]));
      const BFloat16 *a = x.data<BFloat16>(), *b = seed % 5 == 0 ? a : a + head_dim;  // some have the same direction
      const Int8Row of_q = int8_row(a, nullptr, head_dim, q.data()), of_k = int8_row(b, nullptr, head_dim, k.data());
      double exact = 0, rounded = 0, norm_q = 0, norm_k = 0;
      for (int64_t d = 0; d < head_dim; ++d) {
        const auto at = static_cast<size_t>(d);
        const double one = to_float(a[d]), other = to_float(b[d]);
        exact += one * other;
        norm_q += one * one;
        norm_k += other * other;
        rounded += static_cast<double>(q[at]) * static_cast<double>(k[at]);
      }
      rounded *= static_cast<double>(of_q.scale) * static_cast<double>(of_k.scale) /
                 static_cast<double>(rotation_size(head_dim));
      const double error = std::abs(rounded - exact) / std::sqrt(norm_q * norm_k);
      EXPECT_LE(error, int8_score_growth(head_dim) / 2 + 1e-6) << head_dim;
      largest = std::max(largest, error);
    }
    EXPECT_GT(largest, head_dim == 1 ? -1 : 1e-3);
  }
}

// Integers could not say that a key is not a number, so its whole panel is none.
TEST(Int8Keys, OneThatIsNotFiniteSpoilsItsPanel) {
  const Tensor k(DType::kBF16, {150, 16});
  test::fill_random(k, 1);
  for (int64_t d = 0; d < 16; ++d) k.data<BFloat16>()[70 * 16 + d] = to_bfloat16(1e38f);  // sums overflow
  for (const char* implementation : kFast) {
    const TileShape shape = with_tile_sizes(*vector_shape(implementation), {});
    const auto steps = static_cast<size_t>(shape.steps(16));
    std::vector<float> packed(static_cast<size_t>(packed_keys_bytes(shape, 150, 16)) / sizeof(float));
    const std::vector<float> mean(16);
    pack_int8_keys(shape, {k.data<void>(), 16, DType::kBF16, nullptr, 150, 16}, mean.data(), 0, packed.data());
    for (size_t key = 0; key < 192; ++key) {
      const float scale = packed[key / 64 * 64 * (steps + 1) + 64 * steps + key % 64];  // behind the panel's keys
      if (key < 64 || key >= 128) {
        EXPECT_EQ(scale > 0, key < 150) << key;
      } else {
        EXPECT_TRUE(std::isnan(scale)) << key;
      }
    }
  }
}

TEST(Int8Channels, AreRoundedAboutTheirMiddle) {
  constexpr int64_t kKeys = 70, kDim = 21, kPadded = 32;
  const Tensor v(DType::kBF16, {kKeys, kDim});
  test::fill_random(v, 3, 1, 2);
  for (int64_t j = 0; j < kKeys; ++j) {
    v.data<BFloat16>()[j * kDim + 4] = to_bfloat16(7);                                // all the same
    v.data<BFloat16>()[j * kDim + 5] = to_bfloat16(static_cast<float>(100 + j % 2));  // far from zero
  }
  v.data<BFloat16>()[20 * kDim + 8] = to_bfloat16(kNaN);
  v.data<BFloat16>()[21 * kDim + 9] = to_bfloat16(-kInfinity);
  const PackSource source{v.data<void>(), kDim, DType::kBF16, nullptr, kKeys, kDim};
  std::vector<float> scales(kPadded, 1), centers(kPadded, 1), factors(kPadded, 1);
  const Int8Channels channels{scales.data(), centers.data(), factors.data()};
  measure_int8_channels(source, 10, 60, 16, channels);
  std::vector<std::vector<int8_t>> rows(kKeys, std::vector<int8_t>(24));
  for (size_t j = 10; j < 60; ++j)
    int8_value_row(v.data<BFloat16>() + static_cast<int64_t>(j) * kDim, channels, kDim, rows[j].data());
  for (size_t d = 0; d < kPadded; ++d) {
    SCOPED_TRACE(d);
    if (d >= static_cast<size_t>(kDim)) {
      EXPECT_EQ(scales[d], 0);
      EXPECT_EQ(centers[d], 0);
      continue;
    }
    if (d == 8 || d == 9) {
      EXPECT_TRUE(std::isnan(scales[d]));
      continue;
    }
    float low = kInfinity, high = -kInfinity;
    for (size_t j = 10; j < 60; ++j) {
      const float value = to_float(v.data<BFloat16>()[j * kDim + d]);
      low = std::min(low, value);
      high = std::max(high, value);
    }
    EXPECT_FLOAT_EQ(centers[d], (low + high) / 2);
    EXPECT_FLOAT_EQ(scales[d], (high - low) / 254);
    for (size_t j = 10; j < 60; ++j) {
      const float value = to_float(v.data<BFloat16>()[j * kDim + d]);
      EXPECT_NEAR(centers[d] + scales[d] * static_cast<float>(rows[j][d]), value, 0.501f * scales[d]);
    }
  }
  EXPECT_FLOAT_EQ(centers[5], 100.5f);
}

// ---- attention ----

class Int8Attention : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    FlashProblem probe;
    probe.head_dim = 64;
    probe.dtype = DType::kBF16;
    probe.int8 = true;
    const std::string reason = FlashAttention::refusal(probe, GetParam());
    if (reason.starts_with("needs ")) GTEST_SKIP() << GetParam() << " " << reason;
    ASSERT_EQ(reason, "");
  }
  Case make(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t head_dim,
            Softmax softmax = Softmax::kOnline) const {
    Case c({GetParam(), DType::kBF16, softmax}, batch, queries, keys, heads, head_dim);
    c.problem.int8 = true;
    c.problem.int8_limit = kInfinity;  // all heads, whatever it costs
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Implementations, Int8Attention, ::testing::ValuesIn(kFast),
                         [](const auto& suite) { return std::string(suite.param); });
INSTANTIATE_TEST_SUITE_P(Scalar, Int8Attention, ::testing::Values("scalar"),
                         [](const auto& suite) { return std::string(suite.param); });

// Rows and columns of normal deviates, whose largest is at most 3.5 of their size: rounding moves each by
// 3.5 / (127·√12) = 2^-7 of itself, so q, k and v. A score is about 1, and moves a weight by as much as q and k
// together; scores that are `larger` move it by more. Weights of a panel are rounded by 1 / (255·√12) of the largest,
// which is at most seven times their size: by as much again.
double int8_tolerance(const Case& c, double larger = 1) {
  return std::sqrt(2 * larger * larger + 2) * 0x1p-7 + tolerance(c);
}

void expect_near_reference(const Case& c, double larger = 1) {
  const Deviation d = deviation(c.o, c.reference());
  EXPECT_EQ(d.nonfinite_mismatches, 0);
  EXPECT_LE(d.relative_l2, int8_tolerance(c, larger)) << c.q.shape().to_string() << " " << c.k.shape().to_string();
}

class FastInt8Attention : public Int8Attention {};
INSTANTIATE_TEST_SUITE_P(Implementations, FastInt8Attention, ::testing::ValuesIn(kFast),
                         [](const auto& suite) { return std::string(suite.param); });

// The scalar implementation has the same scores up to float32, and the same values. Weights are off by 2^-13, so that
// one in forty is rounded to the byte beside it: less than half of what all roundings of int8 come to. And o is rounded
// in both. Returns the counts of the fast one.
TileCounts expect_scalar(Case& c) {
  c.attend();
  const double error = deviation(c.o, c.reference()).relative_l2;
  const TileCounts counts = c.counts;
  Tensor fast(DType::kF64, c.o.shape());
  for (int64_t i = 0; i < c.o.size(); ++i)
    fast.data<double>()[i] = static_cast<double>(to_float(c.o.data<BFloat16>()[i]));
  const std::string name = c.problem.implementation;
  c.problem.implementation = "scalar";
  c.attend();
  c.problem.implementation = name;
  const Deviation d = deviation(c.o, fast);
  EXPECT_EQ(d.nonfinite_mismatches, 0);
  EXPECT_LE(d.relative_l2, error / 2 + 0x1p-9) << c.q.shape().to_string() << " " << c.k.shape().to_string();
  EXPECT_EQ(counts.int8_heads, c.problem.batch * c.problem.heads);
  return counts;
}

TEST_P(FastInt8Attention, AreThoseOfTheScalarImplementation) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kExactOnline, Softmax::kFixedMax}) {
    for (const int64_t head_dim : {1, 3, 12, 16, 40, 64, 80, 128, 160}) {
      Case c = make(1, 19, 75, 2, head_dim, softmax);
      expect_scalar(c);
    }
    for (const int64_t keys : {1, 15, 63, 64, 65, 128, 255, 256, 257, 513}) {
      Case c = make(1, 9, keys, 1, 24, softmax);
      expect_scalar(c);
    }
    for (const int64_t queries : {1, 2, 3, 4, 5, 64, 255, 256, 257, 513}) {
      Case c = make(1, queries, 21, 1, 24, softmax);
      expect_scalar(c);
    }
  }
}

TEST_P(Int8Attention, AreNearTheDefinition) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kExactOnline, Softmax::kFixedMax}) {
    Case c = make(2, 70, 300, 3, 128, softmax);
    c.attend();
    expect_near_reference(c);
    if (softmax == Softmax::kFixedMax) {
      EXPECT_EQ(c.counts.online, 0);
    }
    c.use_key_lengths({131, 300});
    c.attend();
    expect_near_reference(c);
  }
}

TEST_P(Int8Attention, MasksAndBiasesHold) {
  Case c = make(2, 33, 150, 2, 64);
  c.use_key_mask(5, 0.5);
  c.use_bias(7, 1);
  c.attend();
  expect_near_reference(c);
  // A key that takes no part is not in the mean either.
  const Tensor before(DType::kBF16, c.o.shape());
  Stream stream(1);
  copy(stream, before, c.o);
  for (int64_t j = 0; j < 150; ++j)
    if (c.key_mask.data<uint8_t>()[j] == 0) set_element(c.k, 0, j, 0, 3, kNaN);
  c.attend();
  EXPECT_EQ(std::memcmp(before.view().raw(), c.o.view().raw(), before.view().bytes()), 0);
}

// The mean is left out of the rounding and comes back exactly: keys with a common offset of a hundred deviations lose
// no digit. Nor do rows with one large element, which is spread over all.
TEST_P(Int8Attention, OffsetsAndOutliersCostNothing) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
    Case c = make(1, 40, 300, 1, 128, softmax);
    for (int64_t j = 0; j < 300; ++j)
      for (const int64_t d : {3, 77}) set_element(c.k, 0, j, 0, d, 100 + static_cast<float>(element(c.k, 0, j, 0, d)));
    c.attend();
    // bf16 keeps a step of 1/2 of such a key; what is compared with has these keys too.
    expect_near_reference(c);
    c.fold({{0, 100}, {250, 300}, {100, 250}});
    expect_near_reference(c);
  }
  Case c = make(1, 40, 300, 1, 128);
  for (int64_t i = 0; i < 40; ++i) set_element(c.q, 0, i, 0, i, 20);
  c.attend();
  expect_near_reference(c, 2);  // ‖q‖ is twice what it was
}

// Channels of values are rounded about their middle. Each query is four times a key, so that o is the value of that
// key: nothing averages. Values are 4 and a normal deviate: int8 has 254 steps of their range, some 6, and bf16 of
// 2^-5. About zero, steps of int8 would be twice as long.
TEST_P(Int8Attention, ValuesLoseNothingToWhatTheyShare) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kExactOnline, Softmax::kFixedMax}) {
    Case c = make(1, 40, 700, 1, 80, softmax);
    test::fill_random(c.v, 5, 4, 1);
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t d = 0; d < 80; ++d)
        set_element(c.q, 0, i, 0, d, 30 * static_cast<float>(element(c.k, 0, 17 * i, 0, d)));
    c.attend();
    const Tensor expected = c.reference();
    double off = 0;
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t d = 0; d < 80; ++d) off += std::pow(element(expected, 0, i, 0, d) - element(c.o, 0, i, 0, d), 2);
    const double int8 = 6.0 / 254 / std::sqrt(12.0), bf16 = 0x1p-5 / std::sqrt(12.0);
    EXPECT_LE(std::sqrt(off / (40 * 80)), 1.1 * std::sqrt(int8 * int8 + bf16 * bf16));
    // What all values are, o is, whatever became of the weights.
    test::fill_random(c.v, 5, 4, 0);
    c.attend();
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t d = 0; d < 80; ++d) EXPECT_EQ(element(c.o, 0, i, 0, d), element(c.v, 0, 0, 0, d));
  }
}

TEST_P(Int8Attention, SpoiltValuesSpoilTheirChannel) {
  for (const float bad : {kNaN, kInfinity}) {
    Case c = make(1, 9, 600, 2, 24);
    set_element(c.v, 0, 333, 1, 5, bad);
    c.attend();
    for (int64_t i = 0; i < 9; ++i)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t d = 0; d < 24; ++d)
          EXPECT_EQ(std::isfinite(element(c.o, 0, i, h, d)), h == 0 || d != 5) << h << " " << d;
  }
}

// The sign of the scale is in the queries, which are what it multiplies.
TEST_P(Int8Attention, ANegativeScaleIsOne) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
    Case c = make(1, 40, 300, 1, 64, softmax);
    c.problem.scale = -c.problem.scale;
    c.attend();
    expect_near_reference(c);
  }
}

// Tiles of other sizes have other scales of values, and as many panels as fit.
TEST_P(FastInt8Attention, TilesOfAnySize) {
  for (const TileSizes tiles : {TileSizes{64, 64}, TileSizes{100, 100}, TileSizes{512, 1024}}) {
    Case c = make(1, 130, 700, 2, 40);
    c.problem.tiles = tiles;
    expect_scalar(c);
    expect_near_reference(c);
  }
}

// Blocks of keys, each with a mean of its own.
TEST_P(Int8Attention, BlocksFoldIntoOneState) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kExactOnline, Softmax::kFixedMax}) {
    Case c = make(2, 70, 401, 3, 64, softmax);
    for (int64_t j = 200; j < 401; ++j)
      for (int64_t d = 0; d < 64; ++d) set_element(c.k, 1, j, 2, d, static_cast<float>(element(c.k, 1, j, 2, d)) + 1);
    c.use_key_lengths({401, 210});  // the last block brings no key for one batch entry
    c.fold({{0, 200}, {200, 230}, {230, 401}});
    expect_near_reference(c);
    if (softmax == Softmax::kFixedMax) {
      EXPECT_EQ(c.counts.online, 0);
    }
  }
}

TEST_P(Int8Attention, TheLogSumExpHasTheMeanInIt) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
    Case c = make(1, 20, 300, 2, 64, softmax);
    for (int64_t j = 0; j < 300; ++j) set_element(c.k, 0, j, 0, 5, 30);
    const Tensor logs(DType::kF32, {1, 20, 2}), expected(DType::kF64, {1, 20, 2}), o(DType::kF64, c.o.shape());
    Stream stream(2);
    FlashAttention(c.problem).attend(stream, c.q, c.block(), c.o, logs);
    flash_attention_reference(c.problem, c.q, c.block(), o, expected);
    // As far off as the scores, of which it is a mean.
    for (int64_t i = 0; i < 40; ++i)
      EXPECT_NEAR(static_cast<double>(logs.data<float>()[i]), expected.data<double>()[i],
                  std::sqrt(2.0) * 0x1p-7 + log_sum_tolerance(c));
  }
}

// Rows whose exponents need a scale of their own, rows that no fixed offset is safe for, and all of them in one tile.
TEST_P(FastInt8Attention, FixedOffsetsHoldForRoundedScores) {
  for (const float factor : {1.0f, 3.0f, 8.0f, 40.0f}) {
    SCOPED_TRACE(factor);
    Case c = make(1, 130, 300, 1, 64, Softmax::kFixedMax);
    test::fill_random(c.q, 1, 0, static_cast<double>(factor));
    EXPECT_EQ(expect_scalar(c).online > 0, factor == 40.0f);
  }
  Case c = make(1, 768, 300, 1, 64, Softmax::kFixedMax);
  constexpr float kFactors[] = {1, 40, 8, 1, 40, 3};
  for (int64_t i = 0; i < 768; ++i)
    for (int64_t d = 0; d < 64; ++d)
      set_element(c.q, 0, i, 0, d, kFactors[i / 128] * static_cast<float>(element(c.q, 0, i, 0, d)));
  const TileCounts counts = expect_scalar(c);
  // Groups that go online together have 64 rows, rounded up to whole register blocks (at most 96), and so may have rows
  // of two factors: each of the two unsafe runs of 128 rows is in two or three groups; the 256 between them hold one.
  EXPECT_GE(counts.online, 4);
  EXPECT_LE(counts.online, 6);
  EXPECT_GE(counts.fixed, 1);
  constexpr int64_t kGroupsOf64 = 12;
  if (counts.online + counts.fixed == kGroupsOf64) {
    EXPECT_EQ(counts.online, 4);
  }
}

// Few elements and keys, with which rows come as close to the bound as they can; and one row that needs an exponent, so
// that all rows of its group get the largest that is safe for them.
TEST_P(Int8Attention, FixedOffsetsLeaveRoomForValuesAsIntegers) {
  int64_t fixed = 0;
  for (int64_t head_dim = 1; head_dim <= 5; ++head_dim)
    for (int64_t keys = 2; keys <= 8; ++keys)
      for (const float factor : {60.0f, 90.0f}) {
        Case c = make(1, 20, keys, 1, head_dim, Softmax::kFixedMax);
        for (int64_t d = 0; d < head_dim; ++d) set_element(c.q, 0, 0, 0, d, factor);
        c.attend();
        fixed += c.counts.fixed;
        for (int64_t i = 0; i < 20; ++i)
          for (int64_t d = 0; d < head_dim; ++d)
            EXPECT_TRUE(std::isfinite(element(c.o, 0, i, 0, d))) << keys << " keys of " << head_dim << ", row " << i;
      }
  EXPECT_GT(fixed, 0);
}

// Keys that climb by 2^100 and more: references are raised and tiles are redone.
TEST_P(FastInt8Attention, ScoresThatKeepClimbing) {
  Case c = make(1, 29, 700, 1, 16);
  c.problem.scale = 1;
  for (int64_t i = 0; i < 29; ++i) set_element(c.q, 0, i, 0, 0, static_cast<float>(i % 7 - 2));
  for (int64_t j = 0; j < 700; ++j) set_element(c.k, 0, j, 0, 0, static_cast<float>((j / 50) * 64));
  expect_scalar(c);
}

// Of a row, of all rows by a key, and in the first row of a tile, whose reference says whether it has seen keys.
TEST_P(Int8Attention, SpoiltRowsStaySpoilt) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const int64_t spoilt_row : {0, 7}) {
      Case queries = make(2, 32, 150, 2, 24), keys = make(2, 32, 150, 2, 24);
      set_element(queries.q, 1, spoilt_row, 0, 5, bad);
      for (int64_t j = 0; j < 150; ++j)  // so that q·k̄ is infinite
        set_element(queries.k, 1, j, 0, 5, 1 + static_cast<float>(element(queries.k, 1, j, 0, 5)));
      set_element(keys.k, 1, 140, 0, 5, kNaN);
      for (const bool folded : {false, true}) {
        for (Case* c : {&queries, &keys}) {
          if (folded) c->fold({{0, 75}, {75, 150}});
          if (!folded) c->attend();
          EXPECT_EQ(c->counts.bf16_heads, 0);
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < 32; ++i)
              for (int64_t h = 0; h < 2; ++h) {
                const bool spoilt = b == 1 && h == 0 && (c == &keys || i == spoilt_row);
                EXPECT_EQ(std::isfinite(element(c->o, b, i, h, 0)), !spoilt) << b << " " << i << " " << h;
              }
          const Deviation d = deviation(c->o, c->reference());
          EXPECT_LE(d.relative_l2, int8_tolerance(*c));
        }
      }
    }
  }
}

// In a whole panel, and in one of which few keys exist.
TEST_P(Int8Attention, ASpoiltBiasSpoilsItsRow) {
  for (const int64_t keys : {65, 66, 67, 70, 75, 100}) {
    for (const int64_t key : {int64_t{3}, int64_t{63}, int64_t{64}, keys - 1}) {
      Case c = make(1, 9, keys, 1, 24);
      c.use_bias(7, 1);
      c.bias.data<float>()[5 * keys + key] = kNaN;
      c.attend();
      for (int64_t i = 0; i < 9; ++i)
        EXPECT_EQ(std::isfinite(element(c.o, 0, i, 0, 0)), i != 5) << key << " of " << keys;
    }
  }
}

// Heads that int8 would move too far, here for scores of a deviation of ten, are computed as without it.
TEST_P(Int8Attention, CoarseHeadsStayInBf16) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
    Case c = make(2, 70, 300, 3, 64, softmax);
    c.problem.int8_limit = 0.02;
    for (int64_t i = 0; i < 70; ++i)
      for (int64_t d = 0; d < 64; ++d) set_element(c.q, 1, i, 2, d, 10 * static_cast<float>(element(c.q, 1, i, 2, d)));
    c.attend();
    EXPECT_EQ(c.counts.int8_heads, 5);
    EXPECT_EQ(c.counts.bf16_heads, 1);
    EXPECT_GT(c.counts.int8_error, 0x1p-8);
    EXPECT_LE(c.counts.int8_error, c.problem.int8_limit);
    const Tensor o = c.reference();
    const auto head = [](const TensorView& x) { return x.slice(0, 1, 2).slice(2, 2, 3); };
    EXPECT_LE(deviation(head(c.o), head(o)).relative_l2, tolerance(c));
    expect_near_reference(c);
    c.problem.int8_limit = 0;
    c.attend();
    EXPECT_EQ(c.counts.int8_heads, 0);
    EXPECT_TRUE(matches_reference(c));
  }
}

// Keys of the second block have one large element that queries do not: what they share with queries is rounded away.
TEST_P(Int8Attention, AHeadMayBeInt8InOneBlockOnly) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kExactOnline, Softmax::kFixedMax}) {
    Case c = make(1, 300, 600, 1, 64, softmax);
    c.problem.int8_limit = 0.05;
    for (int64_t i = 0; i < 300; ++i) set_element(c.q, 0, i, 0, 0, 0);
    for (int64_t j = 300; j < 600; ++j) set_element(c.k, 0, j, 0, 0, j % 2 == 0 ? 200 : -200);
    for (const bool coarse_first : {false, true}) {
      if (coarse_first) {
        c.fold({{300, 600}, {0, 300}});
      } else {
        c.fold({{0, 300}, {300, 600}});
      }
      EXPECT_EQ(c.counts.int8_heads, 1);
      EXPECT_EQ(c.counts.bf16_heads, 1);
      expect_near_reference(c);
    }
  }
}

TEST_P(Int8Attention, NothingToAttendAndNoKeys) {
  Case no_keys = make(2, 5, 0, 2, 16);
  test::fill_random(no_keys.o, 9);
  no_keys.attend();
  expect_near_reference(no_keys);
  Case no_rows = make(2, 0, 10, 2, 16);
  no_rows.attend();
}

// Packing once more or for other teams changes no bit.
TEST_P(Int8Attention, ThreadsChangeNothing) {
  Case c = make(2, 300, 270, 2, 128);
  c.attend(1);
  const Tensor one(DType::kBF16, c.o.shape());
  Stream stream(1);
  copy(stream, one, c.o);
  for (const int threads : {2, 5}) {
    c.attend(threads);
    EXPECT_EQ(std::memcmp(one.view().raw(), c.o.view().raw(), one.view().bytes()), 0);
  }
}

TEST(Int8AttentionEntryPoint, RefusesWhatItCannot) {
  FlashProblem p;
  p.query_tokens = p.key_tokens = 4;
  p.head_dim = 8;
  p.int8 = true;
  EXPECT_EQ(error_of([&] { FlashAttention{p}; }),
            "flash attention: attention is computed in float32, and int8 is of bf16");
  p.dtype = DType::kBF16;
  p.implementation = "avx2";
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), testing::HasSubstr("does not multiply in int8"));
  p.int8 = false;
  p.implementation = "avx2_int8";
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), testing::HasSubstr("multiplies in int8 only"));
}

}  // namespace
}  // namespace zoetrope::kernels
