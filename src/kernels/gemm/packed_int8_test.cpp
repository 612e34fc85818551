#include "kernels/gemm/packed_int8.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/hash.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::fill_random;
using test::GappedTensor;

// Both layouts, whether this CPU multiplies them or the reference alone does.
constexpr PackedLayout kLayouts[] = {PackedLayout::kColumns64, PackedLayout::kColumns16};
bool multiplies(PackedLayout layout) {
  for (const PackedLayout one : packed_layouts(DType::kI8))
    if (one == layout) return true;
  return false;
}

// The kernel for AMX with tiles in memory, beside what packed_gemm() knows.
constexpr std::string_view kEmulatedAmx = "emulated amx_int8";

// Those of a layout that this CPU runs.
std::vector<std::string_view> implementations(PackedLayout layout) {
  if (!multiplies(layout)) return {};
  if (layout == PackedLayout::kColumns16) {
    if (cpu_features().avx_vnni) return {"vnni256", "avx2_int8"};
    return {"avx2_int8"};
  }
  if (cpu_features().amx_int8) return {"amx_int8", kEmulatedAmx, "vnni512"};
  return {kEmulatedAmx, "vnni512"};
}

void multiply(Stream& stream, const PackedGemm& g) {
  if (g.implementation != kEmulatedAmx) return packed_gemm(stream, g);
  const std::vector<double> bias = g.bias ? test::values(g.bias) : std::vector<double>();
  const std::vector<float> wide(bias.begin(), bias.end());
  Epilogue e;
  if (g.bias) e.bias = wide.data();
  e.activation = g.activation;
  e.out = g.out.raw();
  e.out_stride = g.out.stride(0);
  e.out_dtype = g.out.dtype();
  if (g.residual) {
    e.residual = g.residual.raw();
    e.residual_stride = g.residual.stride(0);
  }
  if (g.gate) e.gate = g.gate.data<float>();
  int8_packed_gemm(stream, g.x, g.w, e, test::int8_kernel_emulated_amx());
}

struct Packed {
  Tensor memory;
  PackedMatrix matrix;
  Packed(const TensorView& stored, PackedLayout layout, int rotation = kInt8Hadamard,
         std::span<const float> scales = {}) {
    matrix.n = stored.extent(0);
    matrix.k = stored.extent(1);
    matrix.dtype = DType::kI8;
    matrix.layout = layout;
    matrix.rotation = rotation;
    memory = Tensor(DType::kU8, {static_cast<int64_t>(packed_bytes(matrix))});
    std::memset(memory.data<char>(), 0x7f, memory.view().bytes());  // what pack() leaves out shows
    matrix.data = memory.data<std::byte>();
    pack_rows({&stored, 1}, 0, matrix, memory.data<std::byte>(), scales);
  }
};

struct Data {
  Tensor w;
  GappedTensor x, out;
  Data(int64_t m, int64_t n, int64_t k)
      : w(test::random_tensor(DType::kF32, {n, k}, 1, 0, 1 / std::sqrt(static_cast<double>(k)))),
        x(DType::kBF16, {m, k}, 3),
        out(DType::kF32, {m, n}, 5) {
    fill_random(x, 4);
  }
  double x_at(int64_t m, int64_t k) const { return test::get(x, m * x.view().stride(0) + k); }
  void set_x(int64_t m, int64_t k, double value) const { test::put(x, m * x.view().stride(0) + k, value); }
  std::vector<double> product(const PackedMatrix& matrix, std::string_view implementation, int threads = 1) const {
    fill_random(out, 9);
    PackedGemm g;
    g.x = x;
    g.w = matrix;
    g.out = out;
    g.implementation = implementation;
    Stream stream(threads);
    multiply(stream, g);
    EXPECT_TRUE(out.gaps_intact());
    return test::values(out);
  }
};

void expect_same(const Data& data, const PackedMatrix& w, const std::vector<double>& expected) {
  for (const std::string_view implementation : implementations(w.layout)) {
    SCOPED_TRACE(testing::Message() << implementation << " m=" << data.x.view().extent(0) << " n=" << w.n
                                    << " k=" << w.k << " rotation=" << w.rotation);
    for (const int threads : {1, 3}) EXPECT_EQ(data.product(w, implementation, threads), expected);
  }
}

void expect_same_as_reference(int64_t m, int64_t n, int64_t k) {
  const Data data(m, n, k);
  for (const PackedLayout layout : packed_layouts(DType::kI8)) {
    const Packed packed(data.w, layout);
    expect_same(data, packed.matrix, data.product(packed.matrix, "reference"));
  }
}

