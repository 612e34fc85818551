// Every implementation against the float64 definition: sizes around every tile and vector width, head dims, views.
#include "kernels/flash_attention/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class FlashValues : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashValues, ::testing::ValuesIn(flash_testing::variants()),
                         flash_testing::variant_name);

// The comparison itself: a result with one key dropped, one row swapped or one element off must not pass.
TEST_P(FlashValues, ComparisonCatchesWrongResults) {
  Case c(GetParam(), 1, 33, 70, 2, 40);
  c.attend();
  ASSERT_TRUE(matches_reference(c));
  Case dropped(GetParam(), 1, 33, 70, 2, 40);
  dropped.use_key_lengths({69});
  dropped.attend();
  std::swap(c.o, dropped.o);
  EXPECT_FALSE(matches_reference(c));
  std::swap(c.o, dropped.o);
  const double scale = 1 + 20 * tolerance(c);  // of one row among 66: 20/√66 tolerances
  for (int64_t d = 0; d < 40; ++d) {
    set_element(c.o, 0, 7, 1, d, static_cast<float>(element(c.o, 0, 7, 1, d) * scale));
  }
  EXPECT_FALSE(matches_reference(c));
  c.attend();
  set_element(c.o, 0, 32, 1, 39, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(matches_reference(c));
}

TEST_P(FlashValues, HeadDims) {
  for (const int64_t head_dim : {1, 2, 3, 7, 8, 12, 15, 16, 17, 31, 32, 33, 40, 64, 80, 96, 128, 160, 256, 384, 1024}) {
    Case c(GetParam(), 1, 19, 75, 2, head_dim);
    c.attend();
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST_P(FlashValues, QueryCountsAroundEveryTile) {
  for (const int64_t queries : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 127, 128, 129, 255, 256, 257, 513}) {
    Case c(GetParam(), 1, queries, 21, 1, 24);
    c.attend();
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST_P(FlashValues, KeyCountsAroundEveryTile) {
  for (const int64_t keys : {1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32,  33,  47,  48,  49,  63, 64,
                             65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 255, 256, 257, 511, 512, 513}) {
    Case c(GetParam(), 1, 9, keys, 1, 24);
    c.attend();
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST_P(FlashValues, BatchesAndHeadsOnAnyTeam) {
  for (const int threads : {1, 2, 3, 5}) {
    Case c(GetParam(), 3, 37, 41, 5, 20);
    c.attend(threads);
    EXPECT_TRUE(matches_reference(c));
  }
}

TEST_P(FlashValues, NothingToAttendFrom) {
  Case no_rows(GetParam(), 2, 0, 10, 2, 16);
  no_rows.attend();
  Case no_batch(GetParam(), 0, 4, 10, 2, 16);
  no_batch.attend();
}

TEST_P(FlashValues, NoKeysGiveZeros) {
  Case c(GetParam(), 2, 5, 0, 2, 16);
  test::fill_random(c.o, 9);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
}

TEST_P(FlashValues, ScalesOfAnySignAndSize) {
  for (const float scale : {1.0f, 0.0f, -0.3f, 1e-3f}) {
    Case c(GetParam(), 1, 17, 100, 1, 32);
    c.problem.scale = scale;
    c.attend();
    EXPECT_TRUE(matches_reference(c));
  }
}

// q, k, v as a projection writes them: interleaved in one [B, S, 3, H, D] buffer; o into a slice of a wider one.
TEST_P(FlashValues, ViewsIntoOneProjection) {
  Case c(GetParam(), 2, 70, 70, 3, 40);
  const DType dtype = GetParam().dtype;
  const Tensor qkv(dtype, {2, 70, 3, 3, 40}), wide(dtype, {2, 70, 3, 3, 40});
  const TensorView q = qkv.view().select(2, 0), k = qkv.view().select(2, 1), v = qkv.view().select(2, 2);
  test::fill_random(q, 1);
  test::fill_random(k, 2);
  test::fill_random(v, 3);
  KeyBlock block;
  block.k = k;
  block.v = v;
  Stream stream(2);
  FlashAttention(c.problem).attend(stream, q, block, wide.view().select(2, 1));
  const Tensor reference = c.reference();
  const auto d = deviation(wide.view().select(2, 1), reference);
  EXPECT_EQ(d.nonfinite_mismatches, 0);
  EXPECT_LE(d.relative_l2, tolerance(c));
  // Neighbours of the slice stay untouched.
  for (const int64_t other : {0, 2}) {
    const TensorView untouched = wide.view().select(2, other);
    for (int64_t s = 0; s < 70; ++s) EXPECT_EQ(element(untouched, 1, s, 2, 39), 0);
  }
}

// Keys and values as they travel a ring: [S, 2, B·H, D], the batch folded into the heads.
TEST_P(FlashValues, FoldedRingLayout) {
  Case c(GetParam(), 2, 33, 90, 3, 24);
  const Tensor kv(GetParam().dtype, {90, 2, 6, 24});
  const auto folded = [&](int64_t which) {
    return kv.view().select(1, which).split_axis(1, 2, 3).permute({1, 0, 2, 3});  // [B, S, H, D]
  };
  test::fill_random(folded(0), 2);
  test::fill_random(folded(1), 3);
  KeyBlock block;
  block.k = folded(0);
  block.v = folded(1);
  Stream stream(2);
  FlashAttention(c.problem).attend(stream, c.q, block, c.o);
  EXPECT_TRUE(matches_reference(c));
}

// A row that starts at an odd element, strides that are not a multiple of anything.
TEST_P(FlashValues, OddStridesAndOffsets) {
  Case c(GetParam(), 1, 21, 67, 2, 13);
  const Tensor buffer(GetParam().dtype, {20000});
  const size_t element_bytes = dtype_size(GetParam().dtype);
  const auto odd = [&](int64_t begin, int64_t tokens) {
    char* at = buffer.data<char>() + static_cast<size_t>(begin) * element_bytes;
    return TensorView(at, GetParam().dtype, {1, tokens, 2, 13}, Shape{19999, 29, 15, 1});
  };
  const TensorView q = odd(1, 21), k = odd(1003, 67), v = odd(5007, 67), o = odd(10009, 21);
  test::fill_random(q, 1);
  test::fill_random(k, 2);
  test::fill_random(v, 3);
  KeyBlock block;
  block.k = k;
  block.v = v;
  Stream stream(2);
  FlashAttention(c.problem).attend(stream, q, block, o);
  const auto d = deviation(o, c.reference());
  EXPECT_EQ(d.nonfinite_mismatches, 0);
  EXPECT_LE(d.relative_l2, tolerance(c));
}

}  // namespace
}  // namespace zoetrope::kernels
