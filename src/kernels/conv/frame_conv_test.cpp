#include "kernels/conv/frame_conv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/test_folder.h"
#include "kernels/conv/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace test;  // NOLINT: all of it is for these tests

TEST(FrameConvolution, ChannelsRoundTheVectors) {
  for (const DType dtype : kBoth) {
    for (const int64_t in : {1, 2, 3, 7, 16, 31, 32}) {
      for (const int64_t out : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 64, 96, 97})
        check(Case(problem(in, out, 1, 3, 3, dtype), 3, 9, 1), {Residual::kNone, true, true, true});
    }
  }
}

TEST(FrameConvolution, PixelsRoundTheTilesBandsAndStrips) {
  for (const DType dtype : kBoth) {
    for (const auto& [h, w] :
         {std::array<int64_t, 2>{1, 1}, {1, 3}, {2, 4}, {7, 5}, {8, 7}, {9, 8}, {17, 9}, {3, 17}, {1, 31}})
      check(Case(problem(6, 20, 3, 3, 3, dtype), h, w, 3), {Residual::kElsewhere, true, false, false});
    check(Case(problem(160, 8, 1, 1, 3, dtype), 9, 150, 1), {});  // two strips and more
    for (const int64_t w : {150, 151})                            // also of Winograd's tiles
      check(Case(problem(384, 20, 3, 3, 3, dtype), 3, w, 3), {Residual::kInPlace, true, true, true});
  }
}

// The VAE's kinds: 3×3×3 with missing history, 3×1×1, 2×2 of a cell, 1×1, stride 2.
TEST(FrameConvolution, KindsOfKernels) {
  for (const DType dtype : kBoth) {
    for (const int64_t present : {1, 2, 3}) {
      check(Case(problem(12, 24, 3, 3, 3, dtype), 5, 11, present), {Residual::kInPlace, true, true, true});
      check(Case(problem(12, 24, 3, 1, 1, dtype), 5, 11, present), {});
    }
    for (const int64_t origin : {0, 1, 2}) {
      FrameConvProblem cell = problem(10, 6, 1, 2, 2, dtype);
      cell.origin = {origin, 2 - origin};
      check(Case(cell, 6, 10, 1), {Residual::kNone, false, true, true});
      FrameConvProblem half = problem(10, 10, 1, 3, 3, dtype);
      half.origin = {origin, origin};
      half.stride = 2;
      check(Case(half, 5, 13, 1), {Residual::kNone, true, true, false});
    }
  }
}

// Channels that AMX reads without a copy, with rows that end within a tile, bands that end between two rows of
// one, and strips narrower than a tile.
TEST(FrameConvolution, WholeUnitsOfChannels) {
  const DType half = DType::kBF16;
  for (const auto& [h, w] : {std::array<int64_t, 2>{1, 15}, {2, 16}, {3, 17}, {9, 33}, {17, 40}}) {
    check(Case(problem(32, 33, 3, 3, 3, half), h, w, 3), {Residual::kInPlace, true, true, true});
    check(Case(problem(64, 48, 3, 1, 1, half), h, w, 2), {});
    check(Case(problem(96, 16, 1, 1, 1, half), h, w, 1), {Residual::kElsewhere, true, false, false});
    FrameConvProblem cell = problem(32, 64, 1, 2, 2, half);
    cell.origin = {1, 0};
    check(Case(cell, h, w, 1), {Residual::kNone, true, true, true});
    FrameConvProblem reduced = problem(32, 20, 1, 3, 3, half);
    reduced.stride = 2;
    check(Case(reduced, h, w, 1), {Residual::kNone, true, true, false});
  }
  check(Case(problem(384, 64, 1, 3, 3, half), 2, 72, 1), {Residual::kInPlace, true, true, true});
  check(Case(problem(384, 40, 3, 3, 3, half), 5, 42, 3), {Residual::kInPlace, true, true, true});  // frame by frame
  check(Case(problem(384, 40, 3, 3, 3, half), 3, 23, 2), {Residual::kInPlace, true, true, true});
}

