#include "kernels/gemm/packed.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/activation.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/packed_amx.h"
#include "kernels/gemm/packed_int8.h"
#include "kernels/gemm/packed_kernel.h"
#include "kernels/gemm/packed_onednn.h"
#include "kernels/implementation.h"
#include "tensor/element.h"

namespace zoetrope::kernels {
namespace {

std::string layout_text(const PackedMatrix& matrix) {
  if (matrix.layout == PackedLayout::kOneDnn) return onednn_layout_name(matrix);
  if (matrix.layout == PackedLayout::kTiles) return fmt::format("tiles{}", kAmxPanelColumns);
  if (matrix.dtype == DType::kI8) return fmt::format("columns{}.rotated16x16", panel_columns(matrix.layout));
  return fmt::format("columns{}", panel_columns(matrix.layout));
}

int64_t whole_tiles(int64_t rows) { return round_up(rows, kTileRows); }

// Rows of x that are multiplied with a widened panel: their sums of one step, 64 columns of float32, share the cache
// with it.
constexpr int64_t kMostRows = 2048;
constexpr int64_t kFewestRows = 192;  // fewer do not repay the widening of a panel

// Items are (panel, block of rows); each thread takes the next one when it is done.
struct WorkItems {
  int64_t panels, row_blocks, rows;  // of every block but the last
  int64_t count() const { return panels * row_blocks; }
};

WorkItems items_of(int64_t m, int64_t panels, int threads) {
  if (m == 0) return {panels, 0, 0};
  const auto blocks_of = [&](int64_t most) { return (m + most - 1) / most; };
  int64_t blocks = blocks_of(kMostRows);
  constexpr int64_t kItemsPerThread = 4;
  while (panels * blocks < kItemsPerThread * threads && blocks < blocks_of(kFewestRows)) ++blocks;
  const int64_t rows = whole_tiles(ceil_div(m, blocks));
  return {panels, (m + rows - 1) / rows, rows};
}

struct PanelScratch {
  int64_t widened = 0, sums = 0;  // floats per thread
  size_t bytes(int threads) const { return static_cast<size_t>((widened + sums) * threads) * sizeof(float); }
};

PanelScratch panel_scratch(const PackedMatrix& w, int64_t columns, int64_t rows) {
  const int64_t steps = (w.k + kMostDepth - 1) / kMostDepth, depth = (w.k + steps - 1) / steps;
  PanelScratch scratch;
  if (w.dtype == DType::kBF16) scratch.widened = depth * columns;
  if (steps > 1) scratch.sums = whole_tiles(rows) * columns;
  return scratch;
}

Epilogue epilogue_of(Stream& stream, const PackedGemm& g) {
  Epilogue e;
  e.activation = g.activation;
  e.out = g.out.raw();
  e.out_stride = g.out.stride(0);
  e.out_dtype = g.out.dtype();
  e.round_to_bf16 = g.round_to_bf16;
  if (g.residual) {
    e.residual = g.residual.raw();
    e.residual_stride = g.residual.stride(0);
  }
  if (g.gate) e.gate = g.gate.data<float>();
  if (g.bias && g.bias.dtype() == DType::kF32) {
    e.bias = g.bias.data<float>();
  } else if (g.bias) {
    auto* bias = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(g.bias.size()) * sizeof(float)));
    for (int64_t i = 0; i < g.bias.size(); ++i) bias[i] = to_float(g.bias.data<BFloat16>()[i]);
    e.bias = bias;
  }
  return e;
}

void run_panels(Stream& stream, const PackedGemm& g, const PackedKernel& kernel) {
  const Arena::Scope scope(stream.scratch());
  const int64_t m = g.x.extent(0), columns = kernel.columns;
  const int threads = stream.team().size();
  const WorkItems items = items_of(m, (g.w.n + columns - 1) / columns, threads);
  const PanelScratch scratch = panel_scratch(g.w, columns, items.rows);
  const Epilogue epilogue = epilogue_of(stream, g);
  auto* memory = static_cast<float*>(stream.scratch().allocate(scratch.bytes(threads)));
  const int64_t panel_bytes = columns * g.w.k * static_cast<int64_t>(dtype_size(g.w.dtype));
  std::atomic<int64_t> next = 0;
  stream.team().run([&](int thread) {
    float* mine = memory + (scratch.widened + scratch.sums) * thread;
    for (int64_t item = next++; item < items.count(); item = next++) {
      const int64_t panel = item / items.row_blocks, row = item % items.row_blocks * items.rows;
      PanelWork work;
      work.x = g.x.data<float>() + row * g.x.stride(0);
      work.x_stride = g.x.stride(0);
      work.rows = std::min(items.rows, m - row);
      work.panel = g.w.data + panel * panel_bytes;
      work.dtype = g.w.dtype;
      work.k = g.w.k;
      work.columns = std::min(columns, g.w.n - panel * columns);
      if (scratch.widened > 0) work.widened = mine;
      if (scratch.sums > 0) work.sums = mine + scratch.widened;
      work.epilogue = moved(epilogue, row, panel * columns);
      kernel.panel(work);
    }
  });
}

