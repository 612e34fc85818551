// Fixed-max softmax: how near it is to online softmax and to the definition, which rows its gate lets through, and rows
// that are right next to the gate.
#include "kernels/flash_attention/fixed_max.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/flash_attention/testing.h"
#include "kernels/testing.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class FlashFixedMax : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
  Case make(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t head_dim) const {
    Case c(GetParam(), batch, queries, keys, heads, head_dim);
    c.problem.softmax = Softmax::kFixedMax;
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashFixedMax, ::testing::ValuesIn(variants()), variant_name);

// The requirement of attention.md section 5: relative L2 of fixed-max against online ≤ 2^-8 in bf16 (float32: both
// errors), and an error against the definition of at most twice that of online softmax, or ε of the output.
void expect_as_good_as_online(Case& c) {
  const Tensor reference = c.reference();
  c.attend();
  const Deviation fixed = deviation(c.o, reference);
  Tensor fixed_o(c.o.dtype(), c.o.shape());
  Stream stream(1);
  copy(stream, fixed_o, c.o);
  c.problem.softmax = Softmax::kOnline;
  c.attend();
  c.problem.softmax = Softmax::kFixedMax;
  const Deviation online = deviation(c.o, reference);
  const bool bf16 = c.problem.dtype == DType::kBF16;
  EXPECT_EQ(fixed.nonfinite_mismatches, 0);
  EXPECT_LE(fixed.relative_l2, std::max(2 * online.relative_l2, bf16 ? 0x1p-9 : 0x1p-22));
  // The online result as the yardstick; elementwise it must be finite where that is.
  Tensor yardstick(DType::kF64, c.o.shape());
  for (int64_t i = 0; i < c.o.size(); ++i) {
    yardstick.data<double>()[i] =
        bf16 ? static_cast<double>(to_float(c.o.data<BFloat16>()[i])) : static_cast<double>(c.o.data<float>()[i]);
  }
  EXPECT_LE(deviation(fixed_o, yardstick).relative_l2, bf16 ? 0x1p-8 : 3 * std::max(online.relative_l2, 0x1p-22));
}

double norm(const TensorView& x, int64_t s) {
  double sum = 0;
  for (int64_t d = 0; d < x.extent(3); ++d) sum += std::pow(element(x, 0, s, 0, d), 2);
  return std::sqrt(sum);
}

// Scales every row to RMS 1, as q and k are in the published models.
void rms_normalise(const TensorView& x) {
  for (int64_t s = 0; s < x.extent(1); ++s) {
    const double factor = std::sqrt(static_cast<double>(x.extent(3))) / norm(x, s);
    for (int64_t d = 0; d < x.extent(3); ++d) {
      set_element(x, 0, s, 0, d, static_cast<float>(element(x, 0, s, 0, d) * factor));
    }
  }
}

TEST_P(FlashFixedMax, NormedRowsAllGoTheFixedPath) {
  Case c = make(1, 300, 700, 1, 128);
  rms_normalise(c.q);
  rms_normalise(c.k);
  c.attend();
  EXPECT_EQ(c.counts.online, 0);
  EXPECT_GE(c.counts.fixed, 300 / kGateRows);
  EXPECT_TRUE(matches_reference(c));
  expect_as_good_as_online(c);
}

// Scores of several hundred: no row is safe. Rows in between: both ways in one call.
TEST_P(FlashFixedMax, UnsafeRowsGoOnline) {
  Case c = make(1, 3 * 66, 200, 1, 64);
  test::fill_random(c.q, 1, 0, 60.0);
  c.attend();
  EXPECT_EQ(c.counts.fixed, 0);
  EXPECT_TRUE(matches_reference(c));
  for (int64_t i = 0; i < 66; ++i) {
    for (int64_t d = 0; d < 64; ++d)
      set_element(c.q, 0, 66 + i, 0, d, static_cast<float>(element(c.q, 0, i, 0, d) / 60));
  }
  test::fill_random(c.q.view().slice(1, 0, 66), 5, 0, 1.0);
  c.attend();
  EXPECT_GT(c.counts.fixed, 0);
  EXPECT_GT(c.counts.online, 0);
  EXPECT_TRUE(matches_reference(c));
  expect_as_good_as_online(c);
}

// β of row 0 with the statistics of the case, from the definition.
double beta(const Case& c, const Tensor& statistics) {
  return norm(c.q, 0) * static_cast<double>(statistics.data<float>()[kStatRadius]) *
         std::abs(static_cast<double>(c.problem.scale)) * kLog2E;
}

// The largest ⌈β⌉ that is safe, from the definition.
int64_t most_safe(const Case& c, double value) {
  const int up = static_cast<int>(std::ceil(std::log2(value))), down = static_cast<int>(std::floor(std::log2(value)));
  const int headroom = 126 - static_cast<int>(std::ceil(std::log2(c.problem.key_tokens))) - std::max(0, up);
  const int bound = headroom + 102 + std::min(0, down);
  return c.problem.center_keys ? bound : bound / 2;
}

