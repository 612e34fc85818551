#include "kernels/gemm/packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <limits>
#include <thread>

#include "base/test_folder.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/testing.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::fill_random;
using test::GappedTensor;

struct Packed {
  Tensor memory;
  PackedMatrix matrix;

  Packed(std::span<const TensorView> stored, DType dtype, PackedLayout layout) {
    matrix.dtype = dtype;
    matrix.layout = layout;
    matrix.k = stored[0].extent(1);
    for (const TensorView& part : stored) matrix.n += part.extent(0);
    memory = Tensor(DType::kU8, {static_cast<int64_t>(packed_bytes(matrix))});
    std::memset(memory.data<char>(), 0x7f, memory.view().bytes());  // what pack() leaves out shows
    matrix.data = memory.data<std::byte>();
    pack(stored, matrix, memory.data<std::byte>());
  }
};

enum class Ending : uint8_t { kPlain, kRounded, kResidual, kGated };

struct Case {
  int64_t m, n, k;
  DType dtype = DType::kF32;  // of the weights
  DType out = DType::kF32;
  Ending ending = Ending::kPlain;
  bool bias = true;
  Activation activation = Activation::kNone;
};

struct Data {
  Tensor w, bias, gate;
  GappedTensor x, x_narrow, out, residual;
  std::vector<double> expected;
  double size = 0;  // ‖·‖₂ of what the sums' terms make when their signs are random: no less where they cancel

  explicit Data(const Case& c)
      : w(test::random_tensor(c.dtype, {c.n, c.k}, 1, 0, 1 / std::sqrt(static_cast<double>(c.k)))),
        bias(test::random_tensor(c.dtype, {c.n}, 2)),
        gate(test::random_tensor(DType::kF32, {c.n}, 3)),
        x(DType::kF32, {c.m, c.k}, 3),
        x_narrow(DType::kBF16, {c.m, c.k}, 3),
        out(c.out, {c.m, c.n}, 5),
        residual(c.out, {c.m, c.n}, 2) {
    fill_random(x_narrow, 4);
    if (c.dtype == DType::kF32) fill_random(x, 4);
    else  // the same values, as the caller rounds them
      for (int64_t m = 0; m < c.m; ++m)
        for (int64_t k = 0; k < c.k; ++k)
          test::put(x, m * x.view().stride(0) + k, test::get(x_narrow, m * x_narrow.view().stride(0) + k));
    fill_random(residual, 5);
    const auto xs = test::values(x), ws = test::values(w), bs = test::values(bias), gs = test::values(gate),
               rs = test::values(residual);
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = c.bias ? bs[static_cast<size_t>(j)] : 0;
        double squares = sum * sum;
        for (int64_t l = 0; l < c.k; ++l) {
          const double term = xs[static_cast<size_t>(i * c.k + l)] * ws[static_cast<size_t>(j * c.k + l)];
          sum += term;
          squares += term * term;
        }
        sum = test::textbook(c.activation, sum);
        const double factor = c.ending == Ending::kGated ? gs[static_cast<size_t>(j)] : 1;
        const double base = c.ending >= Ending::kResidual ? rs[static_cast<size_t>(i * c.n + j)] : 0;
        expected.push_back(sum * factor + base);
        size += squares * factor * factor + base * base;
      }
    size = std::sqrt(size);
  }
  bool good(double relative) const {
    double error = 0;
    const std::vector<double> actual = test::values(out);
    for (size_t i = 0; i < expected.size(); ++i) error += std::pow(actual[i] - expected[i], 2);
    return std::sqrt(error) <= relative * size;  // false for NaN
  }
  PackedGemm args(const Case& c, const PackedMatrix& matrix, const char* name) const {
    PackedGemm g;
    g.x = operand_dtype(matrix) == DType::kF32 ? x.view() : x_narrow.view();
    g.w = matrix;
    if (c.bias) g.bias = bias;
    g.activation = c.activation;
    g.out = out;
    g.round_to_bf16 = c.ending == Ending::kRounded;
    if (c.ending >= Ending::kResidual) g.residual = residual;
    if (c.ending == Ending::kGated) g.gate = gate;
    g.implementation = name;
    return g;
  }
};

// A float32 sum of K terms of random sign walks: at most u·√K of its size; the activation, whose slope is at most 1.13,
// adds a few u. A BF16 value is one rounding; with a residual two: of what is added, and of the sum.
double tolerance(const Case& c) {
  const bool narrow = c.out == DType::kBF16 || c.ending == Ending::kRounded;
  const int roundings = c.ending >= Ending::kResidual ? 2 : 1;
  return test::kUnitF32 * (4 + std::sqrt(static_cast<double>(c.k))) + (narrow ? roundings * test::kUnitBF16 : 0);
}

