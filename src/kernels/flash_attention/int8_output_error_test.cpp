// By how much int8 moves a head's output, as a sample says it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/flash_attention/int8_attention.h"
#include "kernels/flash_attention/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class Int8OutputError : public testing::Test {
 protected:
  static constexpr int64_t kQueries = 512, kKeys = 2048, kDim = 128, kTileKeys = 256;
  double error_with(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const auto source = [](const Tensor& x) {
      return PackSource{x.data<void>(), x.view().stride(1), DType::kBF16, nullptr, x.extent(1), kDim};
    };
    const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kDim)));
    return int8_output_error(source(q), source(k), source(v), mean_.data(), scale, kTileKeys, scratch_.data<void>());
  }
  Case c{{"scalar", DType::kBF16}, 1, kQueries, kKeys, 1, kDim};

 private:
  const std::vector<float> mean_ = std::vector<float>(kDim);
  const Tensor scratch_{DType::kU8, {int8_sample_bytes()}};
};

TEST_F(Int8OutputError, IsThatOfASample) {
  const double error = error_with(c.q, c.k, c.v);
  // Of normal numbers, see int8_tolerance(): at most 2·2^-7, and not far below.
  EXPECT_LE(error, 0x1p-6);
  EXPECT_GE(error, 0.5 * 0x1p-6);
  // Queries that are long where keys are zero: every rounding of a key counts a hundred times, and no score grows.
  Case coarse({"scalar", DType::kBF16}, 1, kQueries, kKeys, 1, kDim);
  for (int64_t i = 0; i < kQueries; ++i) set_element(coarse.q, 0, i, 0, 0, 1000);
  for (int64_t j = 0; j < kKeys; ++j) set_element(coarse.k, 0, j, 0, 0, 0);
  EXPECT_GT(error_with(coarse.q, coarse.k, c.v), 4 * error);
  // Values that are all the same are their middle, and what rounding does to weights cannot be seen.
  const Tensor same(DType::kBF16, c.v.shape());
  test::fill_random(same, 3, 3, 0);
  EXPECT_LE(error_with(c.q, c.k, same), 1e-6);
  set_element(c.v, 0, 0, 0, 3, kNaN);  // of the tile, but not of the sample
  EXPECT_TRUE(std::isnan(error_with(c.q, c.k, c.v)));
  set_element(c.v, 0, 0, 0, 3, 0);
  set_element(c.k, 0, 4, 0, 3, kNaN);  // the first of 256
  EXPECT_TRUE(std::isnan(error_with(c.q, c.k, c.v)));
}

// A value a thousand times as large as the others, which no query attends to: all of its tile are rounded as it is.
TEST_F(Int8OutputError, HasTheScalesOfWholeTiles) {
  const double error = error_with(c.q, c.k, c.v);
  for (int64_t i = 0; i < kQueries; ++i) set_element(c.q, 0, i, 0, 0, 20);
  for (int64_t d = 0; d < kDim; ++d) set_element(c.v, 0, 0, 0, d, d % 2 == 0 ? 1000 : -1000);
  set_element(c.k, 0, 0, 0, 0, -50);
  EXPECT_GT(error_with(c.q, c.k, c.v), 20 * error);
}

// Four queries of 512, none of them evenly spaced. Each sees few keys, so that their outputs are longer than all others
// together; and they are long where keys are zero, so that every rounding of a key counts.
TEST_F(Int8OutputError, HasTheLongestQueries) {
  for (int64_t j = 0; j < kKeys; ++j) set_element(c.k, 0, j, 0, 0, 0);
  const double error = error_with(c.q, c.k, c.v);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t d = 0; d < kDim; ++d) set_element(c.q, 0, i, 0, d, 10 * static_cast<float>(element(c.q, 0, i, 0, d)));
    set_element(c.q, 0, i, 0, 0, 2000);
  }
  EXPECT_GT(error_with(c.q, c.k, c.v), 4 * error);
}

// Four keys, none of them evenly spaced, that queries see before all others; by which of them, what rounding loses
// says.
TEST_F(Int8OutputError, HasTheLongestKeys) {
  for (int64_t i = 0; i < kQueries; ++i) set_element(c.q, 0, i, 0, 0, 4);
  const double error = error_with(c.q, c.k, c.v);
  for (int64_t j = 0; j < 4; ++j) set_element(c.k, 0, j, 0, 0, 800);
  EXPECT_GT(error_with(c.q, c.k, c.v), 4 * error);
}

}  // namespace
}  // namespace zoetrope::kernels
