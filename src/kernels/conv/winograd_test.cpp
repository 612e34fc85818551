// Convolutions by Winograd's algorithm, next to what frame_conv_test.cpp asks of every algorithm.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <span>

#include "base/test_folder.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/conv/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace test;  // NOLINT: all of it is for these tests

// By Winograd with its row in the picture and an even column: the same tile, or the half of it that a part has.
TEST(Winograd, APixelOfATileDoesNotDependOnItsNeighbours) {
  for (const DType dtype : kBoth) {
    Case s(problem(32, 40, 3, 3, 3, dtype), 11, 21, 3);
    s.problem.algorithm = ConvAlgorithm::kWinograd;
    for (const std::string& name : implementations(dtype)) {
      if (!has_winograd(s.problem, name)) continue;
      FrameConvProblem p = s.problem;
      p.implementation = name;
      const FrameConvolution convolution(p, s.weight, s.bias);
      for (s.first_row = 0; s.first_row < 2; ++s.first_row) {
        const Result whole = run(s, name, {Residual::kNone, true, true, true}, 2);
        for (const auto& [top, left, h, w] : {std::array<int64_t, 4>{0, 0, 1, 21},
                                              {1, 0, 3, 20},
                                              {2, 2, 4, 3},
                                              {4, 6, 1, 1},
                                              {5, 20, 1, 1},
                                              {9, 8, 2, 10}}) {
          SCOPED_TRACE(testing::Message()
                       << name << ", first row " << s.first_row << ", part at " << top << ", " << left);
          std::vector<TensorView> inputs;
          for (const Tensor& x : s.inputs)
            inputs.push_back(x.view().slice(0, top, top + h + 2).slice(1, left, left + w + 2));
          Tensor raw(dtype, {h, w, 40});
          FrameConvOutput part;
          part.raw = raw;
          part.first_row = s.first_row + top;
          Stream stream(1);
          convolution.run(stream, inputs, part);
          EXPECT_EQ(test::values(raw), test::values(whole.raw.view().slice(0, top, top + h).slice(1, left, left + w)));
        }
      }
    }
  }
}

// Inputs between pages that may not be read, at the beginning and at the end of what may: half tiles above the first
// row, below the last and beyond the last column.
TEST(Winograd, NothingBesideTheInputsIsRead) {
  constexpr size_t kPage = 4096, kPages = 16;
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, (kPages + 2) * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory, kPage, PROT_NONE) + mprotect(memory + (kPages + 1) * kPage, kPage, PROT_NONE), 0);
  for (const auto& [dtype, in] : {std::pair<DType, int64_t>{DType::kF32, 16},
                                  {DType::kF32, 5},
                                  {DType::kF32, 20},
                                  {DType::kBF16, 16},
                                  {DType::kBF16, 5},
                                  {DType::kBF16, 6},
                                  {DType::kBF16, 20}}) {
    FrameConvProblem p = problem(in, 24, 1, 3, 3, dtype);
    const Tensor weight = random_tensor(DType::kF32, {24, in, 1, 3, 3}, 1);
    for (const ConvAlgorithm algorithm : {ConvAlgorithm::kDirect, ConvAlgorithm::kWinograd}) {
      for (const std::string& name : implementations(p)) {
        if (algorithm == ConvAlgorithm::kWinograd && !has_winograd(p, name)) continue;
        p.algorithm = algorithm;
        p.implementation = name;
        const FrameConvolution convolution(p, weight, {});
        for (const int64_t size : {1, 2, 9, 10}) {
          const Shape shape{size + 2, size + 2, in};
          const size_t bytes = static_cast<size_t>(shape[0] * shape[1] * shape[2]) * dtype_size(dtype);
          ASSERT_LE(bytes, kPages * kPage);
          for (std::byte* at : {memory + kPage, memory + (kPages + 1) * kPage - bytes}) {
            const TensorView input(at, dtype, shape);
            test::fill_random(input, 2);
            const Tensor raw(dtype, {size, size, 24});
            FrameConvOutput out;
            out.raw = raw;
            Stream stream(1);
            for (out.first_row = 0; out.first_row < 2; ++out.first_row)
              convolution.run(stream, std::span(&input, 1), out);
          }
        }
      }
    }
  }
  munmap(memory, (kPages + 2) * kPage);
}

// A NaN is seen by the nine outputs whose taps it is under and by no other of their tiles.
TEST(Winograd, ANanInputIsSeenByItsNeighboursOnly) {
  for (const DType dtype : kBoth) {
    Case s(problem(16, 20, 1, 3, 3, dtype), 8, 10, 1);
    s.problem.algorithm = ConvAlgorithm::kWinograd;
    for (const std::string& name : implementations(dtype)) {
      if (!has_winograd(s.problem, name)) continue;
      const Result good = run(s, name, {}, 1);
      for (const auto& [y, x] : {std::array<int64_t, 2>{4, 4}, {4, 5}, {5, 4}, {5, 5}, {0, 0}, {9, 11}}) {
        SCOPED_TRACE(testing::Message() << name << ", input " << y << ", " << x);
        const TensorView pixel = s.inputs[0].view().select(0, y).select(0, x);
        const double before = test::get(pixel, 3);
        test::put(pixel, 3, NAN);
        const Result result = run(s, name, {}, 1);
        test::put(pixel, 3, before);
        for (int64_t row = 0; row < 8; ++row) {
          for (int64_t column = 0; column < 10; ++column) {
            const bool sees = row <= y && y < row + 3 && column <= x && x < column + 3;
            const double value = test::values(result.raw.view().select(0, row).select(0, column))[7];
            EXPECT_EQ(std::isnan(value), sees) << row << ", " << column;
            if (!sees) {
              EXPECT_EQ(value, test::values(good.raw.view().select(0, row).select(0, column))[7]);
            }
          }
        }
      }
    }
  }
}