// Bit for bit: integers have no rounding, and float32 operations come in the same order.
TEST(Int8Gemm, TheSameAsItsReference) {
  for (const int64_t m : {1, 5, 6, 7, 13, 16, 17, 31, 32, 33, 65})
    for (const int64_t n : {1, 15, 16, 17, 63, 64, 65, 130})
      for (const int64_t k : {1, 3, 4, 5, 40, 64, 68, 255, 256, 257, 512, 700}) expect_same_as_reference(m, n, k);
}

// Passes of rows, blocks of them in a pass, items of several panels, steps of several groups.
TEST(Int8Gemm, TheSameAsItsReferenceRoundBlocks) {
  for (const int64_t m : {95, 97, 251, 253, 255, 257, 505, 513, 2015, 2017, 2047, 2049, 4033, 4097})
    expect_same_as_reference(m, 3, 5);
  expect_same_as_reference(600, 70, 516);
  expect_same_as_reference(2100, 70, 300);
  for (const int64_t k : {2048, 2049, 4097}) expect_same_as_reference(20, 70, k);
  expect_same_as_reference(260, 330, 2308);
}

// Over passes, blocks of rows and items of columns: bias, activation and gated residual meet their own elements. The
// reference rounds once where the kernel's float32 operations round each: a few units, and bf16 once or twice.
void expect_endings(PackedLayout layout) {
  constexpr int64_t kRows = 2060, kColumns = 300;
  const Data data(kRows, kColumns, 520);
  const Packed packed(data.w, layout);
  const Tensor bias = test::random_tensor(DType::kBF16, {kColumns}, 6),
               gate = test::random_tensor(DType::kF32, {kColumns}, 7);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GappedTensor residual(dtype, {kRows, kColumns}, 3), out(dtype, {kRows, kColumns}, 2);
    fill_random(residual, 8);
    for (const bool gated : {false, true}) {
      const auto values = [&](std::string_view name) {
        PackedGemm g;
        g.x = data.x;
        g.w = packed.matrix;
        g.bias = bias;
        g.out = out;
        if (gated) {
          g.residual = residual;
          g.gate = gate;
        } else {
          g.activation = Activation::kGeluTanh;
        }
        g.implementation = name;
        Stream stream(2);
        multiply(stream, g);
        EXPECT_TRUE(out.gaps_intact());
        return test::values(out);
      };
      const std::vector<double> expected = values("reference");
      const double bound = 8 * test::kUnitF32 + (dtype == DType::kBF16 ? test::kUnitBF16 : 0);
      for (const std::string_view implementation : implementations(layout))
        EXPECT_TRUE(test::close(values(implementation), expected, bound)) << implementation;
    }
  }
}

TEST(Int8Gemm, EveryEndingMeetsItsElements) {
  for (const PackedLayout layout : packed_layouts(DType::kI8)) expect_endings(layout);
}

// Rotated, each value is off by at most half a scale, and rotation keeps what a product is. So is Σ|x'|·s_w/2 +
// Σ|ŵ|·s_x/2, with ŵ ≤ |w'| + s_w/2, a bound of the error of each element; float32 adds its own.
TEST(Int8Gemm, WithinTheBoundOfItsRounding) {
  constexpr int64_t kRows = 9, kColumns = 70;
  for (const int64_t k : {5, 256, 300, 1024}) {
    const Data data(kRows, kColumns, k);
    data.set_x(2, 1, 40);  // far from the others
    std::vector<std::vector<float>> x(kRows), w(kColumns);
    for (int64_t m = 0; m < kRows; ++m)
      for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(m)].push_back(static_cast<float>(data.x_at(m, i)));
    for (int64_t n = 0; n < kColumns; ++n)
      for (int64_t i = 0; i < k; ++i) w[static_cast<size_t>(n)].push_back(data.w.data<float>()[n * k + i]);
    std::vector<double> exact;
    for (const auto& row : x)
      for (const auto& column : w) exact.push_back(std::inner_product(row.begin(), row.end(), column.begin(), 0.0));
    for (auto* rows : {&x, &w})
      for (auto& row : *rows) rotate_row(row.data(), k);
    const auto most = [](const std::vector<float>& row, int64_t begin, int64_t end) {
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(row[static_cast<size_t>(i)]));
      return largest;
    };
    for (const PackedLayout layout : kLayouts) {
      const Packed packed(data.w, layout);
      const std::vector<double> actual = data.product(packed.matrix, multiplies(layout) ? "" : "reference");
      for (int64_t m = 0; m < kRows; ++m) {
        for (int64_t n = 0; n < kColumns; ++n) {
          const auto& xs = x[static_cast<size_t>(m)];
          const auto& ws = w[static_cast<size_t>(n)];
          const double w_half = most(ws, 0, k) / kInt8Most / 2;
          double bound = 0;
          for (int64_t i = 0; i < k; ++i) {
            const int64_t group = i / kInt8Group * kInt8Group;
            const double x_half = most(xs, group, std::min(k, group + kInt8Group)) / kInt8Most / 2;
            const double weight = std::fabs(ws[static_cast<size_t>(i)]);
            bound += std::fabs(xs[static_cast<size_t>(i)]) * w_half + (weight + w_half) * x_half;
          }
          const auto at = static_cast<size_t>(m * kColumns + n);
          ASSERT_LE(std::fabs(actual[at] - exact[at]), bound * (1 + 1e-4) + 1e-6) << m << " " << n << " k=" << k;
        }
      }
    }
  }
}

