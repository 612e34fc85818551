#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "kernels/rope/rope.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::close;
using test::GappedTensor;
using test::random_tensor;
using test::values;

const char* const kNames[] = {"reference", "avx2"};
const DType kDtypes[] = {DType::kF32, DType::kBF16};

// A value goes through at most eight float32 roundings (centre, scale, weight, bias, modulation, rotation) whose
// errors add as √8 u; statistics add one u each. A bf16 result is rounded once more.
double tolerance(DType out) { return 5 * test::kUnitF32 + (out == DType::kBF16 ? test::kUnitBF16 : 0); }

// ---- layer_norm -----------------------------------------------------------------------------------------------------

struct LayerNormParts {
  bool affine = true;
  bool modulate = true;
};

struct LayerNormData {
  GappedTensor x, out;
  Tensor weight, bias;
  GappedTensor scale, shift;
  LayerNormData(int64_t b, int64_t s, int64_t d, DType in, DType to, int64_t modulated)
      : x(in, {b, s, d}, 3),
        out(to, {b, s, d}, 2),
        weight(random_tensor(DType::kF32, {d}, 2, 1, 0.2)),
        bias(random_tensor(DType::kF32, {d}, 3)),
        scale(DType::kF32, {b, modulated, d}, 1),
        shift(DType::kF32, {b, modulated, d}, 4) {
    test::fill_random(x, 1, 0.5, 2);
    test::fill_random(scale, 4, 0, 0.3);
    test::fill_random(shift, 5);
  }

  // The definition once more, in the textbook form E[x²] − E[x]², which double can afford.
  std::vector<double> expected(const LayerNormParts& parts) const {
    const int64_t s = x.view().extent(1), d = x.view().extent(2), per = scale.view().extent(1);
    const std::vector<double> xs = values(x), ws = values(weight), bs = values(bias);
    const std::vector<double> scales = values(scale), shifts = values(shift);
    std::vector<double> result;
    for (int64_t row = 0; row < x.view().extent(0) * s; ++row) {
      double sum = 0, square = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double value = xs[static_cast<size_t>(row * d + i)];
        sum += value;
        square += value * value;
      }
      const double mean = sum / static_cast<double>(d), variance = square / static_cast<double>(d) - mean * mean;
      for (int64_t i = 0; i < d; ++i) {
        double y = (xs[static_cast<size_t>(row * d + i)] - mean) / std::sqrt(variance + static_cast<double>(1e-6f));
        if (parts.affine) y = y * ws[static_cast<size_t>(i)] + bs[static_cast<size_t>(i)];
        const auto at = static_cast<size_t>((row / s * per + (per == 1 ? 0 : row % s)) * d + i);
        if (parts.modulate) y = y * (1 + scales[at]) + shifts[at];
        result.push_back(y);
      }
    }
    return result;
  }

  LayerNorm args(const LayerNormParts& parts, const char* name) const {
    LayerNorm a;
    a.x = x;
    if (parts.affine) a.weight = weight, a.bias = bias;
    if (parts.modulate) a.scale = scale, a.shift = shift;
    a.out = out;
    a.implementation = name;
    return a;
  }
};

TEST(LayerNorm, WidthsOptionsAndDtypes) {
  for (int64_t d : {2, 7, 8, 9, 31, 32, 33, 255, 256, 257, 300}) {
    for (DType in : kDtypes) {
      for (DType to : kDtypes) {
        for (int64_t per : {1, 3}) {
          const LayerNormData data(2, 3, d, in, to, per);
          for (const bool affine : {false, true}) {
            for (const bool modulate : {false, true}) {
              const LayerNormParts parts{.affine = affine, .modulate = modulate};
              const std::vector<double> expected = data.expected(parts);
              for (const char* name : kNames) {
                Stream stream(2);
                layer_norm(stream, data.args(parts, name));
                EXPECT_TRUE(close(data.out, expected, tolerance(to))) << name << " d=" << d;
                EXPECT_TRUE(data.out.gaps_intact());
              }
            }
          }
        }
      }
    }
  }
}