const char* name_of(PackedLayout layout) {
  if (layout == PackedLayout::kColumns16) return "avx2";
  if (layout == PackedLayout::kTiles) return "amx_bf16";
  return layout == PackedLayout::kColumns64 ? "avx512" : "onednn_bf16";
}

void check(const Case& c) {
  const Data data(c);
  const TensorView w = data.w;
  for (const PackedLayout layout : packed_layouts(c.dtype)) {
    const Packed packed({&w, 1}, c.dtype, layout);
    for (const char* name : {name_of(layout), "reference"}) {
      SCOPED_TRACE(testing::Message() << packed_layout_name(packed.matrix) << " " << name << " m=" << c.m
                                      << " n=" << c.n << " k=" << c.k << " ending=" << static_cast<int>(c.ending)
                                      << " activation=" << static_cast<int>(c.activation));
      for (const int threads : {1, 3}) {
        Stream stream(threads);
        fill_random(data.out, 9);
        packed_gemm(stream, data.args(c, packed.matrix, name));
        EXPECT_TRUE(data.good(tolerance(c)));
        EXPECT_TRUE(data.out.gaps_intact());
      }
    }
  }
}

// Rows round a tile (6, 16) and a pair of them, columns round the panels (16, 32, 64) and their vectors, K round a
// block of pack() (8) and a tile (32).
TEST(PackedGemm, RoundEveryTile) {
  for (const int64_t m : {1, 5, 6, 7, 13, 16, 17, 32, 33})
    for (const int64_t n : {1, 15, 16, 17, 63, 64, 65, 130})
      for (const int64_t k : {1, 7, 8, 9, 31, 32, 33, 40})
        for (const DType dtype : {DType::kF32, DType::kBF16}) check({m, n, k, dtype, dtype});
}

// Slabs of 512 columns; K in one, two and three steps of at most 2048, with AVX2 of 256; several blocks of rows (AVX2:
// of 144), and passes of 1024; with AVX2 items of 16 panels.
TEST(PackedGemm, RoundEveryBlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {511, 512, 513}) check({7, n, 16, dtype, dtype});
    for (const int64_t k : {2047, 2048, 2049, 4097}) check({7, 65, k, dtype, dtype, Ending::kGated});
    for (const int64_t k : {513, 2049}) check({35, 33, k, dtype, dtype, Ending::kResidual});
    for (const int64_t m : {191, 192, 193, 257, 391, 1023, 1024, 1025, 2049}) check({m, 3, 5, dtype, dtype});
    check({1030, 40, 2060, dtype, dtype, Ending::kGated});
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{145, 273, 513}, {144, 513, 256}, {289, 256, 257}})
      check({m, n, k, dtype, dtype, Ending::kGated});
    // An activation of many rows may be finished during the next multiplication: none may be left out.
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1030, 40, 2060}, {77, 130, 72}, {33, 33, 2}})
      check({m, n, k, dtype, dtype, Ending::kPlain, true, Activation::kGeluTanh});
  }
}

TEST(PackedGemm, EveryEnding) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      for (const bool bias : {false, true}) {
        for (const Activation activation :
             {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf}) {
          check({8, 70, 24, dtype, out, Ending::kPlain, bias, activation});
          if (out == DType::kF32) check({8, 70, 24, dtype, out, Ending::kRounded, bias, activation});
        }
        check({8, 70, 24, dtype, out, Ending::kResidual, bias});
        check({8, 70, 24, dtype, out, Ending::kGated, bias});
      }
    }
  }
}

TEST(PackedGemm, RoundedValuesAreBFloat16) {
  const Case c{9, 70, 24, DType::kBF16, DType::kF32, Ending::kRounded, true, Activation::kGeluTanh};
  const Data data(c);
  const TensorView w = data.w;
  for (const PackedLayout layout : packed_layouts(c.dtype)) {
    const Packed packed({&w, 1}, c.dtype, layout);
    Stream stream(1);
    packed_gemm(stream, data.args(c, packed.matrix, ""));
    for (const double y : test::values(data.out)) EXPECT_EQ(y, to_float(to_bfloat16(static_cast<float>(y))));
  }
}

