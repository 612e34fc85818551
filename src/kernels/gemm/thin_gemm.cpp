#include "kernels/gemm/thin_gemm.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/thin_amx.h"
#include "kernels/gemm/thin_kernel.h"
#include "kernels/implementation.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

// Rows that are multiplied in one pass over the weights: more of them take further passes, so that scratch stays
// bounded.
constexpr int64_t kPassRows = 1024;

// Columns whose sums a thread keeps at a time. With many rows x is larger than the caches and is read again for each
// such block; with few rows a block is more than enough work.
int64_t block_columns(int64_t rows) { return rows <= 96 ? 64 : 128; }

void check_rows(const TensorView& t, const char* name) {
  if (!t || t.rank() != 2) fail("thin gemm: {} must have two axes", name);
  if (t.dtype() != DType::kF32 && t.dtype() != DType::kBF16)
    fail("thin gemm: {} has dtype {}, but F32 or BF16 is needed", name, dtype_name(t.dtype()));
  if (t.extent(1) > 1 && t.stride(1) != 1) fail("thin gemm: the last axis of {} must be contiguous", name);
}

void check_bias(const ThinProduct& product) {
  if (product.gate && (product.bias || product.activation != Activation::kNone))
    fail("thin gemm: a gated product takes neither bias nor activation");
  const TensorView& bias = product.bias;
  if (bias && (bias.dtype() != DType::kF32 || bias.shape() != Shape{product.w.extent(0)} || !bias.contiguous()))
    fail("thin gemm: bias is {} {}, but must be F32 [{}]", dtype_name(bias.dtype()), bias.shape().to_string(),
         product.w.extent(0));
}

void check(const ThinGemm& g) {
  check_rows(g.x, "x");
  const int64_t m = g.x.extent(0), k = g.x.extent(1);
  if (k == 0) fail("thin gemm: x {} has no columns", g.x.shape().to_string());
  for (const ThinProduct& product : g.products) {
    check_rows(product.w, "w");
    check_rows(product.out, "out");
    const int64_t n = product.w.extent(0);
    if (product.w.extent(1) != k || product.out.shape() != Shape({m, n}))
      fail("thin gemm: shapes do not fit: x {}, w {}, out {}; they should be [M, K], [N, K], [M, N]",
           g.x.shape().to_string(), product.w.shape().to_string(), product.out.shape().to_string());
    check_bias(product);
    if (!product.gate) continue;
    check_rows(product.gate, "gate");
    if (product.gate.shape() != product.w.shape())
      fail("thin gemm: gate is {}, but must be as w, {}", product.gate.shape().to_string(),
           product.w.shape().to_string());
  }
}

ThinWeight weight_conversion(const TensorView& w, DType precision) {
  if (w.dtype() == DType::kBF16) return ThinWeight::kBF16;
  return precision == DType::kBF16 ? ThinWeight::kF32RoundedToBF16 : ThinWeight::kF32;
}

// Tiles of rows as equal as they can be: thirteen rows are seven and six, not twelve and one.
struct Tiles {
  int64_t rows, count;
  Tiles(int64_t all, int64_t most) : rows(all), count((all + most - 1) / most) {}
  IndexRange operator[](int64_t tile) const { return split_range(rows, count, tile); }
};

// x in float32, [tile][K][rows of the tile].
template <typename In>
void pack_rows(Stream& stream, const TensorView& x, const Tiles& tiles, float* to) {
  const int64_t k = x.extent(1);
  constexpr int64_t kTerms = 512;
  const int64_t pieces = (k + kTerms - 1) / kTerms;
  stream.team().parallel_for(tiles.count * pieces, 4, [&](IndexRange range, int) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const IndexRange rows = tiles[i / pieces];
      const int64_t begin = i % pieces * kTerms, end = std::min(k, begin + kTerms);
      float* tile = to + rows.begin * k;
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const In* from = x.data<In>() + row * x.stride(0);
        for (int64_t term = begin; term < end; ++term)
          tile[term * rows.size() + row - rows.begin] = to_float(from[term]);
      }
    }
  });
}