// The same values as a BF16 out, kept as floats.
TEST(LayerNorm, RoundsToBFloat16InFloat32) {
  for (const int64_t d : {7, 8, 33, 300}) {
    const LayerNormData narrow(2, 3, d, DType::kBF16, DType::kBF16, 1), wide(2, 3, d, DType::kBF16, DType::kF32, 1);
    for (const char* name : kNames) {
      Stream stream(1);
      LayerNorm a = wide.args({}, name);
      a.round_to_bf16 = true;
      layer_norm(stream, a);
      layer_norm(stream, narrow.args({}, name));
      EXPECT_EQ(values(wide.out), values(narrow.out)) << name << " d=" << d;
      EXPECT_TRUE(wide.out.gaps_intact());
    }
  }
}

// Rows of a model's width on several threads; a mean a hundred times the deviation costs the centring what float32
// costs it (mean/deviation · u), no more: the one-pass form E[x²] − E[x]² in float32 would lose everything.
TEST(LayerNorm, LongRowsFarFromZero) {
  LayerNormData data(1, 40, 5120, DType::kF32, DType::kF32, 1);
  for (const double mean : {0.0, 100.0}) {
    test::fill_random(data.x, 8, mean, 1);
    const std::vector<double> expected = data.expected({.affine = false});
    for (const int threads : {1, 2}) {
      Stream stream(threads);
      layer_norm(stream, data.args({.affine = false}, "avx2"));
      EXPECT_TRUE(close(data.out, expected, (5 + mean) * test::kUnitF32));
    }
  }
}

TEST(LayerNorm, HandComputed) {
  float x[] = {1, 3, 5, 7}, out[4];  // mean 4, variance 5
  for (const char* name : kNames) {
    LayerNorm a;
    a.x = {x, DType::kF32, {1, 1, 4}};
    a.out = {out, DType::kF32, {1, 1, 4}};
    a.eps = 0;
    a.implementation = name;
    Stream stream(1);
    layer_norm(stream, a);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(out[i], (2 * i - 3) / std::sqrt(5.0), 2e-7);
  }
}

TEST(LayerNorm, PerturbedResultFailsAndRefusals) {
  const LayerNormData data(2, 3, 33, DType::kF32, DType::kF32, 1);
  Stream stream(1);
  LayerNorm a = data.args({}, "");
  layer_norm(stream, a);
  ASSERT_TRUE(close(data.out, data.expected({}), tolerance(DType::kF32)));
  data.out.view().data<float>()[5] += 1e-4f;
  EXPECT_FALSE(close(data.out, data.expected({}), tolerance(DType::kF32)));
  a.shift = {};
  EXPECT_EQ(error_of([&] { layer_norm(stream, a); }), "layer_norm: scale and shift must come together");
  a = data.args({}, "avx9");
  EXPECT_EQ(error_of([&] { layer_norm(stream, a); }),
            "layer_norm: there is no implementation 'avx9'; there are: avx2, reference");
  a = data.args({}, "");
  a.scale = data.weight;
  EXPECT_NE(error_of([&] { layer_norm(stream, a); }).find("[B, 1, d] or [B, S, d]"), std::string::npos);
  a = data.args({}, "");
  a.x = data.x.view().permute({0, 2, 1});
  a.out = data.out.view().permute({0, 2, 1});
  EXPECT_NE(error_of([&] { layer_norm(stream, a); }).find("contiguous"), std::string::npos);
}

// ---- rms_norm_rope --------------------------------------------------------------------------------------------------

// x as the fused projection leaves it: [B, S, 3, H, D] with q, k, v side by side; here k.
struct RopeNormSteps {
  bool norm = true;
  bool rotate = true;
};

struct RopeNormData {
  Tensor fused, weight;
  RopeTable table;
  TensorView x;
  RopeNormData(int64_t b, int64_t s, int64_t h, int64_t d, DType dtype, DType weight_dtype)
      : fused(random_tensor(dtype, {b, s, 3, h, d}, 1, 0.1, 2)),
        weight(random_tensor(weight_dtype, {h * d}, 2, 1, 0.3)),
        table(make_rope_table(d, s, 1, 1, {0, s})),
        x(fused.view().select(2, 1)) {}