// With a residual, y is rounded before the gate, as where a layer's output is a tensor of its own: 1 + 2^-9 is 1.
TEST(PackedGemm, YIsRoundedBeforeTheGate) {
  for (const PackedLayout layout : packed_layouts(DType::kBF16)) {
    Tensor w(DType::kBF16, {1, 2}), x(operand_dtype({nullptr, 1, 2, DType::kBF16, layout}), {1, 2}),
        out(DType::kBF16, {1, 1}), gate(DType::kF32, {1});
    test::put(w, 0, 1);
    test::put(w, 1, 0x1p-9);
    test::put(x, 0, 1);
    test::put(x, 1, 1);
    test::put(out, 0, -1);
    test::put(gate, 0, 1);
    const TensorView stored = w;
    const Packed packed({&stored, 1}, DType::kBF16, layout);
    for (const char* name : {name_of(layout), "reference"}) {
      test::put(out, 0, -1);
      PackedGemm g;
      g.x = x;
      g.w = packed.matrix;
      g.out = g.residual = out;
      g.gate = gate;
      g.implementation = name;
      Stream stream(1);
      packed_gemm(stream, g);
      EXPECT_EQ(test::get(out, 0), 0) << name;
    }
  }
}

// The residual stream is updated in place, and threads change nothing.
TEST(PackedGemm, InPlaceAndTheSameOnAnyTeam) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c{400, 130, 72, dtype, dtype, Ending::kGated};
    const Data data(c);
    const TensorView w = data.w;
    for (const PackedLayout layout : packed_layouts(dtype)) {
      const Packed packed({&w, 1}, dtype, layout);
      std::vector<double> first;
      for (const int threads : {1, 2, 3, 8}) {
        fill_random(data.out, 5);  // as the residual
        PackedGemm g = data.args(c, packed.matrix, "");
        g.residual = g.out;
        Stream stream(threads);
        packed_gemm(stream, g);
        EXPECT_TRUE(data.good(tolerance(c)));
        if (first.empty()) first = test::values(data.out);
        EXPECT_EQ(test::values(data.out), first) << threads;
      }
    }
  }
}

TEST(PackedGemm, NoRowsIsNothing) {
  const Tensor w = test::random_tensor(DType::kF32, {4, 8}, 1);
  const TensorView stored = w;
  const Packed packed({&stored, 1}, DType::kF32, packed_layout(DType::kF32));
  const Tensor x(DType::kF32, {0, 8}), out(DType::kF32, {0, 4});
  PackedGemm g;
  g.x = x;
  g.w = packed.matrix;
  g.out = out;
  Stream stream(2);
  EXPECT_NO_THROW(packed_gemm(stream, g));
  EXPECT_LE(packed_gemm_scratch_bytes(packed.matrix, 0, 2), size_t{4096});
}

TEST(PackedGemm, ScratchIsWhatItSays) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const DType values = dtype == DType::kI8 ? DType::kBF16 : dtype;
    const Case c{700, 300, 2100, values, values, Ending::kGated};
    const Tensor w(values, {c.n, c.k}), bias(values, {c.n}), gate(DType::kF32, {c.n}), out(values, {c.m, c.n});
    const TensorView stored = w;
    for (const PackedLayout layout : packed_layouts(dtype)) {
      if (layout == PackedLayout::kOneDnn) continue;  // oneDNN's own scratch is oneDNN's to know
      const Packed packed({&stored, 1}, dtype, layout);
      const Tensor x(operand_dtype(packed.matrix), {c.m, c.k});
      // An arena takes memory in pieces of a MiB or more, so it is given what is stated, and must take no other piece.
      for (const int64_t m : {c.m, int64_t{145}, int64_t{144}}) {
        constexpr int kThreads = 8;
        const size_t stated = packed_gemm_scratch_bytes(packed.matrix, c.m, kThreads);
        Stream stream(kThreads);
        {
          const Arena::Scope scope(stream.scratch());
          stream.scratch().allocate(stated);
        }
        const size_t before = stream.scratch().reserved();
        PackedGemm g;
        g.x = x.view().slice(0, 0, m);
        g.w = packed.matrix;
        g.bias = bias;
        g.gate = gate;
        g.out = g.residual = out.view().slice(0, 0, m);
        packed_gemm(stream, g);
        EXPECT_EQ(stream.scratch().reserved(), before) << packed_layout_name(packed.matrix) << " " << m;
      }
    }
  }
}

// ---- pack() ---------------------------------------------------------------------------------------------------------

