#include "io/weights/tensor_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "io/weights/scaled_tensor.h"

namespace zoetrope::io {
namespace {

struct Encoded {
  std::unique_ptr<TensorEncoder> encoder;
  std::vector<std::byte> codes;
  std::vector<float> values;  // decoded
};

Encoded encode(NumberFormat format, const Shape& shape, const std::vector<float>& values) {
  Encoded result{tensor_encoder(format, shape), {}, std::vector<float>(values.size())};
  const IndexRange all{0, std::ssize(values)};
  if (result.encoder->observes()) {
    const int64_t half = all.end / 2 / TensorEncoder::kTogether * TensorEncoder::kTogether;
    std::thread other([&] { result.encoder->observe({0, half}, values.data()); });
    result.encoder->observe({half, all.end}, values.data() + half);
    other.join();
  }
  result.codes.resize(result.encoder->bytes(all.size()));
  result.encoder->encode(all, values.data(), result.codes.data());
  result.encoder->decode(all, result.codes.data(), result.values.data());
  return result;
}

// The only tensor of scales, or the last.
TensorEncoder::Scales scales_of(const Encoded& encoded) { return encoded.encoder->scales().back(); }

float scale_of(const Encoded& encoded) {
  float scale;
  std::memcpy(&scale, scales_of(encoded).bytes.data(), sizeof scale);
  return scale;
}

// Every code of a small float is the nearest of its own value, and of all values up to half of the way to the next
// code; there an even one wins.
void check_small_float(NumberFormat format, void (*widen)(const std::byte*, int64_t, float*), int last) {
  std::vector<float> known(static_cast<size_t>(last) + 1);
  for (int code = 0; code <= last; ++code) {
    const auto stored = static_cast<std::byte>(code);
    widen(&stored, 1, &known[static_cast<size_t>(code)]);
  }
  const float largest = known.back();
  for (size_t code = 0; code + 1 < known.size(); ++code) {
    const float low = known[code], high = known[code + 1], middle = low + (high - low) / 2;
    const std::vector<float> values = {
        largest, low, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, largest), -low, -middle, high};
    const Encoded out = encode(format, {1, std::ssize(values)}, values);
    ASSERT_EQ(scale_of(out), 1) << code;  // so that the values are codes
    const float even = code % 2 == 0 ? low : high;
    const std::vector<float> expected = {largest, low, low, even, high, -low, -even, high};
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(out.values[i], expected[i]) << "code " << code << ", value " << values[i];
      EXPECT_EQ(std::signbit(out.values[i]), std::signbit(expected[i])) << "code " << code;
    }
  }
}

TEST(TensorEncoder, SmallFloatsAreTheNearest) {
  check_small_float(NumberFormat::kFp8E4M3, widen_e4m3, 0x7e);
  check_small_float(NumberFormat::kFp8E5M2, widen_e5m2, 0x7b);
}

TEST(TensorEncoder, TheLargestMagnitudeBecomesTheLargestCode) {
  const std::vector<float> values = {0.5f, -1.75f, 0.25f, 0};
  const Encoded fp8 = encode(NumberFormat::kFp8E4M3, {1, 4}, values);
  EXPECT_EQ(scale_of(fp8), 1.75f / 448);
  EXPECT_EQ(fp8.codes[1], std::byte{0xfe});
  const Encoded int8 = encode(NumberFormat::kInt8, {2, 2}, values);
  EXPECT_EQ(scale_of(int8), 1.75f / 127);
  EXPECT_EQ(static_cast<int8_t>(int8.codes[1]), -127);
  EXPECT_STREQ(scales_of(int8).type, "F32");
  EXPECT_EQ(scales_of(int8).shape.rank(), 0);
}