void run_avx512(Stream& stream, const PackedGemm& g) { run_panels(stream, g, packed_kernel_avx512()); }
void run_avx2(Stream& stream, const PackedGemm& g) { run_panels(stream, g, packed_kernel_avx2()); }

void run_onednn(Stream& stream, const PackedGemm& g) {
  const Arena::Scope scope(stream.scratch());
  const auto finish = cpu_features().avx512 ? packed_kernel_avx512().finish : packed_kernel_avx2().finish;
  onednn_packed_gemm(stream, g.x, g.w, epilogue_of(stream, g), finish);
}

void run_amx(Stream& stream, const PackedGemm& g) {
  const Arena::Scope scope(stream.scratch());
  amx_packed_gemm(stream, g.x, g.w, epilogue_of(stream, g), packed_kernel_avx512().finish);
}

void run_int8(Stream& stream, const PackedGemm& g, const Int8Kernel& kernel) {
  const Arena::Scope scope(stream.scratch());
  int8_packed_gemm(stream, g.x, g.w, epilogue_of(stream, g), kernel);
}
void run_amx_int8(Stream& stream, const PackedGemm& g) { run_int8(stream, g, int8_kernel_amx()); }
void run_vnni512(Stream& stream, const PackedGemm& g) { run_int8(stream, g, int8_kernel_vnni512()); }
void run_vnni256(Stream& stream, const PackedGemm& g) { run_int8(stream, g, int8_kernel_vnni256()); }

// ---- the reference --------------------------------------------------------------------------------------------------

// w [N, K] as floats, from any layout.
std::vector<float> unpacked(const PackedMatrix& w) {
  std::vector<float> plain(static_cast<size_t>(w.n * w.k));
  if (w.layout == PackedLayout::kOneDnn) {
    std::vector<BFloat16> narrow(plain.size());
    onednn_unpack(w, narrow.data());
    std::transform(narrow.begin(), narrow.end(), plain.begin(), [](BFloat16 x) { return to_float(x); });
    return plain;
  }
  const int64_t columns = panel_columns(w.layout);
  const auto index = [&](int64_t n, int64_t k) {
    if (w.layout == PackedLayout::kTiles) return amx_packed_index(w, n, k);
    return (n / columns * w.k + k) * columns + n % columns;
  };
  const TensorView stored(const_cast<std::byte*>(w.data), w.dtype, {1});
  for (int64_t n = 0; n < w.n; ++n)
    for (int64_t k = 0; k < w.k; ++k)
      plain[static_cast<size_t>(n * w.k + k)] = static_cast<float>(element(stored, index(n, k)));
  return plain;
}

double rounded(double x, DType dtype) {
  const auto narrow = static_cast<float>(x);
  return dtype == DType::kBF16 ? to_float(to_bfloat16(narrow)) : narrow;
}

// x·wᵀ, each element in double.
std::vector<double> product_reference(const PackedGemm& g) {
  if (g.w.dtype == DType::kI8) {
    const std::vector<float> product = int8_product_reference(g.x, g.w);
    return {product.begin(), product.end()};
  }
  const std::vector<float> w = unpacked(g.w);
  std::vector<double> product;
  for (int64_t m = 0; m < g.out.extent(0); ++m) {
    for (int64_t n = 0; n < g.w.n; ++n) {
      double y = 0;
      for (int64_t k = 0; k < g.w.k; ++k)
        y += element(g.x, m * g.x.stride(0) + k) * static_cast<double>(w[static_cast<size_t>(n * g.w.k + k)]);
      product.push_back(y);
    }
  }
  return product;
}