  std::vector<double> expected(const RopeNormSteps& steps) const {
    const int64_t s = x.extent(1), h = x.extent(2), d = x.extent(3);
    std::vector<double> y = values(x);
    const std::vector<double> ws = values(weight), cos = values(table.cos), sin = values(table.sin);
    for (int64_t row = 0; row < x.extent(0) * s; ++row) {
      const auto first = static_cast<size_t>(row * h * d);
      double square = 0;
      for (size_t i = 0; i < static_cast<size_t>(h * d); ++i) square += y[first + i] * y[first + i];
      const double inverse = 1 / std::sqrt(square / static_cast<double>(h * d) + static_cast<double>(1e-6f));
      if (steps.norm)
        for (size_t i = 0; i < static_cast<size_t>(h * d); ++i) y[first + i] *= inverse * ws[i];
      if (!steps.rotate) continue;
      for (size_t i = 0; i < static_cast<size_t>(h * d); i += 2) {
        const auto at = static_cast<size_t>(row % s * (d / 2)) + i % static_cast<size_t>(d) / 2;
        const double a = y[first + i], b = y[first + i + 1];
        y[first + i] = a * cos[at] - b * sin[at];
        y[first + i + 1] = a * sin[at] + b * cos[at];
      }
    }
    return y;
  }
  RmsNormRope args(const RopeNormSteps& steps, std::span<const HeadSlot> slots, const char* name) const {
    RmsNormRope a;
    a.x = x;
    if (steps.norm) a.weight = weight;
    if (steps.rotate) a.cos = table.cos, a.sin = table.sin;
    a.slots = slots;
    a.implementation = name;
    return a;
  }
};

TEST(RmsNormRope, WidthsOptionsAndDtypes) {
  for (int64_t d : {2, 4, 6, 8, 10, 12, 16, 30, 64, 128}) {
    for (int64_t h : {1, 3}) {
      for (DType dtype : kDtypes) {
        for (DType weight_dtype : kDtypes) {
          const RopeNormData data(2, 5, h, d, dtype, weight_dtype);
          for (const RopeNormSteps& steps :
               {RopeNormSteps{}, {.rotate = false}, {.norm = false}, {.norm = false, .rotate = false}}) {
            for (const char* name : kNames) {
              const GappedTensor out(dtype, {2, 5, h, d}, 3);
              const HeadSlot slots[] = {{{0, h}, out}};
              Stream stream(2);
              rms_norm_rope(stream, data.args(steps, slots, name));
              const double bound = steps.norm || steps.rotate ? tolerance(dtype) : 0;
              EXPECT_TRUE(close(out, data.expected(steps), bound)) << name << " h=" << h << " d=" << d;
              EXPECT_TRUE(out.gaps_intact());
            }
          }
        }
      }
    }
  }
}

// Rows are independent of each other, so the bits are those of one thread whatever the team.
TEST(RmsNormRope, BitsDoNotDependOnThreads) {
  for (DType dtype : kDtypes) {
    const RopeNormData data(2, 101, 3, 128, dtype, DType::kF32);
    std::vector<double> one;
    for (const int threads : {1, 2, 3, 5}) {
      const Tensor out(dtype, {2, 101, 3, 128});
      const HeadSlot slots[] = {{{0, 3}, out}};
      Stream stream(threads);
      rms_norm_rope(stream, data.args({}, slots, "avx2"));
      if (threads == 1) one = values(out);
      else EXPECT_EQ(values(out), one) << threads;
    }
    EXPECT_TRUE(close(one, data.expected({}), tolerance(dtype)));
  }
}

