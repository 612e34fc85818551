// The errors that exp2_coefficients.h states, over all of each interval.
#include "kernels/flash_attention/exp2_coefficients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace zoetrope::kernels {
namespace {

// The largest relative error of approximation(f) against 2^f for f in [begin, begin + 1).
template <typename Approximation>
double largest_error(float begin, const Approximation& approximation) {
  constexpr int kPoints = 1 << 20;
  double largest = 0;
  for (int i = 0; i < kPoints; ++i) {
    const float f = begin + static_cast<float>(i) / kPoints;
    largest =
        std::max(largest, std::abs(static_cast<double>(approximation(f)) / std::exp2(static_cast<double>(f)) - 1));
  }
  return largest;
}

template <size_t kTerms>
double polynomial_error(float begin, const float (&coefficients)[kTerms]) {
  return largest_error(begin, [&](float f) {
    float value = coefficients[kTerms - 1];
    for (size_t power = kTerms - 1; power > 0; --power) value = std::fma(value, f, coefficients[power - 1]);
    return value;
  });
}

TEST(Exp2Coefficients, Polynomials) {
  EXPECT_LE(polynomial_error(0, kExp2Degree3), 7.5e-5);
  EXPECT_LE(polynomial_error(-0.5f, kExp2Degree3Nearest), 7.5e-5);
  EXPECT_LE(polynomial_error(0, kExp2Degree5), 1.5e-7);
  EXPECT_LE(polynomial_error(-0.5f, kExp2Degree5Nearest), 2.2e-7);
}

double line_error(const Exp2Lines& lines) {
  return largest_error(0, [&](float f) {
    const auto line = static_cast<size_t>(f * 16);
    return std::fma(lines.slope[line], f - static_cast<float>(line) / 16, lines.value[line]);
  });
}

TEST(Exp2Coefficients, Lines) {
  EXPECT_LE(line_error(kExp2Lines), 1.2e-4);
  for (size_t line = 0; line < 16; ++line) {  // one that is off by a bf16 rounding is seen
    Exp2Lines wrong = kExp2Lines;
    wrong.value[line] *= 1 + 0x1p-9f;
    EXPECT_GT(line_error(wrong), 1e-3);
  }
}

}  // namespace
}  // namespace zoetrope::kernels