// Keys whose radius is along one axis (two of them, ± ρ) while queries look along another: every logit is near 0 though
// β is as large as the gate allows. The published gate would let these rows lose all but their largest term.
Case near_the_gate(Case c, double beta_wanted) {
  const int64_t head_dim = c.problem.head_dim, keys = c.problem.key_tokens;
  test::fill_random(c.q, 1, 0, 1e-3);
  test::fill_random(c.k, 2, 0, 0.5);
  for (int64_t j = 0; j < keys; ++j) set_element(c.k, 0, j, 0, 0, 0.0f);
  set_element(c.k, 0, 7, 0, 0, 64.0f);
  set_element(c.k, 0, keys - 9, 0, 0, -64.0f);
  const double largest = 1 / (static_cast<double>(c.problem.scale) * kLog2E * 64.5);
  for (int64_t i = 0; i < c.problem.query_tokens; ++i) {
    // Half along the axis of the far keys in every third row: there one key takes all.
    for (int64_t d = 1; d < head_dim; ++d) set_element(c.q, 0, i, 0, d, 0.0f);
    set_element(c.q, 0, i, 0, i % 3 == 0 ? 0 : 1 + i % (head_dim - 1), static_cast<float>(beta_wanted * largest));
    if (i % 3 != 0) set_element(c.q, 0, i, 0, 0, 0.0f);
  }
  return c;
}

TEST_P(FlashFixedMax, RowsNextToTheGate) {
  for (const bool center : {true, false}) {
    for (const double value : {1.0, 1000.0, 1e-3}) {
      Case plain = make(1, 130, 400, 1, 64);
      plain.problem.center_keys = center;
      test::fill_random(plain.v, 3, 0, value);
      const double value_max = static_cast<double>(plain.statistics({{0, 400}}).data<float>()[kStatValueMaximum]);
      const int64_t limit = most_safe(plain, value_max);
      for (const double share : {0.3, 0.6, 0.9, 0.98}) {
        Case c = near_the_gate(std::move(plain), share * static_cast<double>(limit));
        c.attend();
        EXPECT_EQ(c.counts.online, 0) << share << " of " << limit;
        expect_as_good_as_online(c);
        plain = std::move(c);
      }
      Case beyond = near_the_gate(std::move(plain), 1.05 * static_cast<double>(limit));
      beyond.attend();
      EXPECT_EQ(beyond.counts.fixed, 0);
      expect_as_good_as_online(beyond);
    }
  }
}

// The last whole ⌈β⌉ that passes and the first that does not, moved by the scale.
TEST_P(FlashFixedMax, TheGateIsWhereTheFormulaSays) {
  Case c = make(1, 1, 100, 1, 16);
  const Tensor statistics = c.statistics({{0, 100}});
  const double unit = beta(c, statistics) / static_cast<double>(c.problem.scale);
  const auto limit =
      static_cast<double>(most_safe(c, static_cast<double>(statistics.data<float>()[kStatValueMaximum])));
  c.problem.scale = static_cast<float>((limit - 0.01) / unit);
  c.attend();
  EXPECT_EQ(c.counts.fixed, 1);
  EXPECT_TRUE(matches_reference(c));
  c.problem.scale = static_cast<float>((limit + 0.01) / unit);
  c.attend();
  EXPECT_EQ(c.counts.online, 1);
  EXPECT_TRUE(matches_reference(c));
}

// Fractions next to a whole number: the exponent must join after the whole part was taken.
TEST_P(FlashFixedMax, ExponentsNextToWholeNumbers) {
  Case c = make(1, 64, 257, 1, 16);
  test::fill_random(c.q, 1, 0, 0.0);
  test::fill_random(c.k, 2, 0, 0.0);
  // c = 0 by symmetry, β near 150; the scores are whole numbers less a few ulp.
  c.problem.scale = static_cast<float>(1 / kLog2E);
  for (int64_t i = 0; i < 64; ++i) set_element(c.q, 0, i, 0, 0, 1.0f);
  for (int64_t j = 0; j < 257; ++j) {
    const float whole = static_cast<float>(j % 64 - 32);
    set_element(c.k, 0, j, 0, 0, j % 2 == 0 ? std::nextafter(whole, -1000.0f) : whole);
  }
  set_element(c.k, 0, 0, 0, 1, 150.0f);
  set_element(c.k, 0, 1, 0, 1, -150.0f);
  c.attend();
  EXPECT_EQ(c.counts.online, 0);
  expect_as_good_as_online(c);
}