// The last rows first: pieces do not depend on one another.
void expect_same_in_pieces(std::span<const TensorView> stored, const Packed& whole) {
  const PackedMatrix& matrix = whole.matrix;
  Tensor memory(DType::kU8, whole.memory.shape());
  std::memset(memory.data<char>(), 0x7f, memory.view().bytes());
  const int64_t step = packed_row_step(matrix);
  for (int64_t begin = (matrix.n - 1) / step * step; begin >= 0; begin -= step) {
    const IndexRange wanted{begin, std::min(begin + step, matrix.n)};
    std::vector<TensorView> rows;
    int64_t first = 0;
    for (const TensorView& part : stored) {
      const int64_t from = std::max(wanted.begin, first), to = std::min(wanted.end, first + part.extent(0));
      if (from < to) rows.push_back(part.slice(0, from - first, to - first));
      first += part.extent(0);
    }
    pack_rows(rows, wanted.begin, matrix, memory.data<std::byte>());
  }
  EXPECT_EQ(std::memcmp(memory.view().raw(), whole.memory.view().raw(), memory.view().bytes()), 0)
      << name_of(matrix.layout);
}

// Parts of rows are bytes of their own: each is packed into memory that holds nothing else, and taken from there.
TEST(Pack, PartsOfRowsLieSideBySide) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{150, 40}, {1536, 96}, {1100, 1536}}) {
      const Tensor stored = test::random_tensor(DType::kF32, {n, k}, 3);
      for (const PackedLayout layout : packed_layouts(dtype)) {
        const TensorView all = stored.view();
        const Packed whole({&all, 1}, dtype, layout);
        const PackedMatrix& matrix = whole.matrix;
        expect_same_in_pieces({&all, 1}, whole);
        const int64_t step = packed_part_rows(matrix);
        EXPECT_EQ(step % packed_row_step(matrix), 0);
        const auto size = static_cast<int64_t>(packed_bytes(matrix));
        const Tensor joined(DType::kU8, {size}), alone(DType::kU8, {size});
        std::memset(joined.view().raw(), 0x7f, packed_bytes(matrix));
        for (int64_t row = 0; row < n; row += 2 * step) {
          const int64_t end = std::min(n, row + 2 * step);
          std::memset(alone.view().raw(), 0x7f, packed_bytes(matrix));
          const TensorView rows = all.slice(0, row, end);
          pack_rows({&rows, 1}, row, matrix, static_cast<std::byte*>(alone.view().raw()));
          const size_t first = packed_begin(matrix, row), last = packed_begin(matrix, end);
          std::memcpy(static_cast<std::byte*>(joined.view().raw()) + first,
                      static_cast<const std::byte*>(alone.view().raw()) + first, last - first);
        }
        EXPECT_EQ(std::memcmp(joined.view().raw(), whole.memory.view().raw(), packed_bytes(matrix)), 0)
            << name_of(layout);
        EXPECT_EQ(packed_begin(matrix, n), packed_bytes(matrix));
      }
    }
  }
}

// Several matrices under one another, of any stored dtype, at any byte; blocks of 16 rows, tiles of 64 k
// and panels whole and cut.
TEST(Pack, PutsEveryElementInItsPlace) {
  constexpr int64_t kRows = 150;
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      for (const int64_t k : {5, 8, 19, 75}) {
        const Tensor source = test::random_tensor(DType::kF32, {kRows, k}, 7);
        std::vector<std::vector<std::byte>> bytes;
        std::vector<TensorView> stored;
        std::vector<float> expected;
        for (const IndexRange rows : {IndexRange{0, 20}, IndexRange{20, 23}, IndexRange{23, kRows}}) {
          auto& part = bytes.emplace_back(1 + static_cast<size_t>(rows.size() * k) * dtype_size(from));
          for (int64_t i = 0; i < rows.size() * k; ++i) {
            const float x = source.data<float>()[rows.begin * k + i];
            std::byte* at = part.data() + 1 + static_cast<size_t>(i) * dtype_size(from);
            const auto put = [&](auto value, float read) {
              std::memcpy(at, &value, sizeof value);
              expected.push_back(to == DType::kBF16 ? to_float(to_bfloat16(read)) : read);
            };
            if (from == DType::kF32) put(x, x);
            else if (from == DType::kF64) put(static_cast<double>(x), x);
            else if (from == DType::kBF16) put(to_bfloat16(x), to_float(to_bfloat16(x)));
            else put(from_float<Float16>(x), to_float(from_float<Float16>(x)));
          }
          stored.emplace_back(part.data() + 1, from, Shape{rows.size(), k});
        }
        for (const PackedLayout layout : packed_layouts(to)) {
          const Packed packed(stored, to, layout);
          expect_same_in_pieces(stored, packed);
          // What comes of the unit vectors is w, a column at a time.
          Tensor unit(operand_dtype(packed.matrix), {k, k}), out(DType::kF32, {k, kRows});
          for (int64_t i = 0; i < k; ++i) test::put(unit, i * k + i, 1);
          PackedGemm g;
          g.x = unit;
          g.w = packed.matrix;
          g.out = out;
          for (const char* name : {name_of(layout), "reference"}) {
            g.implementation = name;
            Stream stream(1);
            packed_gemm(stream, g);
            for (int64_t n = 0; n < kRows; ++n)
              for (int64_t i = 0; i < k; ++i)
                ASSERT_EQ(out.data<float>()[i * kRows + n], expected[static_cast<size_t>(n * k + i)])
                    << name << " " << dtype_name(from) << " " << n << " " << i;
          }
        }
      }
    }
  }
}

