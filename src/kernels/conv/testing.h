// What the tests of convolutions share: one of random numbers with everything around it, run and compared.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/conv/frame_conv.h"
#include "kernels/cpu_features.h"
#include "kernels/testing.h"

namespace zoetrope::kernels::test {

inline constexpr DType kBoth[] = {DType::kF32, DType::kBF16};

inline std::vector<std::string> implementations(DType dtype) {
  std::vector<std::string> names = {"avx2"};
  if (cpu_features().avx512) names.emplace_back("avx512");
  if (cpu_features().amx_bf16 && dtype == DType::kBF16) names.emplace_back("amx_bf16");
  if (cpu_features().avx512_bf16 && dtype == DType::kBF16) names.emplace_back("avx512_bf16");
  return names;
}
// And those that do some problems only.
inline std::vector<std::string> implementations(const FrameConvProblem& p) {
  std::vector<std::string> names = implementations(p.dtype);
  if (p.in_channels % 2 != 0 && names.back() == "avx512_bf16") names.pop_back();
  return names;
}

// Whether an implementation has Winograd's transforms for a problem.
inline bool has_winograd(FrameConvProblem p, const std::string& name) {
  if (name == "amx_bf16") return false;
  p.algorithm = ConvAlgorithm::kWinograd;
  p.implementation = name;
  return algorithm_of(p) == ConvAlgorithm::kWinograd;
}

enum class Residual : uint8_t { kNone, kElsewhere, kInPlace };
struct Epilogue {
  Residual residual = Residual::kNone;
  bool raw = true;
  bool normed = false;
  bool silu = false;
};

// A convolution of random numbers with everything around it.
struct Case {
  FrameConvProblem problem;
  int64_t height, width;
  Tensor weight, bias, gamma, residual;
  std::vector<Tensor> inputs;
  int64_t first_row = 0;