// Weights as a file has them in int8: codes, their scales, and the values by their definition, in integers.
struct Codes {
  int64_t rows, k;
  std::vector<int> codes;
  std::vector<float> scales, values;
  Codes(int64_t n, int64_t terms, int group) : rows(n), k(terms) {
    uint64_t state = 11;
    for (int64_t i = 0; i < n * k; ++i) codes.push_back(static_cast<int>(split_mix(++state) % 256) - 128);
    for (int64_t row = 0; row < n; ++row) scales.push_back(0.001f * static_cast<float>(row % 7 + 1));
    scales.back() = 0;  // a row of zeros may have any scale
    std::fill(codes.end() - k, codes.end(), 0);
    std::vector<int> whole = codes;
    int root = 1;
    for (int64_t step = 1; step < group; step *= 4, root *= 2) {
      for (int64_t i = 0; i < n * k; ++i) {
        if (i % k / step % 4 != 0) continue;
        int* const x = whole.data() + i;
        const int a = x[0], b = x[step], c = x[2 * step], d = x[3 * step];
        x[0] = a + b + c - d;
        x[step] = a + b - c + d;
        x[2 * step] = a - b + c + d;
        x[3 * step] = -a + b + c + d;
      }
    }
    for (int64_t i = 0; i < n * k; ++i)
      values.push_back(static_cast<float>(whole[static_cast<size_t>(i)]) / static_cast<float>(root) *
                       scales[static_cast<size_t>(i / k)]);
  }
  TensorView stored() const { return {const_cast<float*>(values.data()), DType::kF32, {rows, k}}; }
};

// The rotations of files, and sizes that their groups divide: of whole groups of 256, and of less.
const std::pair<int, int64_t> kOfFiles[] = {{0, 3},    {0, 300}, {4, 4},    {4, 20},    {4, 260},   {16, 48},
                                            {16, 272}, {64, 64}, {64, 448}, {256, 256}, {256, 1024}};

TEST(Int8Gemm, CodesOfFilesAreTakenAsTheyAre) {
  for (const auto& [rotation, k] : kOfFiles) {
    const Codes codes(70, k, rotation);
    for (const PackedLayout layout : kLayouts) {
      SCOPED_TRACE(testing::Message() << "rotation=" << rotation << " k=" << k);
      const Packed packed(codes.stored(), layout, rotation, codes.scales);
      const int64_t columns = panel_columns(layout), terms = int8_stored_terms(k);
      const int64_t panel = (terms + static_cast<int64_t>(sizeof(float))) * columns;
      for (int64_t n = 0; n < codes.rows; ++n) {
        const auto* const bytes = reinterpret_cast<const uint8_t*>(packed.matrix.data) + n / columns * panel;
        for (int64_t i = 0; i < k; ++i)
          ASSERT_EQ(bytes[(i / 4 * columns + n % columns) * 4 + i % 4] - 128,
                    codes.codes[static_cast<size_t>(n * k + i)])
              << n << " " << i;
        ASSERT_EQ(reinterpret_cast<const float*>(bytes + terms * columns)[n % columns],
                  codes.scales[static_cast<size_t>(n)]);
      }
    }
  }
}

