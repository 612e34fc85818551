// Key lengths, key masks and biases, in global positions; masked memory holds NaN to prove that it is never read into
// the arithmetic.
#include <limits>

#include "kernels/flash_attention/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class FlashMasks : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }

  // NaN in every masked key and value.
  static void poison(const Case& c) {
    for (int64_t b = 0; b < c.problem.batch; ++b) {
      for (int64_t j = 0; j < c.problem.key_tokens; ++j) {
        const bool valid = c.problem.mask == MaskKind::kKeyLengths
                               ? j < c.key_lengths[static_cast<size_t>(b)]
                               : c.key_mask.data<uint8_t>()[b * c.problem.key_tokens + j] != 0;
        if (valid) continue;
        for (int64_t h = 0; h < c.problem.heads; ++h) {
          for (int64_t d = 0; d < c.problem.head_dim; ++d) {
            set_element(c.k, b, j, h, d, kNaN);
            set_element(c.v, b, j, h, d, kNaN);
          }
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashMasks, ::testing::ValuesIn(softmax_variants()), variant_name);

// Fixed-max has no bound on scores with a bias, so these are about online softmax.
class FlashBias : public FlashMasks {};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashBias, ::testing::ValuesIn(variants()), variant_name);

TEST_P(FlashMasks, KeyLengthsAroundEveryTile) {
  for (const int64_t length : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 299, 300, 999}) {
    Case c(GetParam(), 2, 9, 300, 2, 24);
    c.use_key_lengths({length, 300 - std::min<int64_t>(length, 300)});
    poison(c);
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << length;
  }
}

TEST_P(FlashMasks, RowsWithoutAValidKeyAreZero) {
  Case c(GetParam(), 2, 9, 70, 2, 24);
  c.use_key_lengths({0, 70});
  poison(c);
  test::fill_random(c.o, 5);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(element(c.o, 0, i, 1, 3), 0);
  c.fold({{0, 35}, {35, 70}});
  EXPECT_TRUE(matches_reference(c));
  EXPECT_EQ(element(c.o, 0, 4, 0, 0), 0);
}

TEST_P(FlashMasks, KeyMasksOfAnyDensity) {
  for (const double density : {0.0, 0.02, 0.5, 0.97, 1.0}) {
    Case c(GetParam(), 3, 9, 333, 2, 24);
    c.use_key_mask(17, density);
    poison(c);
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << density;
  }
}

TEST_P(FlashMasks, KeyMaskViewsMayHaveAnyStride) {
  Case c(GetParam(), 2, 9, 75, 2, 24);
  c.use_key_mask(17, 0.5);
  const Tensor transposed(DType::kBool, {75, 2});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < 75; ++j) {
      transposed.data<uint8_t>()[j * 2 + b] = c.key_mask.data<uint8_t>()[b * 75 + j] != 0 ? 0xff : 0;
    }
  }
  const Tensor expected = c.reference();
  KeyBlock block = c.block();
  block.key_mask = transposed.view().permute({1, 0});
  Stream stream(1);
  FlashAttention(c.problem).attend(stream, c.q, block, c.o);
  EXPECT_TRUE(matches_reference(c));
}

// Blocks see their part of the mask through their global position, whole masked blocks and empty ones included.
TEST_P(FlashMasks, BlocksCutGlobalMasks) {
  const std::vector<IndexRange> blocks{{130, 200}, {0, 64}, {64, 64}, {64, 130}};
  Case lengths(GetParam(), 2, 21, 200, 2, 24);
  lengths.use_key_lengths({131, 50});
  poison(lengths);
  lengths.fold(blocks);
  EXPECT_TRUE(matches_reference(lengths));

  Case mask(GetParam(), 2, 21, 200, 2, 24);
  mask.use_key_mask(3, 0.6);
  for (int64_t j = 64; j < 130; ++j) mask.key_mask.data<uint8_t>()[j] = 0;  // a whole block, of one batch entry
  poison(mask);
  mask.fold(blocks);
  EXPECT_TRUE(matches_reference(mask));
}

TEST_P(FlashBias, BiasAlone) {
  for (const int64_t keys : {1, 31, 64, 65, 256, 300}) {
    Case c(GetParam(), 2, 13, keys, 3, 24);
    c.problem.scale = 1;  // as the text encoder has it
    c.use_bias(7, 2.0);
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << keys;
  }
}

TEST_P(FlashBias, BiasWithMasksAndBlocks) {
  Case lengths(GetParam(), 2, 13, 300, 2, 24);
  lengths.use_bias(7, 2.0);
  lengths.use_key_lengths({270, 41});
  poison(lengths);
  lengths.attend();
  EXPECT_TRUE(matches_reference(lengths));
  lengths.fold({{100, 300}, {0, 100}});
  EXPECT_TRUE(matches_reference(lengths));

  Case mask(GetParam(), 2, 13, 300, 2, 24);
  mask.use_bias(7, 2.0);
  mask.use_key_mask(8, 0.5);
  poison(mask);
  mask.attend();
  EXPECT_TRUE(matches_reference(mask));
}

TEST_P(FlashBias, BiasViewsMayShareHeads) {
  Case c(GetParam(), 1, 13, 70, 3, 24);
  c.use_bias(7, 2.0);
  for (int64_t i = 0; i < 13 * 70; ++i) {
    for (int64_t h = 1; h < 3; ++h) c.bias.data<float>()[h * 13 * 70 + i] = c.bias.data<float>()[i];
  }
  KeyBlock block = c.block();
  block.bias = TensorView(c.bias.data<float>(), DType::kF32, {3, 13, 70}, Shape{0, 70, 1});
  Stream stream(1);
  FlashAttention(c.problem).attend(stream, c.q, block, c.o);
  EXPECT_TRUE(matches_reference(c));
}

// A bias of −∞ is a mask of single scores; a row that has nothing else is 0/0 as in the definition.
TEST_P(FlashBias, BiasOfMinusInfinity) {
  Case c(GetParam(), 1, 8, 150, 1, 24);
  c.use_bias(7, 1.0);
  const auto mask_scores = [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) c.bias.data<float>()[row * 150 + j] = -std::numeric_limits<float>::infinity();
  };
  mask_scores(0, 0, 1);
  mask_scores(1, 0, 149);  // far beyond the first panel
  mask_scores(2, 1, 150);
  mask_scores(3, 0, 150);
  c.attend();
  EXPECT_TRUE(matches_reference(c));
  c.fold({{0, 50}, {50, 100}, {100, 150}});
  EXPECT_TRUE(matches_reference(c));
}

}  // namespace
}  // namespace zoetrope::kernels
