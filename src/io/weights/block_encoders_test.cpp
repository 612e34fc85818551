#include "io/weights/block_encoders.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "io/weights/block_formats.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

using Values = std::array<float, 32>;

const char* const kNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"};

std::vector<std::byte> encoded(const std::string& name, const Values& values) {
  std::vector<std::byte> block(find_block_format(name)->bytes);
  find_block_encoder(name)(values.data(), block.data());
  return block;
}

Values round_trip(const std::string& name, const Values& values) {
  Values out;
  find_block_format(name)->decode(encoded(name, values).data(), 1, out.data());
  return out;
}

int byte(const std::vector<std::byte>& block, size_t at) { return static_cast<int>(block[at]); }

TEST(BlockEncoders, ZerosStayZero) {
  for (const char* name : kNames)
    for (const float value : round_trip(name, Values{})) EXPECT_EQ(value, 0) << name;
}

// The scale is a float16, so that values which are its multiples come back exactly.
TEST(BlockEncoders, MultiplesOfAHalfPrecisionScaleAreExact) {
  const float d = 0.0625f;
  const struct {
    const char* name;
    int least, most;
    float from;
  } cases[] = {
      {"Q4_0", -8, 7, 0}, {"Q5_0", -16, 15, 0}, {"Q8_0", -127, 127, 0}, {"Q4_1", 0, 15, -3}, {"Q5_1", 0, 31, 2}};
  for (const auto& [name, least, most, from] : cases) {
    Values values;
    for (int i = 0; i < 32; ++i)
      values[static_cast<size_t>(i)] = from + d * static_cast<float>(least + i % (most - least + 1));
    values[31] = from + d * static_cast<float>(most);
    values[30] = from + d * static_cast<float>(least);
    EXPECT_EQ(round_trip(name, values), values) << name;
  }
}

// As in gguf, product and sum are rounded once: the product alone would be 0.5 below, and the code 9.
TEST(BlockEncoders, CodesAreRoundedOnce) {
  Values values{};
  values[0] = -1.0024937391281128f;
  values[1] = 0.06265579909086227f;
  EXPECT_EQ(byte(encoded("Q4_0", values), 3) & 15, 8);
}

TEST(BlockEncoders, Q8RoundsTiesAwayFromZero) {
  Values values{};
  values[0] = 127;  // a scale of 1
  values[1] = 0.5f, values[2] = 1.5f, values[3] = 2.5f;
  values[4] = -0.5f, values[5] = -2.5f, values[6] = 0.49999997f;
  const Values out = round_trip("Q8_0", values);
  EXPECT_EQ(out[1], 1);
  EXPECT_EQ(out[2], 2);
  EXPECT_EQ(out[3], 3);
  EXPECT_EQ(out[4], -1);
  EXPECT_EQ(out[5], -3);
  EXPECT_EQ(out[6], 0);
}

// The first of the largest magnitudes decides the sign of the scale, and gets the code 0; its negative has no code, so
// it is cut off at the last one.
TEST(BlockEncoders, Q4TakesTheFirstOfTheLargestMagnitudes) {
  Values values{};
  values[3] = 8, values[4] = -8, values[5] = 0.5f, values[6] = -0.5f;
  const auto block = encoded("Q4_0", values);
  EXPECT_EQ(byte(block, 2 + 3) & 15, 0);
  EXPECT_EQ(byte(block, 2 + 4) & 15, 15);
  EXPECT_EQ(byte(block, 2 + 5) & 15, 8);  // −0.5 steps: 8.5 − 0.5 is cut to 8
  EXPECT_EQ(byte(block, 2 + 6) & 15, 9);  // 0.5 steps: 9
  const Values out = round_trip("Q4_0", values);
  EXPECT_EQ(out[3], 8);
  EXPECT_EQ(out[4], -7);
}

TEST(BlockEncoders, SecondHalvesAndFifthBitsHaveTheirPlaces) {
  Values values;
  for (size_t i = 0; i < 32; ++i) values[i] = static_cast<float>(i);
  const auto block = encoded("Q5_1", values);  // codes are the elements' numbers
  EXPECT_EQ(byte(block, 8 + 3), 0x33);
  EXPECT_EQ(byte(block, 4), 0);
  EXPECT_EQ(byte(block, 6), 0xFF);
  EXPECT_EQ(round_trip("Q5_1", values), values);
}

// Codes come from the scale before it is rounded to float16.
TEST(BlockEncoders, TheErrorIsAtMostHalfAStep) {
  uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    Values values;
    float largest = 0;
    for (float& value : values) {
      state = state * 1664525 + 1013904223;
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-34f;
      largest = std::max(largest, std::abs(value));
    }
    const struct {
      const char* name;
      float step;
    } cases[] = {
        {"Q8_0", 1 / 127.0f}, {"Q5_1", 2 / 31.0f}, {"Q4_1", 2 / 15.0f}, {"Q5_0", 1 / 16.0f}, {"Q4_0", 1 / 8.0f}};
    for (const auto& [name, step] : cases) {
      const bool centred = std::string(name).ends_with("_0") && std::string(name) != "Q8_0";
      const Values out = round_trip(name, values);
      for (size_t i = 0; i < 32; ++i) {
        // A whole step at the end that has no code; and the rounding of scale and least value, 2^−11 of each.
        const float most = largest * step * (centred ? 1.0f : 0.5f) + largest * 0x1p-9f;
        EXPECT_LE(std::abs(out[i] - values[i]), most) << name << " " << i;
      }
    }
  }
}

TEST(BlockEncoders, ScalesBeyondHalfPrecisionShowInTheValues) {
  Values values{};
  values[7] = 3e38f;
  values[8] = -3e38f;
  for (const char* name : kNames) {
    bool finite = true;
    for (const float value : round_trip(name, values)) finite &= std::isfinite(value);
    EXPECT_FALSE(finite) << name;
  }
  Values tiny{};
  tiny[0] = std::numeric_limits<float>::denorm_min();
  for (const char* name : kNames)
    for (const float value : round_trip(name, tiny)) EXPECT_EQ(value, 0) << name;
}

TEST(BlockEncoders, OtherFormatsHaveNone) {
  for (const char* name : {"Q4_K", "IQ4_NL", "Q6_K", "F16", ""}) EXPECT_EQ(find_block_encoder(name), nullptr) << name;
}

}  // namespace
}  // namespace zoetrope::io