// Columns [begin, end) of a product: what a thread computes at a time.
struct Block {
  const ThinProduct* product = nullptr;
  IndexRange columns{0, 0};
};

// A part of a block's weights, in the order of computation: kThinDepth terms of w or gate.
struct Piece {
  const Block* block;
  const TensorView* w;
  int64_t k, depth;

  const std::byte* at(int64_t column) const {
    const auto bytes = static_cast<int64_t>(dtype_size(w->dtype()));
    return static_cast<const std::byte*>(w->raw()) + ((block->columns.begin + column) * w->stride(0) + k) * bytes;
  }
  int64_t row_bytes() const { return w->stride(0) * static_cast<int64_t>(dtype_size(w->dtype())); }
};

// Of one thread.
struct Scratch {
  float* panel;    // [kThinDepth][columns of a panel]
  float* sums[2];  // w and gate: [panels of a block][rows][columns of a panel]
};

// Multiples of 16, because tiles and panels are read in whole vectors.
int64_t x_floats(int64_t rows, int64_t k) { return round_up(rows * k, 16); }
int64_t scratch_floats(int64_t rows, bool gated) {
  return kThinMaxColumns * kThinDepth + (gated ? 2 : 1) * block_columns(rows) * rows;
}

class Pass {
 public:
  Pass(const ThinKernel& kernel, const ThinGemm& args, IndexRange rows)
      : kernel_(kernel), args_(args), rows_(rows), k_(args.x.extent(1)), tiles_(rows.size(), kernel.max_rows) {
    for (const ThinProduct& product : args.products) {
      const int64_t columns = product.w.extent(0);
      for (int64_t begin = 0; begin < columns; begin += block_columns(rows.size())) {
        blocks_.push_back({&product, {begin, std::min(columns, begin + block_columns(rows.size()))}});
      }
      gated_ |= static_cast<bool>(product.gate);
    }
  }

  void run(Stream& stream) {
    const Arena::Scope scope(stream.scratch());
    const size_t bytes = thin_gemm_scratch_bytes(rows_.size(), k_, gated_, stream.team().size());
    x_ = static_cast<float*>(stream.scratch().allocate(bytes));
    with_compute_type(args_.x.dtype(), "thin gemm's x", [&](auto type) {
      pack_rows<typename decltype(type)::type>(stream, args_.x.slice(0, rows_.begin, rows_.end), tiles_, x_);
    });
    std::vector<Scratch> scratches;
    float* free = x_ + x_floats(rows_.size(), k_);
    for (int thread = 0; thread < stream.team().size(); ++thread, free += scratch_floats(rows_.size(), gated_)) {
      float* sums = free + kThinMaxColumns * kThinDepth;
      scratches.push_back({free, {sums, gated_ ? sums + block_columns(rows_.size()) * rows_.size() : nullptr}});
    }
    // Each thread takes the next block when it is done, in file order, and knows the one after, to prefetch its
    // weights.
    std::atomic<size_t> next{0};
    stream.team().run([&](int thread) {
      size_t mine = next++;
      while (mine < blocks_.size()) {
        const size_t after = next++;
        multiply(blocks_[mine], after < blocks_.size() ? &blocks_[after] : nullptr,
                 scratches[static_cast<size_t>(thread)]);
        mine = after;
      }
    });
  }

 private:
  Piece piece(const Block& block, const TensorView& w, int64_t k) const {
    return {&block, &w, k, std::min(kThinDepth, k_ - k)};
  }

  // While `tiles` tiles of `depth` terms are multiplied.
  static Prefetch prefetch(const Piece& next, int64_t tiles, int64_t depth) {
    return {next.at(0), next.row_bytes(), next.depth * static_cast<int64_t>(dtype_size(next.w->dtype())),
            next.block->columns.size(), std::max<int64_t>(1, tiles * (depth / 8))};
  }

