// Data that breaks careless softmax: offsets, huge rows, references that have to be raised, equal keys, one key,
// infinities and NaN.
#include <cmath>
#include <limits>

#include "kernels/flash_attention/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class FlashNumerics : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashNumerics, ::testing::ValuesIn(softmax_variants()), variant_name);

// Fixed-max has no bound on scores with a bias, so these are about online softmax.
class FlashBiasNumerics : public FlashNumerics {};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashBiasNumerics, ::testing::ValuesIn(variants()), variant_name);

// Terms of a score have one sign, so that its partial sums grow as d.
double correlated(const Case& c) { return std::sqrt(static_cast<double>(c.problem.head_dim)); }

TEST_P(FlashNumerics, LargeCommonOffsetOfKeysAndValues) {
  Case c(GetParam(), 1, 33, 600, 1, 64);
  test::fill_random(c.q, 1, 1.0, 1.0);
  test::fill_random(c.k, 2, 10.0, 1.0);
  test::fill_random(c.v, 3, 100.0, 1.0);
  c.attend();
  EXPECT_TRUE(matches_reference(c, correlated(c)));
}

// Scores of several hundred: weights are 0 or near 1, and the largest key may come late.
TEST_P(FlashNumerics, RowsOfHugeNorm) {
  Case c(GetParam(), 1, 33, 600, 1, 64);
  test::fill_random(c.q, 1, 0, 30.0);
  test::fill_random(c.k, 2, 0, 3.0);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
}

// The reference of a row is taken from its first keys. Scores that climb by 2^100 and more a step leave its range again
// and again, in some rows and not in others; those tiles are redone.
TEST_P(FlashNumerics, ScoresThatKeepClimbing) {
  for (const double sign : {1.0, -1.0}) {
    Case c(GetParam(), 1, 29, 700, 1, 16);
    c.problem.scale = 1;
    for (int64_t i = 0; i < 29; ++i) set_element(c.q, 0, i, 0, 0, static_cast<float>(sign * (i % 7 - 2)));
    for (int64_t j = 0; j < 700; ++j) set_element(c.k, 0, j, 0, 0, static_cast<float>(sign * (j / 50) * 64));
    c.attend();
    EXPECT_TRUE(matches_reference(c));
    c.fold({{350, 700}, {0, 10}, {10, 350}});
    EXPECT_TRUE(matches_reference(c));
  }
}

// A climb with a bias, behind a key mask: the redone tile reads both again.
TEST_P(FlashBiasNumerics, ScoresThatClimbThroughTheBias) {
  Case c(GetParam(), 1, 9, 700, 1, 16);
  c.use_bias(4, 1.0);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 700; ++j) c.bias.data<float>()[i * 700 + j] += static_cast<float>(j / 100 * 100 * (i % 3));
  }
  c.use_key_mask(5, 0.8);
  c.attend();
  // The bias is as large as 1200, rounded to 2^-24 of that: as a score of that size.
  const Deviation d = deviation(c.o, c.reference());
  EXPECT_EQ(d.nonfinite_mismatches, 0);
  EXPECT_LE(d.relative_l2, tolerance(c) + 2 * 1200 * 0x1p-24);
}

// Just inside and just outside of the range in which a reference is kept.
TEST_P(FlashNumerics, SumsNextToTheLimitOfLazySoftmax) {
  for (const double exponent : {40.0, 50.0, 59.0, 60.0, 61.0, 126.0, 127.0, 128.0, 129.0, 200.0}) {
    Case c(GetParam(), 1, 6, 300, 1, 8);
    c.problem.scale = 1;
    test::fill_random(c.k, 2, 0, 0.0);
    for (int64_t i = 0; i < 6; ++i) set_element(c.q, 0, i, 0, 0, 1);
    for (int64_t j = 290; j < 300; ++j) set_element(c.k, 0, j, 0, 0, static_cast<float>(exponent * std::log(2.0)));
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << exponent;
  }
}

// Every score is far below zero: neither zero padding nor an empty state may pass for a key.
TEST_P(FlashNumerics, ScoresFarBelowZero) {
  for (const int64_t keys : {1, 5, 70, 300}) {
    Case c(GetParam(), 1, 9, keys, 1, 16);
    c.problem.scale = -1;
    for (const TensorView& x : {c.q.view(), c.k.view()}) test::fill_random(x, 4, 5.0, 0.25);  // scores near −400
    c.attend();
    EXPECT_TRUE(matches_reference(c, correlated(c))) << keys;
    c.fold({{keys / 2, keys}, {0, keys / 2}});
    EXPECT_TRUE(matches_reference(c, correlated(c))) << keys;
  }
}

TEST_P(FlashNumerics, AllEqualKeysGiveTheMeanOfTheValues) {
  Case c(GetParam(), 1, 5, 1000, 1, 16);
  for (int64_t j = 0; j < 1000; ++j) {
    for (int64_t d = 0; d < 16; ++d) set_element(c.k, 0, j, 0, d, 0.75f);
  }
  c.attend();
  EXPECT_TRUE(matches_reference(c, correlated(c)));
}

TEST_P(FlashNumerics, ASingleKeyGivesItsValue) {
  Case c(GetParam(), 1, 5, 1, 2, 40);
  test::fill_random(c.q, 1, 0, 100.0);
  c.attend();
  // The weight's own error cancels between o and l; one rounding of 1/l, one of the product.
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t d = 0; d < 40; ++d) {
      const double v = element(c.v, 0, 0, 1, d);
      EXPECT_NEAR(element(c.o, 0, i, 1, d), v, std::abs(v) * (GetParam().dtype == DType::kF32 ? 0x1p-22 : 0x1p-8));
    }
  }
}

// Sums over many keys of one sign and of both: folded by key tile, no chain over all keys.
TEST_P(FlashNumerics, ManyKeys) {
  Case c(GetParam(), 1, 4, 20000, 1, 16);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
  test::fill_random(c.v, 3, 3.0, 1.0);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
}

TEST_P(FlashNumerics, NonFiniteValuesSpoilTheirHeadDimOnly) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Case c(GetParam(), 2, 9, 150, 2, 24);
    set_element(c.v, 1, 77, 0, 5, bad);
    c.attend();
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST_P(FlashNumerics, NonFiniteQueriesSpoilTheirRowOnly) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Case c(GetParam(), 2, 9, 150, 2, 24);
    set_element(c.q, 1, 7, 0, 5, bad);
    c.attend();
    EXPECT_TRUE(matches_reference(c));
    c.fold({{0, 75}, {75, 150}});
    EXPECT_TRUE(matches_reference(c));
  }
}

// An infinite key is the only key of rows that point at it, and no key of rows that point away.
TEST_P(FlashNumerics, NonFiniteKeys) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const int64_t at : {0, 20, 149}) {
      Case c(GetParam(), 2, 9, 150, 2, 24);
      set_element(c.k, 1, at, 0, 5, bad);
      c.attend();
      EXPECT_TRUE(matches_reference(c)) << bad << " at " << at;
      c.fold({{100, 150}, {0, 100}});
      EXPECT_TRUE(matches_reference(c)) << bad << " at " << at;
    }
  }
}

TEST_P(FlashNumerics, TinyAndHugeValuesKeepTheirScale) {
  for (const double size : {1e-30, 1e-10, 1e10, 1e30}) {
    Case c(GetParam(), 1, 9, 150, 1, 24);
    test::fill_random(c.v, 3, 0, size);
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << size;
  }
}

}  // namespace
}  // namespace zoetrope::kernels