// Weights of all frames do not fit into one pass: sums go through memory between frames.
TEST(FrameConvolution, DeepChannelsSumFrameByFrame) {
  for (const DType dtype : kBoth) {
    check(Case(problem(384, 50, 3, 3, 3, dtype), 2, 9, 3), {Residual::kNone, true, true, true});
    check(Case(problem(384, 50, 3, 3, 3, dtype), 2, 9, 2), {});
  }
}

TEST(FrameConvolution, ThreeOutputsHaveTilesOfTheirOwn) {
  for (const DType dtype : kBoth) {
    check(Case(problem(96, 3, 3, 3, 3, dtype), 9, 21, 3), {Residual::kElsewhere, true, true, true});
    check(Case(problem(96, 3, 3, 3, 3, dtype), 2, 5, 1), {});
    check(Case(problem(400, 3, 3, 3, 3, dtype), 1, 3, 2), {});  // not in one pass
  }
}

// The same pixel, alone or among others, at any place in the tiles: the same bits. Ranks that split the rows rely on
// it.
TEST(FrameConvolution, APixelDoesNotDependOnItsNeighbours) {
  for (const DType dtype : kBoth) {
    for (const int64_t out : {3, 40}) {
      const Case s(problem(32, out, 3, 3, 3, dtype), 11, 20, 3);
      for (const std::string& name : implementations(dtype)) {
        const Result whole = run(s, name, {Residual::kNone, true, true, true}, 2);
        FrameConvProblem p = s.problem;
        p.implementation = name;
        const FrameConvolution convolution(p, s.weight, s.bias);
        for (const auto& [top, left, h, w] : {std::array<int64_t, 4>{1, 0, 3, 20}, {4, 5, 1, 1}, {9, 7, 2, 10}}) {
          std::vector<TensorView> inputs;
          for (const Tensor& x : s.inputs)
            inputs.push_back(x.view().slice(0, top, top + h + 2).slice(1, left, left + w + 2));
          Tensor raw(dtype, {h, w, out}), normed(dtype, {h, w, out});
          FrameConvOutput part;
          part.raw = raw;
          part.normed = normed;
          part.gamma = s.gamma;
          part.silu = true;
          Stream stream(1);
          convolution.run(stream, inputs, part);
          EXPECT_EQ(test::values(raw), test::values(whole.raw.view().slice(0, top, top + h).slice(1, left, left + w)));
          EXPECT_EQ(test::values(normed),
                    test::values(whole.normed.view().slice(0, top, top + h).slice(1, left, left + w)));
        }
      }
    }
  }
}

// Weights that bf16 holds take two bytes and lose nothing: results are those of four bytes to the last bit.
TEST(FrameConvolution, WeightsTakeTwoBytesWhereNothingIsLost) {
  for (const int64_t out : {3, 40}) {
    Case s(problem(64, out, 3, 3, 3, DType::kBF16), 9, 20, 3);
    for (const std::string& name : implementations(DType::kBF16)) {
      SCOPED_TRACE(name);
      FrameConvProblem p = s.problem;
      p.implementation = name;
      const size_t wide = FrameConvolution(p, s.bias).weight_bytes();
      const Result expected = run(s, name, {}, 2);
      p.bf16_weights = true;
      const size_t narrow = FrameConvolution(p, s.bias).weight_bytes();
      EXPECT_EQ(wide, name == "avx512_bf16" || name == "amx_bf16" ? narrow : 2 * narrow);
      s.problem.bf16_weights = true;
      EXPECT_EQ(test::values(run(s, name, {}, 2).raw), test::values(expected.raw));
      s.problem.bf16_weights = false;
    }
  }
}