void run_reference(Stream&, const PackedGemm& g) {
  const std::vector<double> product = product_reference(g);
  for (int64_t m = 0; m < g.out.extent(0); ++m) {
    for (int64_t n = 0; n < g.w.n; ++n) {
      double y = product[static_cast<size_t>(m * g.w.n + n)] + (g.bias ? element(g.bias, n) : 0);
      y = activation_reference(g.activation, y);
      if (g.residual) {
        y = rounded(y, g.out.dtype()) * (g.gate ? element(g.gate, n) : 1.0);
        y += element(g.residual, m * g.residual.stride(0) + n);
      }
      if (g.round_to_bf16) y = rounded(y, DType::kBF16);
      set_element(g.out, m * g.out.stride(0) + n, y);
    }
  }
}

// ---- the list -------------------------------------------------------------------------------------------------------

constexpr const char* kOtherWeights = "the weights are packed for another implementation";

template <PackedLayout kLayout>
Refusal refuse(const PackedGemm& g) {
  if (g.w.layout != kLayout || g.w.dtype == DType::kI8) return kOtherWeights;
  if (kLayout == PackedLayout::kColumns64 && !cpu_features().avx512) return "the CPU has no AVX-512";
  if (kLayout == PackedLayout::kOneDnn && !onednn_has_bf16()) return "oneDNN multiplies BF16 only with AVX-512";
  if (kLayout == PackedLayout::kTiles && !cpu_features().amx_bf16) return "the CPU has no AMX for BF16";
  return {};
}

template <PackedLayout kLayout>
Refusal refuse_int8(const PackedGemm& g) {
  if (g.w.layout != kLayout || g.w.dtype != DType::kI8) return kOtherWeights;
  if (kLayout == PackedLayout::kColumns64 && !cpu_features().avx512_vnni) return "the CPU has no AVX512-VNNI";
  if (kLayout == PackedLayout::kColumns16 && !cpu_features().avx_vnni) return "the CPU has no AVX-VNNI";
  return {};
}

Refusal refuse_amx_int8(const PackedGemm& g) {
  if (g.w.layout != PackedLayout::kColumns64 || g.w.dtype != DType::kI8) return kOtherWeights;
  if (!cpu_features().amx_int8) return "the CPU has no AMX for int8";
  return {};
}

constexpr Implementation<PackedGemm, void (*)(Stream&, const PackedGemm&)> kImplementations[] = {
    {"amx_int8", refuse_amx_int8, run_amx_int8},
    {"vnni512", refuse_int8<PackedLayout::kColumns64>, run_vnni512},
    {"vnni256", refuse_int8<PackedLayout::kColumns16>, run_vnni256},
    {"amx_bf16", refuse<PackedLayout::kTiles>, run_amx},
    {"onednn_bf16", refuse<PackedLayout::kOneDnn>, run_onednn},
    {"avx512", refuse<PackedLayout::kColumns64>, run_avx512},
    {"avx2", refuse<PackedLayout::kColumns16>, run_avx2},
    {"reference", nullptr, run_reference},
};

void check_rows(const char* name, const TensorView& t, int64_t rows, int64_t columns, DType dtype) {
  if (t.rank() != 2 || t.extent(0) != rows || t.extent(1) != columns || t.dtype() != dtype)
    fail("packed_gemm: {} is {} {}, but {} [{}, {}] is needed", name, dtype_name(t.dtype()), t.shape().to_string(),
         dtype_name(dtype), rows, columns);
  if (columns > 1 && t.stride(1) != 1) fail("packed_gemm: the last axis of {} must be contiguous", name);
  if (rows > 1 && t.stride(0) < columns) fail("packed_gemm: rows of {} must not overlap", name);
}

void check_vector(const char* name, const TensorView& t, int64_t n) {
  if (t.rank() != 1 || t.extent(0) != n || !t.contiguous())
    fail("packed_gemm: {} is {}, but [{}], contiguous, is needed", name, t.shape().to_string(), n);
}

