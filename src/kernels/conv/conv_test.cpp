#include "kernels/conv/conv.h"

#include <gtest/gtest.h>

#include <thread>

#include "kernels/test_util.h"

namespace zoetrope::kernels {
namespace {

using test::error_of;
using test::random_tensor;

Tensor random_f32(const Shape& shape, uint64_t seed, double deviation = 1) {
  return random_tensor(DType::kF32, shape, seed, 0, deviation);
}

struct Parameters {
  Tensor weight, bias;
  Parameters(const ConvProblem& p, uint64_t seed)
      : weight(random_f32({p.out_channels, p.in_channels, p.kernel[0], p.kernel[1], p.kernel[2]}, seed,
                          1 / std::sqrt(static_cast<double>(p.in_channels * p.kernel[0] * p.kernel[1] * p.kernel[2])))),
        bias(random_f32({p.out_channels}, seed + 1)) {}
};

Tensor run(ConvProblem p, const char* name, const Parameters& setup, const Tensor& x, const TensorView& add = {},
           int threads = 2) {
  p.implementation = name;
  const Convolution convolution(p, setup.weight, setup.bias);
  EXPECT_STREQ(convolution.implementation(), name);
  Stream stream(threads);
  Tensor out(DType::kF32, convolution.output_shape(x.shape()));
  convolution.run(stream, x, out, add);
  return out;
}

// A float32 sum of n random products errs by at most u·√n of its size, plus the bias, the addition and the reference's
// own rounding.
double tolerance(const ConvProblem& p) {
  const auto taps = static_cast<double>(p.in_channels * p.kernel[0] * p.kernel[1] * p.kernel[2]);
  return test::kUnitF32 * (4 + std::sqrt(taps));
}

void check(const ConvProblem& p, const Shape& x_shape) {
  const Parameters setup(p, 3);
  const Tensor x = random_f32(x_shape, 5);
  const Tensor expected = run(p, "reference", setup, x);
  for (int threads : {1, 2})
    EXPECT_TRUE(test::close(run(p, "onednn", setup, x, {}, threads), test::values(expected), tolerance(p)))
        << p.in_channels << " -> " << p.out_channels << ", x " << x_shape.to_string();
  const Tensor add = random_f32(expected.shape(), 6);
  const Tensor summed = run(p, "reference", setup, x, add);
  EXPECT_TRUE(test::close(run(p, "onednn", setup, x, add), test::values(summed), tolerance(p)));
}

// The VAE's kinds: causal 3×3×3, 1×1×1, 2-D 3×3, stride 2 with padding behind only, 3×1×1 with and without stride.
const ConvProblem kKinds[] = {
    {0, 0, {3, 3, 3}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}, ""}, {0, 0, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1}, ""},
    {0, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, ""}, {0, 0, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}, ""},
    {0, 0, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, {0, 1, 1}, ""}, {0, 0, {3, 1, 1}, {2, 1, 1}, {0, 0, 0}, {0, 0, 0}, ""},
    {0, 0, {3, 1, 1}, {1, 1, 1}, {2, 0, 0}, {0, 0, 0}, ""},
};

TEST(Convolution, ChannelCountsRoundTheVectorWidths) {
  const int64_t channels[][2] = {{3, 6},   {6, 3},   {3, 12},  {12, 12}, {1, 1},   {7, 8},   {8, 9},  {15, 16},
                                 {16, 17}, {17, 15}, {12, 24}, {32, 3},  {24, 48}, {31, 33}, {96, 3}, {16, 96}};
  for (ConvProblem p : kKinds) {
    for (const auto& [in, out] : channels) {
      p.in_channels = in;
      p.out_channels = out;
      check(p, {5, 6, 7, in});
    }
  }
}

TEST(Convolution, GridsFromOneToOdd) {
  for (ConvProblem p : kKinds) {
    p.in_channels = 12;
    p.out_channels = 20;
    for (const auto& [t, h, w] : {std::array<int64_t, 3>{3, 3, 3}, {4, 4, 9}, {3, 17, 16}, {7, 2, 5}, {3, 8, 33}})
      check(p, {t, h, w, 12});
  }
  ConvProblem p{8, 8, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1}, ""};
  check(p, {1, 1, 1, 8});
}

// A 3×3 box over a 3×3 ramp, by hand.
TEST(Convolution, HandComputed) {
  const ConvProblem p{1, 1, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}, ""};
  Tensor weight(DType::kF32, {1, 1, 3, 3}), bias(DType::kF32, {1}), x(DType::kF32, {1, 3, 3, 1});
  for (int i = 0; i < 9; ++i) weight.data<float>()[i] = 1, x.data<float>()[i] = static_cast<float>(i + 1);
  bias.data<float>()[0] = 0.5f;
  for (const char* name : {"reference", "onednn"}) {
    ConvProblem named = p;
    named.implementation = name;
    const Convolution convolution(named, weight, bias);
    Tensor out(DType::kF32, {1, 3, 3, 1});
    Stream stream(1);
    convolution.run(stream, x, out);
    EXPECT_EQ(test::values(out), (std::vector<double>{12.5, 21.5, 16.5, 27.5, 45.5, 33.5, 24.5, 39.5, 28.5})) << name;
  }
}