// Weights that are exact in bf16 are half as large where calls transform them, and give the same sums.
TEST(Winograd, WeightsInBf16GiveTheSameSums) {
  Case s(problem(20, 72, 3, 3, 3, DType::kBF16), 5, 7, 3);
  for (int64_t i = 0; i < s.weight.size(); ++i)
    s.weight.data<float>()[i] = to_float(to_bfloat16(test::get(s.weight, i)));
  s.problem.algorithm = ConvAlgorithm::kWinograd;
  for (const std::string& name : implementations(DType::kBF16)) {
    if (!has_winograd(s.problem, name)) continue;
    s.problem.bf16_weights = false;
    const std::vector<double> wide = test::values(run(s, name, {}, 2).raw);
    s.problem.bf16_weights = true;
    EXPECT_EQ(test::values(run(s, name, {}, 3).raw), wide) << name;
  }
}

// Both algorithms' errors, of inputs that are noise and of pixels that are alike, where transforms cancel or add up.
TEST(Winograd, ErrorsAreWithinTheirBound) {
  for (const DType dtype : kBoth) {
    for (const double common : {0.0, 3.0}) {
      Case s(problem(96, 32, 3, 3, 3, dtype), 6, 10, 3);
      const Tensor pixel = random_tensor(DType::kF32, {96}, 9, 0, common);
      for (const Tensor& x : s.inputs)
        test::for_each_element(x, [&](int64_t index, int64_t offset) {
          test::put(x, offset, test::get(x, offset) + test::get(pixel, index % 96));
        });
      const Result expected = run(s, "reference", {}, 1);
      for (const std::string& name : implementations(dtype)) {
        if (!has_winograd(s.problem, name)) continue;
        const auto error_by = [&](ConvAlgorithm algorithm) {
          s.problem.algorithm = algorithm;
          const double error =
              test::difference(test::values(run(s, name, {}, 1).raw), test::values(expected.raw)).relative_l2;
          EXPECT_LE(error, tolerance(s.problem)) << name;
          return error;
        };
        const double direct = error_by(ConvAlgorithm::kDirect), winograd = error_by(ConvAlgorithm::kWinograd);
        std::printf("%s %s, %s: direct %.2g, Winograd %.2g\n", name.c_str(), dtype_name(dtype),
                    common > 0 ? "pixels alike" : "noise", direct, winograd);
      }
    }
  }
}

TEST(Winograd, IsForWideConvolutionsOfThreeByThree) {
  for (const DType dtype : kBoth) {
    for (const std::string& name : implementations(dtype)) {
      const bool has = name != "amx_bf16", keeps_taps = dtype == DType::kBF16 && name != "avx512_bf16";
      const auto chosen = [&, name = name](FrameConvProblem p, ConvAlgorithm asked) {
        p.algorithm = asked;
        p.implementation = name;
        return algorithm_of(p);
      };
      FrameConvProblem p = problem(96, 96, 3, 3, 3, dtype);
      const ConvAlgorithm expected = has ? ConvAlgorithm::kWinograd : ConvAlgorithm::kDirect;
      EXPECT_EQ(chosen(p, ConvAlgorithm::kAuto), expected) << name;
      EXPECT_EQ(chosen(p, ConvAlgorithm::kDirect), ConvAlgorithm::kDirect);
      for (const FrameConvProblem& other :
           {problem(96, 3, 3, 3, 3, dtype), problem(12, 96, 3, 3, 3, dtype), problem(96, 96, 3, 1, 1, dtype)})
        EXPECT_EQ(chosen(other, ConvAlgorithm::kAuto), ConvAlgorithm::kDirect) << name;
      if (name == "amx_bf16") continue;  // has no strides over several frames either
      p.stride = 2;
      EXPECT_EQ(chosen(p, ConvAlgorithm::kAuto), ConvAlgorithm::kDirect) << name;
      EXPECT_EQ(chosen(p, ConvAlgorithm::kWinograd), ConvAlgorithm::kDirect) << name;
      EXPECT_EQ(chosen(problem(12, 3, 1, 3, 3, dtype), ConvAlgorithm::kWinograd), expected) << name;
      for (const bool bf16_weights : {false, true}) {
        p = problem(64, 48, 3, 3, 3, dtype);
        p.bf16_weights = bf16_weights;
        p.implementation = name;
        p.algorithm = ConvAlgorithm::kDirect;
        const size_t direct = FrameConvolution(p, {}).weight_bytes();
        p.algorithm = ConvAlgorithm::kWinograd;
        EXPECT_EQ(9 * FrameConvolution(p, {}).weight_bytes(), (keeps_taps ? 9 : 16) * direct) << name;
      }
    }
  }
  // By name it is what runs wherever there is a kernel for it, also beside faster direct ones.
  for (const DType dtype : kBoth) {
    FrameConvProblem p = problem(96, 96, 3, 3, 3, dtype);
    p.algorithm = ConvAlgorithm::kWinograd;
    EXPECT_EQ(algorithm_of(p), winograd_refusal().empty() ? ConvAlgorithm::kWinograd : ConvAlgorithm::kDirect)
        << dtype_name(dtype);
  }
  if (!cpu_features().amx_bf16) return;
  FrameConvProblem p = problem(96, 96, 3, 3, 3, DType::kBF16);
  p.algorithm = ConvAlgorithm::kWinograd;
  p.implementation = "amx_bf16";
  EXPECT_NE(error_of([&] { algorithm_of(p); }).find("does not compute Winograd's transforms"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