TEST(Pack, FormsAreNamed) {
  PackedMatrix matrix;
  matrix.n = 96;
  matrix.k = 64;
  matrix.dtype = DType::kBF16;
  EXPECT_EQ(packed_layout_name(matrix), "bf16.columns64");
  matrix.dtype = DType::kF32;
  matrix.layout = PackedLayout::kColumns16;
  EXPECT_EQ(packed_layout_name(matrix), "f32.columns16");
}

// The layout is oneDNN's choice, so its name says which: another shape is another order of elements.
TEST(Pack, OneDnnsFormNamesItsBlocks) {
  const std::vector<PackedLayout> layouts = packed_layouts(DType::kBF16);
  if (std::find(layouts.begin(), layouts.end(), PackedLayout::kOneDnn) == layouts.end()) {
    GTEST_SKIP() << "oneDNN multiplies BF16 only with AVX-512";
  }
  PackedMatrix matrix;
  matrix.n = 96;
  matrix.k = 64;
  matrix.dtype = DType::kBF16;
  matrix.layout = PackedLayout::kOneDnn;
  const std::string name = packed_layout_name(matrix);
  EXPECT_EQ(name.rfind("bf16.onednn512.", 0), 0u) << name;
  EXPECT_EQ(packed_layout_name(matrix), name);
  matrix.k = 128;
  EXPECT_NE(packed_layout_name(matrix), name);
}

TEST(PackedGemm, Refusals) {
  const Case c{4, 16, 32};
  const Data data(c);
  const TensorView w = data.w;
  const Packed packed({&w, 1}, DType::kF32, PackedLayout::kColumns16);
  Stream stream(1);
  const PackedGemm good = data.args(c, packed.matrix, "");
  EXPECT_EQ(error_of([&] { packed_gemm(stream, good); }), "no error");
  PackedGemm bad = good;
  bad.implementation = "avx512";
  EXPECT_EQ(error_of([&] { packed_gemm(stream, bad); }),
            "packed_gemm: implementation 'avx512' cannot run here: the weights are packed for another implementation");
  bad = good;
  bad.x = data.x_narrow;
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("x is BF16 [4, 32], but F32 [4, 32]"));
  bad = good;
  bad.out = data.out.view().slice(1, 0, 15);
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("out is F32 [4, 15]"));
  bad = good;
  bad.gate = data.gate;
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("without a residual"));
  bad = good;
  bad.residual = data.residual;
  bad.activation = Activation::kSilu;
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("neither activation"));
  bad = good;
  bad.bias = data.bias.view().slice(0, 0, 15);
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("bias is [15]"));
  bad = good;
  bad.w = {};
  EXPECT_THAT(error_of([&] { packed_gemm(stream, bad); }), testing::HasSubstr("no weights"));
}

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// No thread but the team's works, and they sleep after kLongestSpin each: ten times that is a tenth of what one
// thread would take that looks on. CPU time, so that what the machine does besides makes it less, never more. Run with
// OpenMP told to spin for ever, too.
TEST(PackedGemm, ThreadsSleepAfterwards) {
  constexpr int kThreads = 2;
  const std::chrono::duration<double> spins = kThreads * ThreadTeam::kLongestSpin;
  const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(100 * spins);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c{64, 1200, 96, dtype, dtype};
    const Data data(c);
    const TensorView w = data.w;
    for (const PackedLayout layout : packed_layouts(dtype)) {
      const Packed packed({&w, 1}, dtype, layout);
      Stream stream(kThreads);
      // A worker that had no core in time still ends its body in the pause: threads that spin do so in every try.
      constexpr int kTries = 5;
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kTries && least >= 10 * spins.count(); ++i) {
        packed_gemm(stream, data.args(c, packed.matrix, name_of(layout)));
        const double before = process_cpu_seconds();
        std::this_thread::sleep_for(pause);
        least = std::min(least, process_cpu_seconds() - before);
      }
      EXPECT_LT(least, 10 * spins.count()) << packed_layout_name(packed.matrix);
    }
  }
}

}  // namespace
}  // namespace zoetrope::kernels