TEST_P(FlashFixedMax, LargeCommonOffsetIsCentredAway) {
  Case c = make(1, 70, 500, 1, 64);
  test::fill_random(c.q, 1, 0.5, 1.0);
  test::fill_random(c.k, 2, 64.0, 1.0);
  test::fill_random(c.v, 3, 100.0, 1.0);
  c.attend();
  EXPECT_EQ(c.counts.online, 0);
  expect_as_good_as_online(c);
  c.problem.center_keys = false;  // ρ = max ‖k‖ is some 500 now
  c.attend();
  EXPECT_EQ(c.counts.fixed, 0);
  expect_as_good_as_online(c);
}

// c and t are the same sum in another order: their difference grows with the keys' common offset though ρ is 0.
TEST_P(FlashFixedMax, HugeEqualKeys) {
  for (int power = 16; power <= 28; power += 3) {
    Case c = make(1, 40, 100, 1, 128);
    for (int64_t j = 0; j < 100; ++j) {
      for (int64_t d = 0; d < 128; ++d) set_element(c.k, 0, j, 0, d, std::ldexp(1.0f, power));
    }
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << power;
  }
}

// Squares that vanish in float32, with a scale that brings them back.
TEST_P(FlashFixedMax, TinyQueriesUnderAHugeScale) {
  Case c = make(1, 20, 100, 1, 16);
  test::fill_random(c.q, 1, 0, 1e-24);
  c.problem.scale = 1e26f;
  c.attend();
  EXPECT_TRUE(matches_reference(c));
}

TEST_P(FlashFixedMax, EqualKeysAndASingleKey) {
  for (const int64_t keys : {1, 2, 300}) {
    Case c = make(1, 40, keys, 1, 24);
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t d = 0; d < 24; ++d) set_element(c.k, 0, j, 0, d, 3.0f);
    }
    c.attend();
    EXPECT_EQ(c.counts.online, 0);
    expect_as_good_as_online(c);
  }
}

TEST_P(FlashFixedMax, NonFiniteStatisticsFailTheGate) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Case keys = make(1, 9, 150, 1, 24), values = make(1, 9, 150, 1, 24), queries = make(1, 130, 150, 1, 24);
    set_element(keys.k, 0, 77, 0, 23, bad);
    set_element(values.v, 0, 77, 0, 17, bad);
    set_element(queries.q, 0, 129, 0, 0, bad);
    for (Case* c : {&keys, &values}) {
      c->attend();
      EXPECT_EQ(c->counts.fixed, 0);
      EXPECT_TRUE(matches_reference(*c));
    }
    queries.attend();
    EXPECT_GT(queries.counts.fixed, 0);
    EXPECT_EQ(queries.counts.online, 1);
    EXPECT_TRUE(matches_reference(queries));
  }
}

// Zero values have no logarithm; tiny ones tighten the gate, huge ones leave less headroom.
TEST_P(FlashFixedMax, ValuesOfAnySize) {
  for (const double size : {0.0, 1e-30, 1e-10, 1e10, 1e30}) {
    Case c = make(1, 70, 150, 1, 24);
    test::fill_random(c.v, 3, 0, size);
    c.attend();
    EXPECT_EQ(c.counts.online, 0) << size;
    EXPECT_TRUE(matches_reference(c)) << size;
  }
}

TEST_P(FlashFixedMax, HopsAddUpToTheWhole) {
  Case c = make(2, 70, 401, 3, 40);
  c.use_key_lengths({401, 120});  // some blocks bring no key for one batch entry
  for (const std::vector<IndexRange>& blocks :
       {std::vector<IndexRange>{{0, 401}}, {{200, 401}, {0, 200}}, {{300, 401}, {0, 0}, {0, 150}, {150, 300}}}) {
    c.fold(blocks);
    EXPECT_TRUE(matches_reference(c)) << blocks.size();
    EXPECT_EQ(c.counts.online, 0);
  }
}