// Packed in parts, in any order and over whatever was in memory before, weights are those packed as a whole.
TEST(FrameConvolution, PartsOfTheWeightsMakeTheWhole) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto algorithm : {ConvAlgorithm::kDirect, ConvAlgorithm::kWinograd}) {
      for (const int64_t out : {3, 100, 160}) {
        Case s(problem(34, out, 2, 3, 3, dtype), 4, 6, 2);
        s.problem.algorithm = algorithm;
        s.problem.bf16_weights = dtype == DType::kBF16;
        std::vector<std::string> names = implementations(s.problem);
        names.emplace_back("reference");
        for (const std::string& name : names) {
          if (algorithm == ConvAlgorithm::kWinograd && !has_winograd(s.problem, name)) continue;
          SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype) << " " << out);
          s.problem.implementation = name;
          FrameConvolution convolution(s.problem, s.bias);
          const auto packed = [&](uint8_t before, bool in_parts) {
            const Tensor memory(DType::kU8, {static_cast<int64_t>(convolution.weight_bytes())});
            auto* to = memory.data<std::byte>();
            std::memset(to, before, convolution.weight_bytes());
            const int64_t step = in_parts ? convolution.weight_step() : out;
            for (int64_t first = (out - 1) / step * step; first >= 0; first -= step)
              convolution.pack(s.weight.view().slice(0, first, std::min(first + step, out)), first, to);
            return std::vector<std::byte>(to, to + convolution.weight_bytes());
          };
          EXPECT_EQ(packed(0, false), packed(0xFF, true));
        }
      }
    }
  }
}

TEST(FrameConvolution, RanksShareAnObject) {
  for (const DType dtype : kBoth) {
    const Case s(problem(12, 24, 3, 3, 3, dtype), 6, 9, 3);
    FrameConvProblem p = s.problem;
    p.implementation = implementations(DType::kF32).back();
    const Result expected = run(s, p.implementation, {}, 1);
    const FrameConvolution convolution(p, s.weight, s.bias);
    std::vector<int> good(4, 0);
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < good.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        Stream stream(rank % 2 == 0 ? 1 : 2);
        std::vector<TensorView> inputs(s.inputs.begin(), s.inputs.end());
        Tensor raw(dtype, {6, 9, 24});
        FrameConvOutput out;
        out.raw = raw;
        for (int i = 0; i < 8; ++i) convolution.run(stream, inputs, out);
        good[rank] = test::values(raw) == test::values(expected.raw);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(good, std::vector<int>(4, 1));
  }
}

TEST(FrameConvolution, SpecialValues) {
  // Zeros have no length to be divided by; large negative values end in −0, large ones in themselves; NaN stays NaN.
  for (const DType dtype : kBoth) {
    FrameConvProblem p = problem(1, 1, 1, 1, 1, dtype);
    const float special[] = {0.0f, -1e15f, 1e15f, NAN};
    Tensor weight(DType::kF32, {1, 1, 1, 1, 1}), gamma(DType::kF32, {1}), x(dtype, {1, 4, 1});
    weight.data<float>()[0] = 1;
    gamma.data<float>()[0] = 200;
    for (int64_t i = 0; i < 4; ++i) test::put(x, i, special[i]);
    for (const std::string& name : implementations(dtype)) {
      if (name == "avx512_bf16") continue;  // pairs need two channels
      p.implementation = name;
      Tensor normed(dtype, {1, 4, 1});
      FrameConvOutput out;
      out.normed = normed;
      out.gamma = gamma;
      out.silu = true;
      Stream stream(1);
      const TensorView inputs[] = {x};
      FrameConvolution(p, weight, {}).run(stream, inputs, out);
      EXPECT_EQ(test::get(normed, 0), 0.0);
      EXPECT_NEAR(test::get(normed, 1), 0.0, 1e-30);
      EXPECT_EQ(test::get(normed, 2), 200.0);
      EXPECT_TRUE(std::isnan(test::get(normed, 3)));
    }
  }
}