void check(const PackedGemm& g) {
  if (!g.w || g.w.n < 1 || g.w.k < 1) fail("packed_gemm: there are no weights");
  if (g.x.rank() != 2) fail("packed_gemm: x is {}, but [M, {}] is needed", g.x.shape().to_string(), g.w.k);
  const int64_t m = g.x.extent(0);
  check_rows("x", g.x, m, g.w.k, operand_dtype(g.w));
  if (g.out.dtype() != DType::kF32 && g.out.dtype() != DType::kBF16)
    fail("packed_gemm: out is {}, but F32 or BF16 is needed", dtype_name(g.out.dtype()));
  check_rows("out", g.out, m, g.w.n, g.out.dtype());
  if (g.bias) {
    check_vector("bias", g.bias, g.w.n);
    if (g.bias.dtype() != DType::kF32 && g.bias.dtype() != DType::kBF16)
      fail("packed_gemm: bias is {}, but F32 or BF16 is needed", dtype_name(g.bias.dtype()));
  }
  if (g.gate && !g.residual) fail("packed_gemm: a gate without a residual");
  if (!g.residual) return;
  check_rows("residual", g.residual, m, g.w.n, g.out.dtype());
  if (g.activation != Activation::kNone || g.round_to_bf16)
    fail("packed_gemm: a residual goes with neither activation nor round_to_bf16");
  if (!g.gate) return;
  check_vector("gate", g.gate, g.w.n);
  if (g.gate.dtype() != DType::kF32) fail("packed_gemm: gate is {}, but F32 is needed", dtype_name(g.gate.dtype()));
}

}  // namespace

PackedLayout packed_layout(DType dtype) {
  const std::vector<PackedLayout> layouts = packed_layouts(dtype);
  ZT_CHECK(!layouts.empty(), "this CPU multiplies no {}", dtype_name(dtype));
  return layouts.front();
}

std::vector<PackedLayout> packed_layouts(DType dtype) {
  std::vector<PackedLayout> layouts;
  if (dtype == DType::kI8) {
    if (cpu_features().avx512_vnni) layouts.push_back(PackedLayout::kColumns64);
    if (cpu_features().avx_vnni) layouts.push_back(PackedLayout::kColumns16);
    return layouts;
  }
  if (cpu_features().avx512) layouts.push_back(PackedLayout::kColumns64);
  layouts.push_back(PackedLayout::kColumns16);
  if (dtype == DType::kBF16 && onednn_has_bf16())
    layouts.insert(onednn_bf16_is_fast() ? layouts.begin() : layouts.end(), PackedLayout::kOneDnn);
  if (dtype == DType::kBF16 && cpu_features().amx_bf16) layouts.insert(layouts.begin(), PackedLayout::kTiles);
  return layouts;
}

bool int8_rotation_possible(int64_t rotation, int64_t k) {
  if (rotation == kInt8Hadamard || rotation == 0) return true;
  return (rotation == 4 || rotation == 16 || rotation == 64 || rotation == 256) && k % rotation == 0;
}

std::string packed_layout_name(const PackedMatrix& matrix) {
  const char* dtype = matrix.dtype == DType::kI8 ? "i8" : matrix.dtype == DType::kBF16 ? "bf16" : "f32";
  const bool as_file = matrix.dtype == DType::kI8 && matrix.rotation != kInt8Hadamard;
  return fmt::format("{}.{}{}", dtype, layout_text(matrix), as_file ? fmt::format(".rotation{}", matrix.rotation) : "");
}

DType operand_dtype(const PackedMatrix& w) {
  if (w.dtype == DType::kI8) return DType::kBF16;
  return w.layout == PackedLayout::kOneDnn || w.layout == PackedLayout::kTiles ? DType::kBF16 : DType::kF32;
}

void packed_gemm(Stream& stream, const PackedGemm& args) {
  check(args);
  const auto& implementation = choose("packed_gemm", kImplementations, args, args.implementation);
  if (args.out.size() > 0) implementation.function(stream, args);
}

size_t packed_gemm_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads) {
  const size_t bias = static_cast<size_t>(w.n) * sizeof(float);
  if (w.layout == PackedLayout::kTiles) return bias + amx_packed_scratch_bytes(w, rows, threads);
  if (w.layout == PackedLayout::kOneDnn) return bias + onednn_packed_scratch_bytes(w, rows, threads);
  if (w.dtype == DType::kI8) {
    const size_t vectors = int8_packed_scratch_bytes(w, rows, threads, kTileRows);
    if (!cpu_features().amx_int8) return bias + vectors;
    return bias + std::max(vectors, int8_packed_scratch_bytes(w, rows, threads, int8_kernel_amx().rows));
  }
  const int64_t columns = panel_columns(w.layout);
  const WorkItems items = items_of(rows, (w.n + columns - 1) / columns, threads);
  return bias + panel_scratch(w, columns, items.rows).bytes(threads);
}

}  // namespace zoetrope::kernels