// What the tiles are and who folds them changes neither a group's way nor a bit of a row.
TEST_P(FlashFixedMax, ThreadsAndTilesDoNotMoveTheGate) {
  Case c = make(1, 500, 300, 2, 40);
  for (int64_t d = 0; d < 40; ++d) set_element(c.q, 0, 333, 1, d, 200.0f);
  c.attend(1);
  Tensor one(c.o.dtype(), c.o.shape());
  Stream stream(1);
  copy(stream, one, c.o);
  const TileCounts counts = c.counts;
  EXPECT_EQ(counts.online, 1);
  for (const int threads : {2, 5}) {
    c.attend(threads);
    EXPECT_EQ(c.counts.fixed, counts.fixed);
    EXPECT_EQ(c.counts.online, 1);
    EXPECT_EQ(std::memcmp(one.data<void>(), c.o.data<void>(), one.view().bytes()), 0);
  }
  for (const int64_t rows : {1, 64, 300, 1000}) {
    c.problem.tiles = {rows, 128};
    c.attend();
    EXPECT_EQ(c.counts.fixed, counts.fixed);
    EXPECT_EQ(c.counts.online, 1);
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST(KeyStatistics, AreWhatTheySay) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t head_dim : {1, 13, 40, 64, 128, 129}) {
      Case c({"scalar", dtype, Softmax::kFixedMax}, 2, 3, 1100, 2, head_dim);
      test::fill_random(c.k, 2, 7.0, 1.0);
      c.use_key_mask(5, 0.5);
      for (const bool center : {true, false}) {
        c.problem.center_keys = center;
        const Tensor whole = c.statistics({{0, 1100}});
        const Tensor parts = c.statistics({{600, 1100}, {0, 0}, {0, 600}});
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t h = 0; h < 2; ++h) {
            std::vector<double> mean(static_cast<size_t>(head_dim), 0.0);
            double n = 0, value = 0, radius = 0;
            const auto valid = [&](int64_t j) { return c.key_mask.data<uint8_t>()[b * 1100 + j] != 0; };
            for (int64_t j = 0; j < 1100; ++j) {
              if (!valid(j)) continue;
              n += 1;
              for (int64_t d = 0; d < head_dim; ++d) {
                mean[static_cast<size_t>(d)] += element(c.k, b, j, h, d);
                value = std::max(value, std::abs(element(c.v, b, j, h, d)));
              }
            }
            for (double& x : mean) x = center ? x / n : 0.0;
            for (int64_t j = 0; j < 1100; ++j) {
              double square = 0;
              for (int64_t d = 0; d < head_dim && valid(j); ++d) {
                square += std::pow(element(c.k, b, j, h, d) - mean[static_cast<size_t>(d)], 2);
              }
              radius = std::max(radius, std::sqrt(square));
            }
            const float* one = whole.data<float>() + (b * 2 + h) * statistics_floats(head_dim);
            const float* two = parts.data<float>() + (b * 2 + h) * statistics_floats(head_dim);
            EXPECT_EQ(one[kStatCount], n);
            EXPECT_EQ(two[kStatCount], n);
            EXPECT_EQ(one[kStatValueMaximum], static_cast<float>(value));
            EXPECT_EQ(two[kStatValueMaximum], static_cast<float>(value));
            // Sums of 512 float32 terms, then double.
            for (int64_t d = 0; d < head_dim; ++d) {
              EXPECT_NEAR(one[kStatMean + d], mean[static_cast<size_t>(d)], 7 * 512 * 0x1p-24);
              EXPECT_NEAR(two[kStatMean + d], mean[static_cast<size_t>(d)], 7 * 512 * 0x1p-24);
            }
            const double slack = 7 * 512 * 0x1p-24 * std::sqrt(static_cast<double>(head_dim)) + 1e-6 * radius;
            EXPECT_NEAR(one[kStatRadius], radius, slack);
            // A bound: never below, and above by at most twice how far the parts' means are apart.
            EXPECT_GE(two[kStatRadius], radius - slack);
            EXPECT_LE(two[kStatRadius], radius + (center ? 2 * std::sqrt(static_cast<double>(head_dim)) * 0.3 : slack));
          }
        }
      }
    }
  }
}

// More keys than float32 counts one by one: two records say 2^24 + 2 each.
TEST(KeyStatistics, OfMoreKeysThanFloat32Counts) {
  const auto record = [](float count, float mean) {
    Tensor x(DType::kF32, {1, 1, statistics_floats(1)});
    x.data<float>()[kStatCount] = count;
    x.data<float>()[kStatRadius] = 1;
    x.data<float>()[kStatValueMaximum] = 2;
    x.data<float>()[kStatMean] = mean;
    return x;
  };
  const Tensor a = record(16777218.0f, 1), b = record(16777218.0f, 3), all = record(0, 0);
  FlashAttention::combine_key_statistics(std::vector<TensorView>{a, b}, all);
  EXPECT_EQ(all.data<float>()[kStatCount], 33554436.0f);
  EXPECT_EQ(all.data<float>()[kStatMean], 2.0f);
  EXPECT_EQ(all.data<float>()[kStatRadius], 2.0f);
  EXPECT_EQ(all.data<float>()[kStatValueMaximum], 2.0f);
}

// A tensor of statistics that is off moves the result's path, never its value, as long as it stays a bound.
TEST_P(FlashFixedMax, StatisticsMayBeLoose) {
  Case c = make(1, 70, 300, 1, 40);
  c.known = c.statistics({{0, 300}});
  c.known.data<float>()[kStatRadius] *= 3;
  for (int64_t d = 0; d < 40; ++d) c.known.data<float>()[kStatMean + d] += 0.01f;
  c.attend();
  EXPECT_EQ(c.counts.online, 0);
  EXPECT_TRUE(matches_reference(c));
}

}  // namespace
}  // namespace zoetrope::kernels