// The send buffer of an exchange: each peer's heads lie together, token by token, peers in any order, sizes uneven.
TEST(RmsNormRope, SlotsOfAnExchange) {
  constexpr int64_t kBatch = 2, kTokens = 7, kHeads = 7, kDim = 12;
  const RopeNormData data(kBatch, kTokens, kHeads, kDim, DType::kF32, DType::kF32);
  const std::vector<double> expected = data.expected({});
  const IndexRange ranges[] = {{5, 7}, {0, 3}, {3, 3}, {3, 5}};
  for (const char* name : kNames) {
    Tensor buffer(DType::kF32, {kBatch * kTokens * kHeads * kDim + 64});
    test::fill_random(buffer, 1, -77, 0);
    std::vector<HeadSlot> slots;
    int64_t offset = 16;
    for (const IndexRange heads : ranges) {
      // [S, B, heads, D]: the batch sits inside the token, as an exchange that folds it into heads has it.
      const int64_t run = heads.size() * kDim;
      slots.push_back({heads, TensorView(buffer.data<float>() + offset, DType::kF32,
                                         {kBatch, kTokens, heads.size(), kDim}, {run, kBatch * run, kDim, 1})});
      offset += kBatch * kTokens * run;
    }
    Stream stream(2);
    rms_norm_rope(stream, data.args({}, slots, name));
    for (const HeadSlot& slot : slots) {
      std::vector<double> part;
      for (int64_t row = 0; row < kBatch * kTokens; ++row)
        for (int64_t i = slot.heads.begin * kDim; i < slot.heads.end * kDim; ++i)
          part.push_back(expected[static_cast<size_t>(row * kHeads * kDim + i)]);
      EXPECT_TRUE(close(slot.out, part, tolerance(DType::kF32))) << name;
    }
    for (int64_t i : {0, 15}) EXPECT_EQ(buffer.data<float>()[i], -77);
    EXPECT_EQ(buffer.data<float>()[offset], -77);
    EXPECT_EQ(stream.copied_bytes(), 0);
  }
}

TEST(RmsNormRope, OnlyAScatterCountsAsCopied) {
  const RopeNormData data(1, 4, 2, 6, DType::kBF16, DType::kF32);
  const Tensor out(DType::kBF16, {1, 4, 2, 6});
  const HeadSlot slots[] = {{{0, 2}, out}};
  Stream stream(1);
  rms_norm_rope(stream, data.args({}, slots, ""));
  EXPECT_EQ(stream.copied_bytes(), 0);
  rms_norm_rope(stream, data.args({.norm = false, .rotate = false}, slots, ""));
  EXPECT_EQ(stream.copied_bytes(), 4 * 2 * 6 * 2);
  EXPECT_EQ(values(out), values(data.x));
}

// Heads that are not side by side, and the norm taken across all of them: one head's values decide another's scale.
TEST(RmsNormRope, StatisticSpansHeadsAtAnyStride) {
  Tensor wide(DType::kF32, {1, 1, 4, 8});
  const TensorView x(wide.data<float>(), DType::kF32, {1, 1, 2, 8}, {64, 64, 16, 1});  // heads 0 and 2 of 4
  for (int i = 0; i < 8; ++i) wide.data<float>()[i] = 1, wide.data<float>()[16 + i] = 7;
  for (int i = 0; i < 8; ++i) wide.data<float>()[8 + i] = 1000;
  Tensor weight(DType::kF32, {16}), out(DType::kF32, {1, 1, 2, 8});
  for (int i = 0; i < 16; ++i) weight.data<float>()[i] = 2;
  const HeadSlot slots[] = {{{0, 2}, out}};
  for (const char* name : kNames) {
    RmsNormRope a;
    a.x = x, a.weight = weight, a.slots = slots, a.eps = 0, a.implementation = name;
    Stream stream(1);
    rms_norm_rope(stream, a);  // mean square (1 + 49)/2 = 25
    EXPECT_NEAR(out.data<float>()[3], 0.4, 1e-7) << name;
    EXPECT_NEAR(out.data<float>()[11], 2.8, 1e-6) << name;
  }
}