// The kernel is a correlation with t outermost, and padding before and after are not confused: one tap, one place.
TEST(Convolution, TapsAndPaddingSitWhereTheyShould) {
  const ConvProblem base{2, 1, {3, 3, 3}, {1, 1, 1}, {2, 1, 0}, {0, 1, 2}, ""};
  for (const char* name : {"reference", "onednn"}) {
    for (int64_t tap = 0; tap < 27; ++tap) {
      ConvProblem p = base;
      p.implementation = name;
      Tensor weight(DType::kF32, {1, 2, 3, 3, 3}), x(DType::kF32, {4, 4, 4, 2});
      weight.data<float>()[27 + tap] = 1;  // reads channel 1
      for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i + 1);
      const Convolution convolution(p, weight, {});
      Tensor out(DType::kF32, {4, 4, 4, 1});
      Stream stream(1);
      convolution.run(stream, x, out);
      const auto inside = [](int64_t i) { return 0 <= i && i < 4; };
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t y = 0; y < 4; ++y)
          for (int64_t z = 0; z < 4; ++z) {
            const int64_t a = t + tap / 9 - 2, b = y + tap / 3 % 3 - 1, c = z + tap % 3;
            const bool in = inside(a) && inside(b) && inside(c);
            const double value = in ? static_cast<double>(((a * 4 + b) * 4 + c) * 2 + 1 + 1) : 0.0;
            ASSERT_EQ(out.data<float>()[(t * 4 + y) * 4 + z], value) << name << " tap " << tap;
          }
    }
  }
}

TEST(Convolution, AddsInPlace) {
  const ConvProblem p{12, 12, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1}, ""};
  const Parameters setup(p, 3);
  const Tensor x = random_f32({2, 5, 5, 12}, 5), residual = random_f32({2, 5, 5, 12}, 6);
  const Tensor expected = run(p, "reference", setup, x, residual);
  for (const char* name : {"reference", "onednn"}) {
    ConvProblem named = p;
    named.implementation = name;
    const Convolution convolution(named, setup.weight, setup.bias);
    Tensor out = random_f32({2, 5, 5, 12}, 6);
    Stream stream(2);
    convolution.run(stream, x, out, out);
    EXPECT_TRUE(test::close(out, test::values(expected), tolerance(p))) << name;
  }
}

// Many shapes through one object, several ranks at once, and the checkpoint's memory gone.
TEST(Convolution, RanksShareAnObject) {
  const ConvProblem p{12, 24, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1}, ""};
  auto setup = std::make_unique<Parameters>(p, 3);
  const Shape shapes[] = {{1, 4, 4, 12}, {2, 5, 3, 12}, {3, 8, 8, 12}, {1, 16, 9, 12}};
  std::vector<Tensor> inputs, outputs;
  for (const Shape& shape : shapes) {
    inputs.push_back(random_f32(shape, 7));
    outputs.push_back(run(p, "reference", *setup, inputs.back()));
  }
  const Convolution convolution(p, setup->weight, setup->bias);
  setup.reset();
  std::vector<int> good(4, 1);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < good.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      Stream stream(rank % 2 == 0 ? 1 : 2);
      for (size_t i = 0; i < 8; ++i) {
        const size_t which = (rank + i) % inputs.size();
        Tensor out(DType::kF32, outputs[which].shape());
        convolution.run(stream, inputs[which], out);
        if (!test::close(out, test::values(outputs[which]), tolerance(p))) good[rank] = 0;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(good, std::vector<int>(4, 1));
}

TEST(Convolution, PerturbedResultFailsTheComparison) {
  const ConvProblem p{6, 6, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}, ""};
  const Parameters setup(p, 3);
  const Tensor x = random_f32({1, 5, 5, 6}, 5);
  const Tensor expected = run(p, "reference", setup, x);
  Tensor actual = run(p, "onednn", setup, x);
  ASSERT_TRUE(test::close(actual, test::values(expected), tolerance(p)));
  actual.data<float>()[17] += 1e-4f;
  EXPECT_FALSE(test::close(actual, test::values(expected), tolerance(p)));
}

TEST(Convolution, Refusals) {
  ConvProblem p{4, 4, {3, 3, 3}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1}, ""};
  const Parameters setup(p, 3);
  const Convolution convolution(p, setup.weight, setup.bias);
  EXPECT_NE(error_of([&] {
              convolution.output_shape({1, 4, 4, 5});
            }).find("[T, H, W, 4] is needed"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              convolution.output_shape({2, 4, 4, 4});
            }).find("shorter than the kernel, 3"),
            std::string::npos);
  Stream stream(1);
  const Tensor x(DType::kF32, {3, 4, 4, 4}), out(DType::kF32, {2, 4, 4, 4});
  EXPECT_EQ(error_of([&] { convolution.run(stream, x, out); }),
            "convolution: out is [2, 4, 4, 4], but [1, 4, 4, 4] is needed");
  p.implementation = "winograd";
  EXPECT_EQ(error_of([&] { Convolution(p, setup.weight, setup.bias); }),
            "convolution: there is no implementation 'winograd'; there are: onednn, reference");
  p.implementation = "";
  p.out_channels = 5;
  EXPECT_NE(error_of([&] { Convolution(p, setup.weight, setup.bias); }).find("weight is"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