// Only x is rounded: by half a scale of its row and group where it is rotated as the weights are.
TEST(Int8Gemm, ProductsWithCodesOfFilesRoundActivationsOnly) {
  constexpr int64_t kRows = 7, kColumns = 70;
  for (const auto& [rotation, k] : kOfFiles) {
    SCOPED_TRACE(testing::Message() << "rotation=" << rotation << " k=" << k);
    const Codes codes(kColumns, k, rotation);
    const Data data(kRows, kColumns, k);
    for (const PackedLayout layout : kLayouts) {
      const Packed packed(codes.stored(), layout, rotation, codes.scales);
      const std::vector<double> expected = data.product(packed.matrix, "reference");
      expect_same(data, packed.matrix, expected);
      for (int64_t m = 0; m < kRows; ++m) {
        std::vector<float> row;
        for (int64_t i = 0; i < k; ++i) row.push_back(static_cast<float>(data.x_at(m, i)));
        std::vector<float> rotated = row;
        rotate_row(rotated.data(), k, rotation);
        for (int64_t n = 0; n < kColumns; ++n) {
          double exact = 0, bound = 0;
          for (int64_t i = 0; i < k; ++i) {
            exact += static_cast<double>(row[static_cast<size_t>(i)]) * codes.values[static_cast<size_t>(n * k + i)];
            float most = 0;
            const int64_t group = i / kInt8Group * kInt8Group;
            for (int64_t j = group; j < std::min(k, group + kInt8Group); ++j)
              most = std::max(most, std::fabs(rotated[static_cast<size_t>(j)]));
            bound += std::abs(codes.codes[static_cast<size_t>(n * k + i)]) * codes.scales[static_cast<size_t>(n)] *
                     most / kInt8Most / 2;
          }
          ASSERT_LE(std::fabs(expected[static_cast<size_t>(m * kColumns + n)] - exact), bound * (1 + 1e-4) + 1e-6)
              << m << " " << n;
        }
      }
    }
  }
}

double relative_error(const Data& data, const PackedMatrix& matrix) {
  const std::vector<double> actual = data.product(matrix, multiplies(matrix.layout) ? "" : "reference");
  double error = 0, size = 0;
  for (int64_t m = 0; m < data.x.view().extent(0); ++m) {
    for (int64_t n = 0; n < matrix.n; ++n) {
      double exact = 0;
      for (int64_t i = 0; i < matrix.k; ++i) exact += data.x_at(m, i) * data.w.data<float>()[n * matrix.k + i];
      error += std::pow(actual[static_cast<size_t>(m * matrix.n + n)] - exact, 2);
      size += exact * exact;
    }
  }
  return std::sqrt(error / size);
}

// Normal values, of which the largest of 256 is about 2.9 and of 1536 about 3.4 deviations: a rounding of variance
// (2.9 / 127)² / 12 and (3.4 / 127)² / 12 makes 0.66 and 0.77 %, 1.0 % together. A channel that is ten times as large
// as the others would cost five times that without rotation; sixteen share it with rotation.
TEST(Int8Gemm, AnOutlierIsSpread) {
  constexpr int64_t kRows = 24, kTerms = 1536;
  const Data data(kRows, 48, kTerms);
  const Packed packed(data.w, packed_layout(DType::kI8));
  const double without = relative_error(data, packed.matrix);
  EXPECT_LT(without, 0.012);
  for (int64_t m = 0; m < kRows; ++m) data.set_x(m, 300, 10 * data.x_at(m, 300));
  EXPECT_LT(relative_error(data, packed.matrix), 1.8 * without);
}

TEST(Int8Gemm, WhatIsNoNumberStaysInItsRow) {
  const Data data(5, 33, 300);
  data.set_x(1, 7, std::numeric_limits<double>::quiet_NaN());
  data.set_x(3, 290, std::numeric_limits<double>::infinity());
  for (int64_t i = 0; i < 300; ++i) data.set_x(4, i, 0);
  for (const PackedLayout layout : kLayouts) {
    const Packed packed(data.w, layout);
    std::vector<std::string_view> all = implementations(layout);
    all.emplace_back("reference");
    for (const std::string_view implementation : all) {
      SCOPED_TRACE(implementation);
      const std::vector<double> y = data.product(packed.matrix, implementation);
      for (int64_t n = 0; n < 33; ++n) {
        EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(n)]));
        EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(33 + n)]));
        EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(66 + n)]));
        EXPECT_FALSE(std::isfinite(y[static_cast<size_t>(99 + n)]));
        EXPECT_EQ(y[static_cast<size_t>(132 + n)], 0);
      }
    }
  }
}