// Heads of which others have the rest: with the squares of all, each part of the heads is what it is of the whole.
TEST(RmsNormRope, PartsOfTheHeadsAreAsInTheWhole) {
  constexpr int64_t kHeads = 5, kFirst = 2;
  for (DType dtype : kDtypes) {
    const RopeNormData data(2, 7, kHeads, 12, dtype, DType::kF32);
    const std::vector<double> expected = data.expected({});
    const Tensor out(dtype, {2, 7, kHeads, 12});
    Stream stream(2);
    const IndexRange parts[] = {{0, kFirst}, {kFirst, kHeads}};
    Tensor squares(DType::kF32, {2 * 7}), some(DType::kF32, {2 * 7});
    for (const IndexRange part : parts) {
      const Tensor rows(dtype, {2, 7, part.size(), 12});
      copy(stream, rows, data.x.slice(2, part.begin, part.end));
      sum_of_squares(stream, rows.view().reshape({2 * 7, part.size() * 12}), some);
      for (int64_t i = 0; i < some.size(); ++i) squares.data<float>()[i] += some.data<float>()[i];
    }
    for (const char* name : kNames) {
      for (const IndexRange part : parts) {
        const HeadSlot slot{{0, part.size()}, out.view().slice(2, part.begin, part.end)};
        RmsNormRope a = data.args({}, {&slot, 1}, name);
        a.x = data.x.slice(2, part.begin, part.end);
        a.weight = data.weight.view().slice(0, part.begin * 12, part.end * 12);
        a.squares = squares, a.all_heads = kHeads;
        rms_norm_rope(stream, a);
      }
      EXPECT_TRUE(close(out, expected, tolerance(dtype))) << name;
    }
    // The squares of these heads alone are another norm.
    const HeadSlot slot{{0, kFirst}, out.view().slice(2, 0, kFirst)};
    RmsNormRope a = data.args({}, {&slot, 1}, "");
    a.x = data.x.slice(2, 0, kFirst);
    a.weight = data.weight.view().slice(0, 0, kFirst * 12);
    rms_norm_rope(stream, a);
    EXPECT_FALSE(close(out, expected, tolerance(dtype)));
    a.squares = squares, a.all_heads = kFirst - 1;
    EXPECT_NE(error_of([&] { rms_norm_rope(stream, a); }).find("sums of squares must be contiguous F32 [14]"),
              std::string::npos);
  }
}

// The comparison sees one value off by ten times its bound, a pair rotated the wrong way, and two heads exchanged.
TEST(RmsNormRope, WrongResultsFailTheComparison) {
  const RopeNormData data(1, 5, 2, 12, DType::kF32, DType::kF32);
  const Tensor out(DType::kF32, {1, 5, 2, 12});
  const HeadSlot slots[] = {{{0, 2}, out}},
                 exchanged[] = {{{0, 1}, out.view().slice(2, 1, 2)}, {{1, 2}, out.view().slice(2, 0, 1)}};
  const std::vector<double> expected = data.expected({});
  Stream stream(1);
  RmsNormRope a = data.args({}, slots, "");
  rms_norm_rope(stream, a);
  ASSERT_TRUE(close(out, expected, tolerance(DType::kF32)));
  out.data<float>()[77] += 1e-4f;
  EXPECT_FALSE(close(out, expected, tolerance(DType::kF32)));
  std::swap(a.cos, a.sin);
  rms_norm_rope(stream, a);
  EXPECT_FALSE(close(out, expected, tolerance(DType::kF32)));
  rms_norm_rope(stream, data.args({}, exchanged, ""));
  EXPECT_FALSE(close(out, expected, tolerance(DType::kF32)));
}