TEST(TensorEncoder, RowsHaveTheirOwnScales) {
  const Encoded out = encode(NumberFormat::kInt8Rows, {3, 3}, {1, -127, 0.5f, 254, 1, 3, 0, 0, 0});
  EXPECT_EQ(out.values, (std::vector<float>{1, -127, 0, 254, 0, 4, 0, 0, 0}));
  const TensorEncoder::Scales scales = scales_of(out);
  EXPECT_EQ(scales.shape, (Shape{3, 1}));
  float stored[3];
  std::memcpy(stored, scales.bytes.data(), sizeof stored);
  EXPECT_EQ(stored[0], 1);
  EXPECT_EQ(stored[1], 2);
  EXPECT_EQ(stored[2], 1e-30f);
}

TEST(TensorEncoder, Int8RoundsTiesToEven) {
  const Encoded out = encode(NumberFormat::kInt8, {1, 6}, {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f});
  EXPECT_EQ(out.values, (std::vector<float>{127, 0, 2, 2, 0, -2}));
}

TEST(TensorEncoder, ZerosHaveAScaleThatReadersTake) {
  for (const NumberFormatInfo& info : number_formats()) {
    const Encoded out = encode(info.format, {2, 32}, std::vector<float>(64));
    for (const float value : out.values) EXPECT_EQ(value, 0) << info.word;
    for (const TensorEncoder::Scales& scales : out.encoder->scales()) {
      if (scales.type != std::string_view("F32")) continue;
      EXPECT_GT(scale_of(out), 0) << info.word;
    }
  }
}

TEST(TensorEncoder, PlainFormatsKeepWhatTheyCanHold) {
  const std::vector<float> values = {1, -0.0f, 0.5f, -3, 1.0f + 0x1p-7f};
  for (const NumberFormat format : {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16}) {
    const Encoded out = encode(format, {5}, values);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(out.values[i]), std::bit_cast<uint32_t>(values[i])) << info_of(format).word;
    EXPECT_TRUE(out.encoder->scales().empty());
  }
  EXPECT_EQ(encode(NumberFormat::kBF16, {1}, {1.0f + 0x1p-8f}).values[0], 1);            // a tie, to even
  EXPECT_EQ(encode(NumberFormat::kBF16, {1}, {1.0f + 0x3p-8f}).values[0], 1 + 0x1p-6f);  // likewise
  EXPECT_TRUE(std::isinf(encode(NumberFormat::kF16, {1}, {65520}).values[0]));
}

TEST(TensorEncoder, ScalesOfRunsAreTheLeastThatNoValueExceeds) {
  constexpr int64_t kRows = 130, kColumns = 160;
  std::vector<float> values(kRows * kColumns);
  const auto run = [&](int64_t row, int64_t at) { return values.data() + row * kColumns + 32 * at; };
  run(0, 0)[3] = -448;                            // factor 1
  run(0, 1)[3] = std::nextafter(448.0f, 449.0f);  // 2: not representable with 1
  run(1, 4)[31] = 224 * 0x1p-20f;
  run(129, 3)[0] = 0x1p-130f;  // below the least factor, 2^−126
  const Encoded out = encode(NumberFormat::kMxfp8, {kRows, kColumns}, values);
  const TensorEncoder::Scales scales = scales_of(out);
  EXPECT_EQ(scales.shape, (Shape{256, 8}));
  const auto scale = [&](int64_t row, int64_t at) {
    return static_cast<int>(scales.bytes[static_cast<size_t>(RunOrder(kRows, kColumns / 32).place(row, at))]);
  };
  EXPECT_EQ(scale(0, 0), 127);
  EXPECT_EQ(scale(0, 1), 128);
  EXPECT_EQ(scale(1, 4), 127 - 21);
  EXPECT_EQ(scale(129, 3), 1);
  EXPECT_EQ(scale(0, 2), 0);
  EXPECT_EQ(std::count(scales.bytes.begin(), scales.bytes.end(), std::byte{0}), 256 * 8 - 4);
  EXPECT_EQ(out.values[3], -448);
  EXPECT_EQ(out.values[32 + 3], 448);
  EXPECT_EQ(out.values[1 * kColumns + 4 * 32 + 31], 224 * 0x1p-20f);
  EXPECT_EQ(out.values[129 * kColumns + 3 * 32], 0x1p-130f);
}