// A channel that is NaN makes its pixel's length NaN and with it all of the pixel, as in the reference; no other pixel.
TEST(FrameConvolution, ANanChannelMakesItsPixelNan) {
  constexpr int64_t kPixel = 4;
  for (const DType dtype : kBoth) {
    for (const int64_t out : {3, 20, 32}) {
      Case s(problem(16, out, 1, 1, 1, dtype), 2, 5, 1);
      std::vector<std::string> names = implementations(s.problem);
      names.emplace_back("reference");
      for (const std::string& name : names) {
        for (const int64_t channel : {int64_t{0}, out - 1}) {
          SCOPED_TRACE(testing::Message()
                       << name << " " << dtype_name(dtype) << ", channel " << channel << " of " << out);
          const int64_t at = kPixel * out + channel;
          const double before = test::get(s.residual, at);
          const Epilogue e{Residual::kElsewhere, true, true, true};
          const auto good_raw = test::values(run(s, name, e, 1).raw),
                     good_normed = test::values(run(s, name, e, 1).normed);
          test::put(s.residual, at, NAN);
          const Result result = run(s, name, e, 1);
          test::put(s.residual, at, before);
          const std::vector<double> raw = test::values(result.raw), normed = test::values(result.normed);
          for (int64_t i = 0; i < 10 * out; ++i) {
            const auto index = static_cast<size_t>(i);
            if (i == at) EXPECT_TRUE(std::isnan(raw[index]));
            else EXPECT_EQ(raw[index], good_raw[index]) << i;
            if (i / out == kPixel) EXPECT_TRUE(std::isnan(normed[index])) << i;
            else EXPECT_EQ(normed[index], good_normed[index]) << i;
          }
        }
      }
    }
  }
}

TEST(FrameConvolution, PerturbedResultFailsTheComparison) {
  const Case s(problem(6, 6, 3, 3, 3, DType::kF32), 5, 5, 3);
  const Result expected = run(s, "reference", {}, 1), actual = run(s, "avx2", {}, 1);
  ASSERT_TRUE(test::close(actual.raw, test::values(expected.raw), tolerance(s.problem)));
  actual.raw.view().data<float>()[9] += 1e-4f;
  EXPECT_FALSE(test::close(actual.raw, test::values(expected.raw), tolerance(s.problem)));
}

TEST(FrameConvolution, Refusals) {
  const Case s(problem(4, 4, 3, 3, 3, DType::kF32), 2, 2, 3);
  const FrameConvolution convolution(s.problem, s.weight, s.bias);
  Stream stream(1);
  Tensor raw(DType::kF32, {2, 2, 4}), large(DType::kF32, {9, 9, 4}), half(DType::kBF16, {2, 2, 4});
  std::vector<TensorView> inputs(s.inputs.begin(), s.inputs.end());
  FrameConvOutput out;
  EXPECT_NE(error_of([&] { convolution.run(stream, inputs, out); }).find("must be [H, W, 4]"), std::string::npos);
  out.raw = large;
  EXPECT_NE(error_of([&] { convolution.run(stream, inputs, out); }).find("input 0 must be F32 [≥ 11, ≥ 11, 4]"),
            std::string::npos);
  out.raw = half;
  EXPECT_NE(error_of([&] { convolution.run(stream, inputs, out); }).find("outputs must be F32"), std::string::npos);
  out.raw = raw;
  inputs[1] = {};
  EXPECT_NE(error_of([&] { convolution.run(stream, inputs, out); }).find("input 1"), std::string::npos);
  inputs[2] = {};
  EXPECT_NE(error_of([&] { convolution.run(stream, inputs, out); }).find("3 input frames"), std::string::npos);
  FrameConvProblem p = s.problem;
  p.implementation = "winograd";
  EXPECT_EQ(error_of([&] { FrameConvolution(p, s.weight, s.bias); }),
            "frame convolution: there is no implementation 'winograd'; there are: amx_bf16, avx512_bf16, avx512, "
            "avx2, reference");
  p.implementation = "";
  p.out_channels = 5;
  EXPECT_NE(error_of([&] { FrameConvolution(p, s.weight, {}); }).find("weight is"), std::string::npos);
  EXPECT_NE(error_of([&] { FrameConvolution(p, s.bias); }).find("bias"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
