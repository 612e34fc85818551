#include "kernels/gemm/pack_pairs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/index_range.h"
#include "kernels/cpu_features.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

struct Case {
  int64_t n, k, columns;
  DType stored;
  size_t shift = 0;  // bytes by which rows miss an address aligned to their type
};

float stored_value(const Tensor& w, int64_t row, int64_t k) {
  return static_cast<float>(test::get(w, row * w.view().extent(1) + k));
}

// Every element of every block, against its place by formula.
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.n << " x " << c.k << " in " << c.columns << " of " << dtype_name(c.stored));
  const Tensor w = test::random_tensor(c.stored, {c.n, c.k}, 7);
  const size_t row_bytes = static_cast<size_t>(c.k) * dtype_size(c.stored);
  std::vector<std::byte> memory(static_cast<size_t>(c.n) * row_bytes + c.shift);
  std::memcpy(memory.data() + c.shift, w.view().raw(), static_cast<size_t>(c.n) * row_bytes);
  std::vector<const std::byte*> rows;
  for (int64_t row = 0; row < c.n; ++row)
    rows.push_back(memory.data() + c.shift + static_cast<size_t>(row) * row_bytes);

  const int64_t block = kPairTerms * c.columns, terms = ceil_div(c.k, kPairTerms), across = ceil_div(c.n, c.columns);
  const PairBlocks blocks{c.columns, block, block * terms};
  std::vector<BFloat16> out(static_cast<size_t>(block * terms * across), to_bfloat16(99.0f));
  pack_pairs(rows, c.stored, c.k, blocks, out.data());
  int64_t wrong = 0;
  for (int64_t n = 0; n < across * c.columns; ++n) {
    for (int64_t k = 0; k < terms * kPairTerms; ++k) {
      const int64_t within = k % kPairTerms / 2 * 2 * c.columns + n % c.columns * 2 + k % 2;
      const int64_t at = n / c.columns * blocks.column_stride + k / kPairTerms * block + within;
      const float expected = n < c.n && k < c.k ? to_float(to_bfloat16(stored_value(w, n, k))) : 0.0f;
      if (to_float(out[static_cast<size_t>(at)]) != expected) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(PackPairs, EveryElementHasItsPlace) {
  if (!cpu_features().avx512) GTEST_SKIP() << "needs AVX-512";
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {1, 15, 16, 17, 63, 64, 65, 130}) check({n, 64, 64, stored});
    for (const int64_t k : {1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 257}) check({20, k, 16, stored});
    for (const int64_t columns : {16, 32, 48, 64}) check({100, 96, columns, stored, 1});
  }
}

// As converting does: ties to even, infinities, NaN and the smallest numbers.
TEST(PackPairs, RoundsAsConvertingDoes) {
  if (!cpu_features().avx512) GTEST_SKIP() << "needs AVX-512";
  std::vector<uint32_t> bits{0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f800000, 0xff800000,
                             0x7fc00001, 0x7f800001, 0x00000001, 0x00008000, 0x80018000, 0x7f7fffff, 0x80000000};
  const auto k = static_cast<int64_t>(bits.size());
  const std::byte* row = reinterpret_cast<const std::byte*>(bits.data());
  std::vector<BFloat16> out(16 * kPairTerms);
  pack_pairs({&row, 1}, DType::kF32, k, {16, 16 * kPairTerms, 16 * kPairTerms}, out.data());
  for (int64_t i = 0; i < k; ++i) {
    float value = 0;
    std::memcpy(&value, &bits[static_cast<size_t>(i)], sizeof value);
    const BFloat16 expected = to_bfloat16(value), actual = out[static_cast<size_t>(i / 2 * 32 + i % 2)];
    EXPECT_EQ(std::memcmp(&expected, &actual, sizeof expected), 0) << i;
  }
}

}  // namespace
}  // namespace zoetrope::kernels