// Of a value that is 100 times the others, a rotation makes 256 of a like size: their error is that of small ones.
TEST(TensorEncoder, ARotationSpreadsALargeValue) {
  std::vector<float> values(2 * 512);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50;
  values[300] = 100;
  const auto error = [&](NumberFormat format) {
    const Encoded out = encode(format, {2, 512}, values);
    double squares = 0;
    for (size_t i = 0; i < 512; ++i) squares += std::pow(static_cast<double>(out.values[i] - values[i]), 2);
    return std::sqrt(squares / 512);
  };
  // Half of a step, evenly: 1/√12 of the largest over 127. Rotated, the largest is about 100/16 and what others add.
  EXPECT_NEAR(error(NumberFormat::kInt8Rows), 100 / 127.0 / std::sqrt(12.0), 0.05);
  EXPECT_LT(error(NumberFormat::kInt8ConvRot), (100 / 16.0 + 4) / 127 / std::sqrt(12.0));
  EXPECT_EQ(encode(NumberFormat::kInt8ConvRot, {2, 512}, values).encoder->layer_members(),
            R"("convrot": true, "convrot_groupsize": 256)");
  // The largest power of 4 that divides a row.
  EXPECT_EQ(encode(NumberFormat::kInt8ConvRot, {1, 48}, std::vector<float>(48, 1)).encoder->layer_members(),
            R"("convrot": true, "convrot_groupsize": 16)");
}

// Halves round to the even code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 have the codes 0 to 7.
TEST(TensorEncoder, FourBitsAreTheNearest) {
  // The largest magnitudes of run and tensor are 6·448, so both scales are whole: 448 and 1.
  const std::vector<float> steps = {6,     5.01f, 5,      3.51f,  3.5f,  2.51f, 2.5f,   1.75f,
                                    0.26f, 0.25f, -0.25f, -0.26f, 0.75f, 1.25f, -1.75f, -6};
  const std::vector<float> expected = {6, 6, 4, 4, 4, 3, 2, 2, 0.5f, 0, -0.0f, -0.5f, 1, 1, -2, -6};
  std::vector<float> values;
  for (const float step : steps) values.push_back(step * 448);
  values.resize(32);  // and a run of zeros
  const Encoded out = encode(NumberFormat::kNvfp4, {1, 32}, values);
  EXPECT_EQ(scale_of(out), 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(out.values[i], expected[i] * 448) << i;
    EXPECT_EQ(std::signbit(out.values[i]), std::signbit(expected[i])) << i;
  }
  EXPECT_EQ(out.codes.size(), 16);
  EXPECT_EQ(out.codes[0], std::byte{0x77});  // the first value in the high half
  EXPECT_EQ(out.codes[5], std::byte{0x8 << 4 | 0x9});
  const std::vector<TensorEncoder::Scales> scales = out.encoder->scales();
  ASSERT_EQ(scales.size(), 2);
  EXPECT_STREQ(scales[0].suffix, "weight_scale");
  EXPECT_STREQ(scales[1].suffix, "weight_scale_2");
  EXPECT_EQ(scales[0].shape, (Shape{128, 4}));
  EXPECT_EQ(scales[0].bytes[0], std::byte{0x7e});
  // A run whose scale is below the least e4m3 counts as zeros.
  std::vector<float> small(32);
  small[0] = 2688;
  small[16] = 6 * 0x1p-11f;
  EXPECT_EQ(encode(NumberFormat::kNvfp4, {1, 32}, small).values[16], 0);
}

TEST(TensorEncoder, FormatsAreFoundByTheirWords) {
  for (const NumberFormatInfo& info : number_formats()) {
    ASSERT_NE(find_number_format(info.word), nullptr);
    EXPECT_EQ(find_number_format(info.word)->format, info.format);
    EXPECT_EQ(&info_of(info.format), &info);
    EXPECT_TRUE(info.safetensors || info.gguf) << info.word;
  }
  EXPECT_EQ(find_number_format("q4_k"), nullptr);
}

}  // namespace
}  // namespace zoetrope::io
