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

// Items are (panels, block of rows); each thread takes the next one when it is done.
struct WorkItems {
  int64_t panels = 1, rows = 1;     // of every item but the last ones
  int64_t columns = 0, blocks = 0;  // how many
  int64_t count() const { return columns * blocks; }
};

WorkItems items_of(const PackedKernel& kernel, int64_t m, int64_t n, int threads) {
  constexpr int64_t kItemsPerThread = 4;
  WorkItems items;
  if (m == 0) return items;
  const int64_t panels = ceil_div(n, kernel.columns), wanted = kItemsPerThread * threads;
  const auto cut = [&](int64_t blocks, int64_t panels_each) {
    items.panels = panels_each;
    items.columns = ceil_div(panels, panels_each);
    items.rows = whole_tiles(ceil_div(m, blocks));
    items.blocks = ceil_div(m, items.rows);
  };
  int64_t blocks = ceil_div(m, kernel.rows), each = std::min(kernel.panels, panels);
  for (cut(blocks, each); items.count() < wanted && each > 1; cut(blocks, each)) each = ceil_div(each, 2);
  for (; items.count() < wanted && blocks < ceil_div(m, kernel.fewest_rows); cut(blocks, each)) ++blocks;
  return items;
}

// How the depth of a panel is divided.
struct Steps {
  int64_t count, depth;  // of each but the last
  Steps(const PackedKernel& kernel, int64_t k) : count(ceil_div(k, kernel.depth)), depth(ceil_div(k, count)) {}
};

// Also enough for fewer rows, of which items may have more.
struct PanelScratch {
  int64_t widened = 0, sums = 0;  // floats per thread; sums of a panel
  int64_t panels = 0;
  PanelScratch(const PackedKernel& kernel, const PackedMatrix& w, int64_t m)
      : panels(std::min(kernel.panels, ceil_div(w.n, kernel.columns))) {
    const Steps steps(kernel, w.k);
    if (w.dtype == DType::kBF16) widened = steps.depth * kernel.columns;
    if (steps.count > 1) sums = whole_tiles(std::min(kernel.rows, m)) * kernel.columns;
  }
  int64_t of_thread() const { return widened + sums * panels; }
  size_t bytes(int threads) const { return static_cast<size_t>(of_thread() * threads) * sizeof(float); }
};

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

class Panels {
 public:
  Panels(Stream& stream, const PackedGemm& g, const PackedKernel& kernel)
      : g_(g),
        kernel_(kernel),
        steps_(kernel, g.w.k),
        items_(items_of(kernel, g.x.extent(0), g.w.n, stream.team().size())),
        scratch_(kernel, g.w, g.x.extent(0)),
        epilogue_(epilogue_of(stream, g)),
        memory_(static_cast<float*>(stream.scratch().allocate(scratch_.bytes(stream.team().size())))) {}

  void run(Stream& stream) const {
    std::atomic<int64_t> next = 0;
    stream.team().run([&](int thread) {
      float* const mine = memory_ + scratch_.of_thread() * thread;
      for (int64_t item = next++; item < items_.count(); item = next++) {
        const int64_t panel = item / items_.blocks * items_.panels, row = item % items_.blocks * items_.rows;
        for (int64_t step = 0; step < steps_.count; ++step)
          for (int64_t i = 0; i < items_.panels && (panel + i) * kernel_.columns < g_.w.n; ++i)
            multiply(panel + i, row, step, mine, mine + scratch_.widened + i * scratch_.sums);
      }
    });
  }

 private:
  void multiply(int64_t panel, int64_t row, int64_t step, float* widened, float* sums) const {
    const int64_t term = step * steps_.depth;
    PanelWork work;
    work.x = g_.x.data<float>() + row * g_.x.stride(0) + term;
    work.x_stride = g_.x.stride(0);
    work.rows = std::min(items_.rows, g_.x.extent(0) - row);
    work.panel = g_.w.data + (panel * g_.w.k + term) * kernel_.columns * static_cast<int64_t>(dtype_size(g_.w.dtype));
    work.dtype = g_.w.dtype;
    work.depth = std::min(steps_.depth, g_.w.k - term);
    work.columns = std::min(kernel_.columns, g_.w.n - panel * kernel_.columns);
    if (scratch_.widened > 0) work.widened = widened;
    if (scratch_.sums > 0) work.sums = sums;
    work.first = step == 0;
    work.last = step + 1 == steps_.count;
    work.epilogue = moved(epilogue_, row, panel * kernel_.columns);
    kernel_.panel(work);
  }

  const PackedGemm& g_;
  const PackedKernel& kernel_;
  const Steps steps_;
  const WorkItems items_;
  const PanelScratch scratch_;
  const Epilogue epilogue_;
  float* const memory_;
};

void run_panels(Stream& stream, const PackedGemm& g, const PackedKernel& kernel) {
  const Arena::Scope scope(stream.scratch());
  Panels(stream, g, kernel).run(stream);
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
void run_avx2_int8(Stream& stream, const PackedGemm& g) { run_int8(stream, g, int8_kernel_avx2()); }

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
  return {};
}

Refusal refuse_vnni256(const PackedGemm& g) {
  if (!cpu_features().avx_vnni) return "the CPU has no AVX-VNNI";
  return refuse_int8<PackedLayout::kColumns16>(g);
}

Refusal refuse_amx_int8(const PackedGemm& g) {
  if (g.w.layout != PackedLayout::kColumns64 || g.w.dtype != DType::kI8) return kOtherWeights;
  if (!cpu_features().amx_int8) return "the CPU has no AMX for int8";
  return {};
}

constexpr Implementation<PackedGemm, void (*)(Stream&, const PackedGemm&)> kImplementations[] = {
    {"amx_int8", refuse_amx_int8, run_amx_int8},
    {"vnni512", refuse_int8<PackedLayout::kColumns64>, run_vnni512},
    {"vnni256", refuse_vnni256, run_vnni256},
    {"avx2_int8", refuse_int8<PackedLayout::kColumns16>, run_avx2_int8},
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

PackedLayout packed_layout(DType dtype) { return packed_layouts(dtype).front(); }

std::vector<PackedLayout> packed_layouts(DType dtype) {
  std::vector<PackedLayout> layouts;
  if (dtype == DType::kI8) {
    if (cpu_features().avx512_vnni) layouts.push_back(PackedLayout::kColumns64);
    layouts.push_back(PackedLayout::kColumns16);
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
    const auto bytes = [&](const Int8Kernel& kernel) { return int8_packed_scratch_bytes(w, rows, threads, kernel); };
    const bool wide = w.layout == PackedLayout::kColumns64;
    const size_t most = wide ? bytes(int8_kernel_vnni512()) : bytes(int8_kernel_avx2());
    if (wide && cpu_features().amx_int8) return bias + std::max(most, bytes(int8_kernel_amx()));
    if (!wide && cpu_features().avx_vnni) return bias + std::max(most, bytes(int8_kernel_vnni256()));
    return bias + most;
  }
  const PackedKernel& kernel = w.layout == PackedLayout::kColumns64 ? packed_kernel_avx512() : packed_kernel_avx2();
  return bias + PanelScratch(kernel, w, rows).bytes(threads);
}

}  // namespace zoetrope::kernels