  Case(const FrameConvProblem& p, int64_t rows, int64_t columns, int64_t present)
      : problem(p), height(rows), width(columns) {
    const auto taps = static_cast<double>(p.in_channels * p.frames * p.kernel[0] * p.kernel[1]);
    const Shape shape{p.out_channels, p.in_channels, p.frames, p.kernel[0], p.kernel[1]};
    weight = random_tensor(DType::kF32, shape, 1, 0, 1 / std::sqrt(taps));
    if (p.dtype == DType::kBF16) {
      for (int64_t i = 0; i < weight.size(); ++i)
        weight.data<float>()[i] = to_float(to_bfloat16(weight.data<float>()[i]));
    }
    bias = random_tensor(DType::kF32, {p.out_channels}, 2);
    gamma = random_tensor(DType::kF32, {p.out_channels}, 3, 1, 0.2);
    residual = random_tensor(p.dtype, {rows, columns, p.out_channels}, 4);
    const int64_t h = p.origin[0] + (rows - 1) * p.stride + p.kernel[0] + 1;
    const int64_t w = p.origin[1] + (columns - 1) * p.stride + p.kernel[1] + 2;
    for (int64_t t = 0; t < p.frames; ++t) {
      inputs.emplace_back();
      if (t >= p.frames - present)
        inputs.back() = random_tensor(p.dtype, {h, w, p.in_channels}, 5 + static_cast<uint64_t>(t));
    }
  }
};

struct Result {
  GappedTensor raw, normed;
  Result(const Case& s)
      : raw(s.problem.dtype, {s.height, s.width, s.problem.out_channels}, 3),
        normed(s.problem.dtype, {s.height, s.width, s.problem.out_channels}, 5) {}
};

inline Result run(const Case& s, const std::string& name, const Epilogue& e, int threads) {
  FrameConvProblem p = s.problem;
  p.implementation = name;
  const FrameConvolution convolution(p, s.weight, s.bias);
  EXPECT_EQ(convolution.implementation(), name);
  Result result(s);
  FrameConvOutput out;
  out.first_row = s.first_row;
  if (e.raw) out.raw = result.raw;
  if (e.residual == Residual::kElsewhere) out.add = s.residual;
  if (e.residual == Residual::kInPlace) {
    for_each_element(s.residual, [&](int64_t index, int64_t offset) {
      const int64_t channels = p.out_channels;
      put(result.raw, index / channels * result.raw.view().stride(1) + index % channels, get(s.residual, offset));
    });
    out.add = result.raw;
  }
  if (e.normed) {
    out.normed = result.normed;
    out.gamma = s.gamma;
    out.silu = e.silu;
  }
  std::vector<TensorView> inputs(s.inputs.begin(), s.inputs.end());
  Stream stream(threads);
  convolution.run(stream, inputs, out);
  EXPECT_TRUE(result.raw.gaps_intact() && result.normed.gaps_intact());
  return result;
}

// Sums in float32 of n random products err by at most u·√n of their size, plus bias, addition and rounding; where the
// reference rounds to bf16 as well, a value between two may go to either: one unit of each.
inline double sum_tolerance(const FrameConvProblem& p) {
  const auto terms = static_cast<double>(p.in_channels * p.frames),
             taps = static_cast<double>(p.kernel[0] * p.kernel[1]);
  if (p.algorithm != ConvAlgorithm::kWinograd) return kUnitF32 * (8 + std::sqrt(terms * taps));
  // The three products that an output adds up along an axis have 5/3 of its variance: 2·1, 2·3/4 and 2·3/4 instead of
  // 3, of inputs and taps that are random. So the error of what is multiplied grows by 5/3 along two axes: two
  // roundings in bf16; in float32 of the sums at a point, and twice two of the transforms.
  constexpr double kGrowth = 5.0 / 3;
  const double rounded = p.dtype == DType::kBF16 ? std::sqrt(2.0) * kUnitBF16 : 0;
  return kGrowth * (rounded + kUnitF32 * (12 + std::sqrt(terms)));
}
inline double tolerance(const FrameConvProblem& p) {
  return sum_tolerance(p) + (p.dtype == DType::kBF16 ? 2 * kUnitBF16 : 0);
}

// The norm makes every pixel as long as the others, and with it the error of its sums: by how much at most.
inline double amplification(const TensorView& raw) {
  const std::vector<double> sums = values(raw);
  const auto channels = static_cast<size_t>(raw.extent(2));
  double all = 0, least = INFINITY;
  for (size_t at = 0; at < sums.size(); at += channels) {
    double squares = 0;
    for (size_t o = 0; o < channels; ++o) squares += sums[at + o] * sums[at + o];
    all += squares;
    least = std::min(least, squares);
  }
  return std::sqrt(all / static_cast<double>(sums.size() / channels) / least);
}

inline void check(const Case& s, const Epilogue& e, const Result& expected) {
  const double normed_tolerance = tolerance(s.problem) + sum_tolerance(s.problem) * amplification(expected.raw.view());
  for (const std::string& name : implementations(s.problem)) {
    const bool winograd = s.problem.algorithm == ConvAlgorithm::kWinograd;
    if (winograd && !has_winograd(s.problem, name)) continue;
    SCOPED_TRACE(testing::Message() << (winograd ? "Winograd " : "") << name << " " << dtype_name(s.problem.dtype)
                                    << " " << s.problem.in_channels << " -> " << s.problem.out_channels << ", "
                                    << s.height << "x" << s.width << ", kernel " << s.problem.frames << "x"
                                    << s.problem.kernel[0] << "x" << s.problem.kernel[1]);
    const Result one = run(s, name, e, 1), two = run(s, name, e, 2);
    if (e.raw) {
      EXPECT_TRUE(close(one.raw, values(expected.raw), tolerance(s.problem)));
    }
    if (e.normed) {
      EXPECT_TRUE(close(one.normed, values(expected.normed), normed_tolerance));
    }
    EXPECT_EQ(values(one.raw), values(two.raw));
    EXPECT_EQ(values(one.normed), values(two.normed));
  }
}

// Directly and, where the kernel is 3×3, by Winograd with tiles that begin with the first row and above it.
inline void check(Case s, const Epilogue& e) {
  Epilogue with_raw = e;
  with_raw.raw = true;
  const Result expected = run(s, "reference", with_raw, 1);
  check(s, e, expected);
  s.problem.algorithm = ConvAlgorithm::kWinograd;
  for (s.first_row = 0; s.first_row < 2; ++s.first_row) check(s, e, expected);
}

inline FrameConvProblem problem(int64_t in, int64_t out, int64_t frames, int64_t rows, int64_t columns, DType dtype) {
  FrameConvProblem p;
  p.in_channels = in;
  p.out_channels = out;
  p.frames = frames;
  p.kernel = {rows, columns};
  p.dtype = dtype;
  p.algorithm = ConvAlgorithm::kDirect;
  return p;
}

}  // namespace zoetrope::kernels::test