  void multiply_piece(const Piece& now, Prefetch& next_weights, const Scratch& scratch, float* sums) const {
    const int64_t width = kernel_.columns, columns = now.block->columns.size();
    for (int64_t first = 0; first < columns; first += width) {
      kernel_.pack({.w = now.at(first),
                    .row_bytes = now.row_bytes(),
                    .columns = std::min(width, columns - first),
                    .depth = now.depth,
                    .weight = weight_conversion(*now.w, args_.weight_precision),
                    .panel = scratch.panel});
      for (int64_t i = 0; i < tiles_.count; ++i) {
        const IndexRange rows = tiles_[i];
        kernel_.multiply({.x = x_ + rows.begin * k_ + now.k * rows.size(),
                          .panel = scratch.panel,
                          .rows = rows.size(),
                          .depth = now.depth,
                          .sums = sums + first * rows_.size() + rows.begin * width,
                          .accumulate = now.k > 0,
                          .next_weights = &next_weights});
      }
    }
  }

  void multiply(const Block& block, const Block* after, const Scratch& scratch) const {
    const int64_t panels = (block.columns.size() + kernel_.columns - 1) / kernel_.columns;
    std::vector<Piece> pieces;
    for (const TensorView* w : {&block.product->w, &block.product->gate}) {
      if (!*w) continue;
      for (int64_t k = 0; k < k_; k += kThinDepth) pieces.push_back(piece(block, *w, k));
    }
    const size_t own = pieces.size();
    if (after != nullptr) pieces.push_back(piece(*after, after->product->w, 0));
    for (size_t i = 0; i < own; ++i) {
      const Piece& now = pieces[i];
      Prefetch next_weights;
      if (i + 1 < pieces.size()) next_weights = prefetch(pieces[i + 1], panels * tiles_.count, now.depth);
      multiply_piece(now, next_weights, scratch, scratch.sums[now.w == &block.product->w ? 0 : 1]);
    }
    with_compute_type(block.product->out.dtype(), "thin gemm's out",
                      [&](auto type) { finish<typename decltype(type)::type>(block, scratch); });
  }

  template <typename Out>
  void finish(const Block& block, const Scratch& scratch) const {
    with_activation(block.product->activation,
                    [&](auto activation) { finish_as<Out, decltype(activation)::value>(block, scratch); });
  }

  template <typename Out, Activation kActivation>
  void finish_as(const Block& block, const Scratch& scratch) const {
    const int64_t width = kernel_.columns, rows = rows_.size();
    const TensorView& out = block.product->out;
    const bool gated = static_cast<bool>(block.product->gate);
    const float* biases = block.product->bias ? block.product->bias.data<float>() + block.columns.begin : nullptr;
    for (int64_t first = 0; first < block.columns.size(); first += width) {
      for (int64_t row = 0; row < rows; ++row) {
        const float* sums = scratch.sums[0] + first * rows + row * width;
        const float* gate = gated ? scratch.sums[1] + first * rows + row * width : nullptr;
        Out* to = out.data<Out>() + (rows_.begin + row) * out.stride(0) + block.columns.begin + first;
        simd::for_vectors(std::min(width, block.columns.size() - first), [&](int64_t i, auto lanes) {
          simd::Floats value = simd::load_at(sums, i, lanes);
          if (gated) value = _mm256_mul_ps(value, simd::gelu_tanh(simd::load_at(gate, i, lanes)));
          if (biases != nullptr) value = value + simd::load_at(biases + first, i, lanes);
          value = activation_vector<kActivation>(value);
          simd::store_at(to, i, value, lanes);
        });
      }
    }
  }

  const ThinKernel& kernel_;
  const ThinGemm& args_;
  IndexRange rows_;
  int64_t k_;
  Tiles tiles_;
  std::vector<Block> blocks_;
  bool gated_ = false;
  float* x_ = nullptr;
};

void run_kernel(Stream& stream, const ThinGemm& args, const ThinKernel& kernel) {
  const int64_t rows = args.x.extent(0);
  for (int64_t begin = 0; begin < rows; begin += kPassRows) {
    Pass(kernel, args, {begin, std::min(rows, begin + kPassRows)}).run(stream);
  }
}