TEST(RmsNormRope, Refusals) {
  const RopeNormData data(1, 4, 2, 6, DType::kF32, DType::kF32);
  const Tensor out(DType::kF32, {1, 4, 2, 6});
  Stream stream(1);
  const auto error = [&](std::initializer_list<HeadSlot> slots, const char* name = "") {
    const std::vector<HeadSlot> list(slots);
    return error_of([&] { rms_norm_rope(stream, data.args({}, list, name)); });
  };
  const TensorView one = out.view().slice(2, 0, 1);
  EXPECT_EQ(error({{{0, 1}, one}}), "rms_norm_rope: the slots take 1 heads of 2");
  EXPECT_EQ(error({{{0, 1}, one}, {{0, 1}, one}}), "rms_norm_rope: slots [0, 1) and [0, 1) overlap");
  EXPECT_NE(error({{{0, 2}, one}}).find("a slot is F32 [1, 4, 1, 6]"), std::string::npos);
  EXPECT_NE(error({{{0, 3}, out}}).find("heads [0, 3) of 2"), std::string::npos);
  EXPECT_EQ(error({{{0, 2}, out}}, "neon"),
            "rms_norm_rope: there is no implementation 'neon'; there are: avx2, reference");
}

// ---- rms_norm -------------------------------------------------------------------------------------------------------

TEST(RmsNorm, WidthsAndDtypes) {
  for (int64_t d : {1, 7, 8, 9, 63, 64, 257, 4096}) {
    for (DType in : kDtypes) {
      for (DType to : kDtypes) {
        const GappedTensor x(in, {5, d}, 2), out(to, {5, d}, 1);
        test::fill_random(x, 1, 0.2, 3);
        const Tensor weight = random_tensor(to, {d}, 2, 1, 0.3);
        const std::vector<double> xs = values(x), ws = values(weight);
        std::vector<double> expected;
        for (int64_t row = 0; row < 5; ++row) {
          double square = 0;
          for (int64_t i = 0; i < d; ++i) square += std::pow(xs[static_cast<size_t>(row * d + i)], 2);
          const double inverse = 1 / std::sqrt(square / static_cast<double>(d) + static_cast<double>(1e-6f));
          for (int64_t i = 0; i < d; ++i)
            expected.push_back(xs[static_cast<size_t>(row * d + i)] * inverse * ws[static_cast<size_t>(i)]);
        }
        // Two roundings to bf16: of the normalised value and of the product.
        const double bound = tolerance(to) + (to == DType::kBF16 ? test::kUnitBF16 : 0);
        for (const char* name : kNames) {
          Stream stream(2);
          rms_norm(stream, {x, weight, 1e-6f, out, name});
          EXPECT_TRUE(close(out, expected, bound)) << name << " d=" << d;
          EXPECT_TRUE(out.gaps_intact());
        }
      }
    }
  }
}

// The cast comes before the weight, as in T5.
TEST(RmsNorm, CastsBeforeTheWeight) {
  Tensor x = random_tensor(DType::kF32, {64, 32}, 3);
  Tensor weight = random_tensor(DType::kBF16, {32}, 4, 1, 0.3);
  Tensor vector(DType::kBF16, {64, 32}), reference(DType::kBF16, {64, 32});
  Stream stream(1);
  rms_norm(stream, {x, weight, 1e-6f, vector, "avx2"});
  rms_norm(stream, {x, weight, 1e-6f, reference, "reference"});
  // Both round at the same places; a float32 rounding may tip a tie, but rounding once instead of twice differs in
  // every fourth value or so.
  int64_t differing = 0;
  for (int64_t i = 0; i < x.size(); ++i)
    differing += vector.data<BFloat16>()[i].bits != reference.data<BFloat16>()[i].bits;
  EXPECT_LT(differing, x.size() / 200);
}

TEST(RmsNorm, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor(DType::kF32, {3001, 20}, 1), weight = random_tensor(DType::kF32, {20}, 2);
  std::vector<double> one;
  for (const int threads : {1, 2, 3, 5}) {
    const Tensor out(DType::kF32, {3001, 20});
    Stream stream(threads);
    rms_norm(stream, {x, weight, 1e-6f, out, ""});
    if (threads == 1) {
      one = values(out);
      rms_norm(stream, {x, weight, 1e-6f, out, "reference"});
      EXPECT_TRUE(close(one, values(out), tolerance(DType::kF32)));
    } else {
      EXPECT_EQ(values(out), one) << threads;
    }
  }
}

}  // namespace
}  // namespace zoetrope::kernels
