#include "kernels/narrow/narrow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/test_folder.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::GappedTensor;
using test::values;

const char* const kNames[] = {"reference", "avx2"};
const DType kDtypes[] = {DType::kF32, DType::kBF16};
const NarrowFormat kFormats[] = {NarrowFormat::kBFloat16, NarrowFormat::kInt8};
const int64_t kWidths[] = {1, 3, 7, 8, 9, 31, 32, 33, 64, 100, 128};

// One vector as narrow() makes it.
std::vector<char> narrowed(NarrowFormat format, const std::vector<float>& x, const char* name = "avx2") {
  const auto d = static_cast<int64_t>(x.size());
  const Tensor values(DType::kF32, {1, 1, 1, d}), out(DType::kU8, {1, 1, 1, narrow_bytes(format, d)});
  std::copy(x.begin(), x.end(), values.data<float>());
  Stream stream(1);
  narrow(stream, format, values, out, name);
  return {out.data<char>(), out.data<char>() + out.size()};
}

std::vector<float> widened(NarrowFormat format, const std::vector<char>& bytes, int64_t d, const char* name = "avx2") {
  const Tensor in(DType::kU8, {1, 1, 1, narrow_bytes(format, d)}), out(DType::kF32, {1, 1, 1, d});
  std::copy(bytes.begin(), bytes.end(), in.data<char>());
  Stream stream(1);
  widen(stream, format, in, out, name);
  return {out.data<float>(), out.data<float>() + d};
}

// Heads of a wider tensor into a part of wider rows, as an exchange has them: every implementation and number of
// threads makes the same bytes and the same values, each within its bound, and nothing else is written.
TEST(Narrow, EveryImplementationMakesTheSameBitsWithinTheBound) {
  uint64_t seed = 1;
  for (const NarrowFormat format : kFormats)
    for (const DType dtype : kDtypes)
      for (const int64_t d : kWidths) {
        const int64_t bytes = narrow_bytes(format, d);
        const GappedTensor x(dtype, {2, 5, 3, d}, 1);
        test::fill_random(x, seed++, 0.5, 3);
        std::vector<char> first;
        for (const char* name : kNames)
          for (const int threads : {1, 3}) {
            const Tensor rows(DType::kU8, {2, 5, 4, bytes});
            std::memset(rows.data<char>(), 0x5a, static_cast<size_t>(rows.size()));
            const TensorView out = rows.view().slice(2, 1, 4);
            Stream stream(threads);
            const Rounding rounding = narrow(stream, format, x, out, name);
            const std::vector<char> all(rows.data<char>(), rows.data<char>() + rows.size());
            if (first.empty()) first = all;
            EXPECT_EQ(all, first) << name << " D=" << d;
            EXPECT_EQ(all[0], 0x5a);
            const GappedTensor back(dtype, {2, 5, 3, d}, 2);
            widen(stream, format, out, back, name);
            EXPECT_TRUE(back.gaps_intact());
            const std::vector<double> before = values(x), after = values(back);
            double changes = 0, norm = 0;
            for (size_t i = 0; i < before.size(); ++i) {
              const size_t vector = i / static_cast<size_t>(d) * static_cast<size_t>(d);
              const size_t block = vector + (i - vector) / kNarrowBlock * kNarrowBlock;
              double largest = 0;
              for (size_t j = block; j < std::min(vector + static_cast<size_t>(d), block + kNarrowBlock); ++j)
                largest = std::max(largest, std::abs(before[j]));
              // Half a step, and what float32 adds to it: a few units of a value of 127 steps.
              const double step = format == NarrowFormat::kInt8 ? largest / 127 * (0.5 + 127 * 0x1p-21)
                                                                : 0x1p-9 * 2 * std::abs(before[i]);
              const double stored = dtype == DType::kBF16 ? 0x1p-8 * std::abs(after[i]) : 0;
              EXPECT_LE(std::abs(after[i] - before[i]), step + stored) << name << " D=" << d;
              changes += (after[i] - before[i]) * (after[i] - before[i]);
              norm += before[i] * before[i];
            }
            EXPECT_NEAR(rounding.changes, changes, 1e-5 * changes + 1e-13 * norm);  // float32 may be fused there
            EXPECT_NEAR(rounding.values, norm, 1e-5 * norm);
            EXPECT_NEAR(rounding.relative_l2(), std::sqrt(changes / norm), 1e-5);
          }
      }
}