void run_avx512(Stream& stream, const ThinGemm& args) { run_kernel(stream, args, kThinAvx512); }
void run_avx2(Stream& stream, const ThinGemm& args) { run_kernel(stream, args, kThinAvx2); }

double reference_weight(const TensorView& w, int64_t n, int64_t k, DType precision) {
  // By bytes: mapped files may have any alignment.
  const auto read = [&](auto value) {
    const auto bytes = static_cast<int64_t>(sizeof value);
    std::memcpy(&value, static_cast<const std::byte*>(w.raw()) + (n * w.stride(0) + k) * bytes, sizeof value);
    return to_float(value);
  };
  const float stored = w.dtype() == DType::kBF16 ? read(BFloat16{}) : read(float{});
  return precision == DType::kBF16 ? to_float(to_bfloat16(stored)) : stored;
}

void run_reference(Stream&, const ThinGemm& g) {
  with_compute_type(g.x.dtype(), "thin gemm's x", [&](auto type) {
    using In = typename decltype(type)::type;
    const auto sum = [&](const TensorView& w, int64_t m, int64_t n) {
      double total = 0;
      for (int64_t k = 0; k < g.x.extent(1); ++k) {
        total += static_cast<double>(to_float(g.x.data<In>()[m * g.x.stride(0) + k])) *
                 reference_weight(w, n, k, g.weight_precision);
      }
      return total;
    };
    for (const ThinProduct& product : g.products) {
      for (int64_t m = 0; m < product.out.extent(0); ++m) {
        for (int64_t n = 0; n < product.out.extent(1); ++n) {
          double value = sum(product.w, m, n);
          if (product.gate) value *= activation_reference(Activation::kGeluTanh, sum(product.gate, m, n));
          if (product.bias) value += static_cast<double>(product.bias.data<float>()[n]);
          value = activation_reference(product.activation, value);
          with_compute_type(product.out.dtype(), "thin gemm's out", [&](auto out) {
            using Out = typename decltype(out)::type;
            product.out.data<Out>()[m * product.out.stride(0) + n] = from_float<Out>(static_cast<float>(value));
          });
        }
      }
    }
  });
}

Refusal refuse_amx(const ThinGemm& args) {
  if (!cpu_features().amx_bf16) return "needs AMX with BF16";
  if (args.x.dtype() != DType::kBF16) return "x is F32";
  for (const ThinProduct& product : args.products) {
    if (product.w.dtype() != DType::kBF16 || (product.gate && product.gate.dtype() != DType::kBF16))
      return "weights are F32";
  }
  return {};
}
Refusal refuse_avx512(const ThinGemm&) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  return {};
}
Refusal refuse_avx2(const ThinGemm&) {
  if (!cpu_features().avx2) return "needs AVX2 with FMA";
  return {};
}

constexpr Implementation<ThinGemm, void (*)(Stream&, const ThinGemm&)> kImplementations[] = {
    {"amx", refuse_amx, thin_gemm_amx},
    {"avx512", refuse_avx512, run_avx512},
    {"avx2", refuse_avx2, run_avx2},
    {"reference", nullptr, run_reference},
};

}  // namespace

void thin_gemm(Stream& stream, const ThinGemm& args) {
  check(args);
  const auto& implementation = choose("thin gemm", kImplementations, args, args.implementation);
  if (args.x.extent(0) > 0) implementation.function(stream, args);
}

size_t thin_gemm_scratch_bytes(int64_t rows, int64_t k, bool gated, int threads) {
  const int64_t pass = std::min(rows, kPassRows);
  const auto vectors = static_cast<size_t>(x_floats(pass, k) + threads * scratch_floats(pass, gated)) * sizeof(float);
  const ThinAmxSizes amx(std::min(rows, ThinAmxSizes::kPassRows), k);
  return std::max(vectors, static_cast<size_t>(amx.x_bytes() + threads * amx.thread_bytes(gated)));
}

}  // namespace zoetrope::kernels