TEST(Int8Gemm, TheLargestSums) {
  constexpr int64_t kRows = 33, kColumns = 65, kTerms = 512;
  const Data data(kRows, kColumns, kTerms);
  for (int64_t i = 0; i < kColumns * kTerms; ++i) data.w.data<float>()[i] = 127;
  const std::vector<float> scales(kColumns, 1);
  for (const PackedLayout layout : packed_layouts(DType::kI8)) {
    const Packed packed(data.w, layout, 0, scales);
    for (const double sign : {1.0, -1.0}) {
      for (int64_t m = 0; m < kRows; ++m)
        for (int64_t i = 0; i < kTerms; ++i) data.set_x(m, i, sign);
      expect_same(data, packed.matrix, data.product(packed.matrix, "reference"));
    }
  }
}

// Of one thread and more, whole passes and less; an arena takes a piece of this size as it is.
TEST(Int8Gemm, ScratchIsWhatItSays) {
  const Data weights(1, 300, 2100);
  for (const PackedLayout layout : packed_layouts(DType::kI8)) {
    const Packed packed(weights.w, layout);
    for (const std::string_view implementation : implementations(layout)) {
      const Int8Kernel& kernel = implementation == kEmulatedAmx ? test::int8_kernel_emulated_amx()
                                 : implementation == "amx_int8" ? int8_kernel_amx()
                                 : implementation == "vnni512"  ? int8_kernel_vnni512()
                                 : implementation == "vnni256"  ? int8_kernel_vnni256()
                                                                : int8_kernel_avx2();
      for (const int64_t m : {700, 2060}) {
        const Data data(m, 1, 2100);
        const Tensor out(DType::kF32, {m, 300});
        for (const int threads : {1, 3}) {
          PackedGemm g;
          g.x = data.x;
          g.w = packed.matrix;
          g.out = out;
          g.implementation = implementation;
          Stream stream(threads);
          multiply(stream, g);
          const size_t expected = int8_packed_scratch_bytes(packed.matrix, m, threads, kernel);
          EXPECT_EQ(stream.scratch().reserved(), expected) << implementation << " " << m << " " << threads;
          if (implementation != kEmulatedAmx) {
            EXPECT_LE(expected, packed_gemm_scratch_bytes(packed.matrix, m, threads));
          }
        }
      }
    }
  }
}

// ---- the kernel for AMX, with tiles in memory -----------------------------------------------------------------------

class Int8Amx : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_features().avx512_vnni) GTEST_SKIP() << "this CPU has no AVX512-VNNI";
  }
};

// A group of ones times ones, in arrays of just their size, which the address sanitizer watches.
struct Ones {
  int64_t rows, terms;
  std::vector<int8_t> x;
  std::vector<uint8_t> w;
  std::vector<float> scales, to;
  std::vector<int32_t> corrections;
  Ones(int64_t m, int64_t k)
      : rows(m),
        terms(k),
        x(static_cast<size_t>(m * k), 1),
        w(static_cast<size_t>(64 * k), 129),
        scales(static_cast<size_t>(m), 1),
        to(static_cast<size_t>(64 * m)),
        corrections(static_cast<size_t>(m), static_cast<int32_t>(-128 * k)) {}
  void multiply() {
    Int8Tile tile;
    tile.x = x.data();
    tile.terms = terms;
    tile.w = w.data();
    tile.scales = scales.data();
    tile.corrections = corrections.data();
    tile.to = to.data();
    test::int8_kernel_emulated_amx().multiply(tile, rows);
  }
};

TEST_F(Int8Amx, ReadsNothingBeyondItsGroup) {
  for (const int64_t rows : {1, 16, 17, 32, 47, 256}) {
    for (const int64_t terms : {4, 60, 64, 68, 128, 252, 256}) {
      Ones ones(rows, terms);
      test::int8_kernel_emulated_amx().with_tiles([](void* to) { static_cast<Ones*>(to)->multiply(); }, &ones);
      EXPECT_EQ(ones.to, std::vector<float>(ones.to.size(), static_cast<float>(terms))) << rows << " " << terms;
    }
  }
}

TEST_F(Int8Amx, NeedsItsTiles) { EXPECT_DEATH(Ones(1, 4).multiply(), "no tiles are configured"); }

}  // namespace
}  // namespace zoetrope::kernels