TEST(Narrow, Int8IsAsItIsDescribed) {
  std::vector<float> x(34, 0.0F);
  x[0] = 254;  // the largest: 127 steps of 2
  x[1] = -254;
  x[2] = 3;        // half-way between 1 and 2 steps: to even
  x[3] = 5;        // between 2 and 3: to even
  x[4] = -0.9F;    // less than half a step
  x[33] = -12.7F;  // alone in its block
  ASSERT_EQ(narrow_bytes(NarrowFormat::kInt8, 34), 44);
  for (const char* name : kNames) {
    const std::vector<char> bytes = narrowed(NarrowFormat::kInt8, x, name);
    float scales[2];
    std::memcpy(scales, bytes.data(), sizeof scales);
    EXPECT_EQ(scales[0], 2);
    EXPECT_EQ(scales[1], 12.7F / 127);
    const std::vector<int> expected{127, -127, 2, 2, 0};
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<int8_t>(bytes[8 + i]), expected[i]) << i;
    EXPECT_EQ(static_cast<int8_t>(bytes[8 + 33]), -127);
    EXPECT_EQ(widened(NarrowFormat::kInt8, bytes, 34, name)[1], -254);
  }
}

// A value that is not finite must not come out as a number: the run would go on with it.
TEST(Narrow, NonFiniteValuesStayNonFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const size_t at : {size_t{0}, size_t{31}, size_t{40}}) {
      std::vector<float> x(41, 1.0F);
      x[at] = bad;
      const std::vector<char> bytes = narrowed(NarrowFormat::kInt8, x, "reference");
      EXPECT_EQ(narrowed(NarrowFormat::kInt8, x, "avx2"), bytes);
      for (const char* name : kNames) {
        const std::vector<float> back = widened(NarrowFormat::kInt8, bytes, 41, name);
        for (size_t i = 0; i < back.size(); ++i)
          EXPECT_EQ(std::isnan(back[i]), i / kNarrowBlock == at / kNarrowBlock) << i;
        EXPECT_FALSE(
            std::isfinite(widened(NarrowFormat::kBFloat16, narrowed(NarrowFormat::kBFloat16, x, name), 41, name)[at]));
      }
    }
}

TEST(Narrow, WhatIsNotFiniteIsNotMeasured) {
  for (const NarrowFormat format : kFormats)
    for (const char* name : kNames) {
      const Tensor x = test::random_tensor(DType::kF32, {1, 2, 1, 8}, 5);
      const Tensor out(DType::kU8, {1, 2, 1, narrow_bytes(format, 8)});
      Stream stream(1);
      const TensorView second = x.view().slice(1, 1, 2), out_of_second = out.view().slice(1, 1, 2);
      const Rounding alone = narrow(stream, format, second, out_of_second, name);
      x.data<float>()[3] = std::numeric_limits<float>::infinity();
      const Rounding both = narrow(stream, format, x, out, name);
      EXPECT_GT(alone.relative_l2(), 0);
      EXPECT_EQ(both.relative_l2(), alone.relative_l2());
    }
}

// The inverse of a scale must not overflow.
TEST(Narrow, TinyBlocksBecomeZero) {
  for (const char* name : kNames) {
    for (const float tiny : {0.0F, 1e-44F, 1e-38F, 0x1p-101F})
      EXPECT_EQ(widened(NarrowFormat::kInt8, narrowed(NarrowFormat::kInt8, {tiny, -tiny}, name), 2, name),
                (std::vector<float>{0, 0}));
    EXPECT_EQ(widened(NarrowFormat::kInt8, narrowed(NarrowFormat::kInt8, {0x1p-100F, 0}, name), 2, name)[0], 0x1p-100F);
    const float most = std::numeric_limits<float>::max() / 2;
    EXPECT_NEAR(widened(NarrowFormat::kInt8, narrowed(NarrowFormat::kInt8, {most, 0}, name), 2, name)[0] / most, 1,
                0x1p-22);
  }
}

// What was rounded once is not changed when it is rounded again.
TEST(Narrow, BFloat16IsExactForBFloat16) {
  const std::vector<float> x{1, -1.0078125F, 3.140625F};
  EXPECT_EQ(widened(NarrowFormat::kBFloat16, narrowed(NarrowFormat::kBFloat16, x), 3), x);
}

TEST(Narrow, RefusesOtherShapes) {
  Stream stream(1);
  const Tensor x(DType::kF32, {1, 2, 3, 8}), wrong(DType::kU8, {1, 2, 3, 8}), flat(DType::kF32, {8});
  EXPECT_THAT(error_of([&] { narrow(stream, NarrowFormat::kInt8, x, wrong); }), testing::HasSubstr("needs U8"));
  EXPECT_THAT(error_of([&] { widen(stream, NarrowFormat::kInt8, wrong, x); }), testing::HasSubstr("needs U8"));
  EXPECT_THAT(error_of([&] { narrow(stream, NarrowFormat::kInt8, flat, wrong); }), testing::HasSubstr("[B, S, H, D]"));
  const Tensor right(DType::kU8, {1, 2, 3, 12});
  EXPECT_THAT(error_of([&] { narrow(stream, NarrowFormat::kInt8, x, right, "amx"); }), testing::HasSubstr("avx2"));
}

}  // namespace
}  // namespace zoetrope::kernels
