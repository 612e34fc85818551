#include "models/sampling/frequency.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <random>

namespace zoetrope::sampling {
namespace {

using Complex = std::complex<double>;

// The formula of the header as it is written, with transforms straight from their definition: [h, ⌊w/2⌋ + 1]
// coefficients, weighed, and back as irfft2 does, which counts every column but the first and an even width's last
// twice.
std::vector<double> by_transforms(const std::vector<double>& difference, size_t h, size_t w, double low, double high) {
  const size_t half = w / 2 + 1, ch = std::max<size_t>(1, h / 4), cw = std::max<size_t>(1, half / 4);
  const auto angle = [](size_t a, size_t n) {
    return 2 * std::numbers::pi * static_cast<double>(a % n) / static_cast<double>(n);
  };
  std::vector<Complex> spectrum(h * half);
  for (size_t i = 0; i < h; ++i) {
    for (size_t j = 0; j < half; ++j) {
      Complex sum = 0;
      for (size_t y = 0; y < h; ++y) {
        for (size_t x = 0; x < w; ++x)
          sum += difference[y * w + x] * std::polar(1.0, -angle(i * y, h) - angle(j * x, w));
      }
      const bool is_low = (i < ch || i >= h - ch + 1) && j < cw;
      spectrum[i * half + j] = sum * (is_low ? low : high);
    }
  }
  std::vector<double> out(h * w);
  for (size_t y = 0; y < h; ++y) {
    for (size_t x = 0; x < w; ++x) {
      double sum = 0;
      for (size_t i = 0; i < h; ++i) {
        for (size_t j = 0; j < half; ++j) {
          const double times = j == 0 || 2 * j == w ? 1 : 2;
          sum += times * (spectrum[i * half + j] * std::polar(1.0, angle(i * y, h) + angle(j * x, w))).real();
        }
      }
      out[y * w + x] = sum / static_cast<double>(h * w);
    }
  }
  return out;
}

TEST(FrequencyFilter, EqualsTheTransforms) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr size_t kSizes[][2] = {{1, 1}, {1, 8}, {2, 3}, {4, 6}, {5, 7}, {6, 10}, {8, 16}, {9, 12}, {12, 9}, {30, 26}};
  for (const auto& [h, w] : kSizes) {
    std::vector<float> conditional(h * w), unconditional(h * w), out(h * w);
    std::vector<double> difference(h * w);
    for (size_t i = 0; i < h * w; ++i) {
      conditional[i] = normal(random);
      unconditional[i] = normal(random);
      difference[i] = static_cast<double>(unconditional[i]) - static_cast<double>(conditional[i]);
    }
    const FrequencyFilter filter(static_cast<int64_t>(h), static_cast<int64_t>(w));
    std::vector<double> scratch(filter.scratch_size());
    for (const auto& [low, high] :
         {std::pair{1.2, 1.0}, std::pair{1.0, 1.2}, std::pair{1.0, 1.0}, std::pair{0.0, 1.0}}) {
      filter.weigh(conditional, unconditional, low, high, scratch, out);
      const std::vector<double> expected = by_transforms(difference, h, w, low, high);
      // float64 but for the last rounding, of values up to about 10.
      for (size_t i = 0; i < h * w; ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << h << " x " << w << " at " << i;
    }
  }
}

// Equal weights leave nothing to filter: the result is the difference itself, rounded once.
TEST(FrequencyFilter, EqualWeightsGiveTheDifference) {
  constexpr int64_t kHeight = 60, kWidth = 104;
  const FrequencyFilter filter(kHeight, kWidth);
  std::vector<float> conditional(kHeight * kWidth), unconditional(kHeight * kWidth), out(kHeight * kWidth);
  for (size_t i = 0; i < out.size(); ++i) {
    conditional[i] = static_cast<float>(i % 17) / 3;
    unconditional[i] = static_cast<float>(i % 23) / 7;
  }
  std::vector<double> scratch(filter.scratch_size());
  filter.weigh(conditional, unconditional, 1, 1, scratch, out);
  for (size_t i = 0; i < out.size(); ++i) {
    const double difference = static_cast<double>(unconditional[i]) - static_cast<double>(conditional[i]);
    EXPECT_EQ(out[i], static_cast<float>(difference));
  }
  filter.weigh(conditional, unconditional, 1.2, 1, scratch, conditional);  // in place
  filter.weigh(unconditional, unconditional, 1.2, 1, scratch, out);
  for (const float value : out) EXPECT_EQ(value, 0.0f);
}

TEST(LowPassRow, KeepsAConstantAndOneFrequency) {
  const std::vector<double> row = low_pass_row(12, 2);  // frequencies 0 and ±1
  double sum = 0;
  for (const double value : row) sum += value;
  EXPECT_NEAR(sum, 1, 1e-14);
  EXPECT_NEAR(row[0], 3.0 / 12, 1e-15);
  EXPECT_NEAR(row[6], (1.0 - 2.0) / 12, 1e-15);  // cos π
}

}  // namespace
}  // namespace zoetrope::sampling
