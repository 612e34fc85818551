// Matrix multiplication of few rows on AMX. A tile of weights is sixteen of their rows, 64 bytes each, read directly
// from the mapped file without transposing or widening; the time that remains is reading. Instead x is packed in the
// order that AMX expects, pairs of terms next to each other, once per pass. Products of bf16 are exact and summed in
// float32; AMX treats numbers below 2^-126 as zero.
#include "kernels/gemm/thin_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/index_range.h"
#include "kernels/activation.h"
#include "kernels/amx_tiles.h"
#include "kernels/gemm/pack_pairs.h"
#include "kernels/gemm/prefetch.h"
#include "kernels/transpose_avx512.h"
#include "kernels/vector_math.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

using Sizes = ThinAmxSizes;
constexpr int64_t kTileRows = Sizes::kTileRows, kTileBytes = Sizes::kTileBytes, kStep = Sizes::kStep;
constexpr int64_t kPair = Sizes::kPair, kTileFloats = Sizes::kTileFloats, kLine = kAmxTileLine;
static_assert(kTileRows == kAmxTileRows && kTileBytes == kTileRows * kLine && kStep == kPairTerms);

// Rows whose terms of a piece, 1 MiB of x, stay in the L2 cache while they are multiplied with a block's columns. All
// of 512 rows at a time lost 2 to 14 %; 128 times 4096 terms were as good. Prefetching x lost 4 to 14 %.
constexpr int64_t kKeptRows = 256;
// Of x that are packed into tiles at a time.
constexpr int64_t kPackedTerms = 512;

// 32 columns times 16 or 32 rows.
struct Task {
  const std::byte* w[2];  // tiles of sixteen columns each
  int64_t row_bytes, step_bytes;
  const std::byte* x;
  int64_t x_row_bytes;  // from a tile of rows to the next
  int64_t steps;
  float* sums;      // [tile of rows][tile of columns][16 columns][16 rows]
  bool accumulate;  // onto sums
  Prefetch out;     // written after the multiplication
};

template <int kRowTiles>
void multiply(Task& t, Prefetch& weights) {
  float *const sums = t.sums, *const lower = t.sums + 2 * kTileFloats;
  if (t.accumulate) {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + kTileFloats, kLine);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(2, lower, kLine);
      _tile_loadd(3, lower + kTileFloats, kLine);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kRowTiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const std::byte *w0 = t.w[0], *w1 = t.w[1], *x = t.x;
  for (int64_t step = 0; step < t.steps; ++step, w0 += t.step_bytes, w1 += t.step_bytes, x += kTileBytes) {
    weights.step<Prefetch::kIntoL2>();
    t.out.step<Prefetch::kIntoL1>();
    // Loads first, as in packed_amx.cpp.
    _tile_loadd(6, x, kLine);
    _tile_loadd(4, w0, t.row_bytes);
    _tile_loadd(5, w1, t.row_bytes);
    if constexpr (kRowTiles == 2) _tile_loadd(7, x + t.x_row_bytes, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kRowTiles == 2) {
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + kTileFloats, kLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, lower, kLine);
    _tile_stored(3, lower + kTileFloats, kLine);
  }
}

// Copies `columns` rows of weights, from the term at `w` on, as contiguous tiles [step][tile of columns][16 lines].
void copy_tiles(const std::byte* w, int64_t row_bytes, int64_t columns, int64_t terms, std::byte* to) {
  const int64_t steps = ceil_div(terms, kStep);
  for (int64_t column = 0; column < kPair; ++column) {
    std::byte* line = to + column * kLine;
    for (int64_t step = 0; step < steps; ++step, line += 2 * kTileBytes) {
      const int64_t bytes = column < columns ? std::min(kLine, 2 * terms - step * kLine) : 0;
      if (bytes == kLine) {
        _mm512_store_si512(line, _mm512_loadu_si512(w + column * row_bytes + step * kLine));
      } else {
        std::memset(line, 0, static_cast<size_t>(kLine));
        if (bytes > 0) std::memcpy(line, w + column * row_bytes + step * kLine, static_cast<size_t>(bytes));
      }
    }
  }
}

// A tile of sums: [column][row] becomes [row][column].
void transpose_tile(const float* sums, float* to) {
  __m512i lines[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i) lines[i] = _mm512_load_si512(sums + i * kTileRows);
  transpose(lines);
  for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_si512(to + i * kTileRows, lines[i]);
}

// Columns [begin, end) of a product: what a thread computes at a time.
struct Block {
  const ThinProduct* product;
  IndexRange columns;
  int64_t matrices() const { return product->gate ? 2 : 1; }
};

// A range of terms of a block's w or gate.
struct Piece {
  const TensorView* w = nullptr;
  int64_t matrix = 0;  // w or gate
  IndexRange columns{0, 0};
  int64_t k = 0, depth = 0;
  int64_t row_bytes() const { return w->stride(0) * 2; }
  const std::byte* at(int64_t column) const {
    return static_cast<const std::byte*>(w->raw()) + (columns.begin + column) * row_bytes() + k * 2;
  }
};

struct Scratch {
  std::byte* copy;
  float* sums[2];  // of w and gate
};

class Pass {
 public:
  Pass(const ThinGemm& args, IndexRange rows)
      : args_(args), rows_(rows), k_(args.x.extent(1)), sizes_(rows.size(), args.x.extent(1)) {
    for (const ThinProduct& product : args.products) {
      const int64_t columns = product.w.extent(0);
      for (int64_t begin = 0; begin < columns; begin += sizes_.block.columns)
        blocks_.push_back({&product, {begin, std::min(columns, begin + sizes_.block.columns)}});
    }
  }

  void run(Stream& stream, std::byte* memory, bool gated) {
    x_ = memory;
    pack_rows(stream);
    std::atomic<size_t> next{0};
    stream.team().run([&](int thread) {
      const AmxTiles tiles;
      std::byte* mine = memory + sizes_.x_bytes() + thread * sizes_.thread_bytes(gated);
      auto* sums = reinterpret_cast<float*>(mine + sizes_.copy_bytes());
      const Scratch scratch{mine, {sums, gated ? sums + sizes_.sums_floats() : nullptr}};
      size_t block = next++;
      while (block < blocks_.size()) {
        const size_t after = next++;
        multiply_block(blocks_[block], after < blocks_.size() ? &blocks_[after] : nullptr, scratch);
        block = after;
      }
    });
  }

 private:
  // A piece of sixteen rows at a time, so that every thread has work even with few rows.
  void pack_rows(Stream& stream) const {
    const TensorView x = args_.x.slice(0, rows_.begin, rows_.end);
    const int64_t pieces = ceil_div(k_, kPackedTerms);
    const PairBlocks tiles{kTileRows, kTileBytes / 2, sizes_.x_row_bytes() / 2};
    stream.team().parallel_for(sizes_.tiles * pieces, 1, [&](IndexRange range, int) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t tile = i / pieces, k = i % pieces * kPackedTerms;
        const int64_t first = tile * kTileRows, rows = std::min(kTileRows, rows_.size() - first);
        const std::byte* from[kTileRows] = {};
        for (int64_t row = 0; row < rows; ++row)
          from[row] = static_cast<const std::byte*>(x.raw()) + ((first + row) * x.stride(0) + k) * 2;
        pack_pairs({from, static_cast<size_t>(rows)}, DType::kBF16, std::min(kPackedTerms, k_ - k), tiles,
                   reinterpret_cast<BFloat16*>(x_tile(tile, k)));
      }
    });
  }

  std::byte* x_tile(int64_t tile, int64_t k) const { return x_ + tile * sizes_.x_row_bytes() + k / kStep * kTileBytes; }

  int64_t pieces(const Block& block) const { return block.matrices() * ceil_div(k_, sizes_.block.terms); }

  // w and gate alternate, so that both are multiplied with the same terms of x.
  Piece piece(const Block& block, int64_t index) const {
    const int64_t matrix = index % block.matrices(), k = index / block.matrices() * sizes_.block.terms;
    return {matrix == 0 ? &block.product->w : &block.product->gate, matrix, block.columns, k,
            std::min(sizes_.block.terms, k_ - k)};
  }

  void multiply_block(const Block& block, const Block* after, const Scratch& scratch) const {
    const int64_t last = pieces(block) - 1;
    for (int64_t i = 0; i < last; ++i) multiply_piece(block, piece(block, i), piece(block, i + 1), scratch);
    Piece next;
    if (after != nullptr) {
      for (int64_t matrix = 0; matrix < after->matrices(); ++matrix) map_pages(piece(*after, matrix));
      next = piece(*after, 0);
    }
    multiply_piece(block, piece(block, last), next, scratch);
  }

  // Pages that are not mapped yet cannot be prefetched, and a page fault maps the neighbouring pages, too. Without this
  // 8 to 64 rows lost 3 to 9 % with weights that are read for the first time.
  static void map_pages(const Piece& piece) {
    for (int64_t column = 0; column < piece.columns.size(); ++column) {
      const volatile std::byte* at = piece.at(column);
      static_cast<void>(*at);
    }
  }

  // 32 columns at a time, while the weights of the next 32 are prefetched; the last rows of the last columns prefetch
  // those of the next piece. With a whole piece prefetched at a time 8 to 32 rows lost 3 to 5 %; with every other line,
  // which also loads its neighbour, 9 to 40 %.
  void multiply_piece(const Block& block, const Piece& now, const Piece& next, const Scratch& scratch) const {
    constexpr int64_t kKeptTiles = kKeptRows / kTileRows;
    const int64_t columns = now.columns.size();
    const bool last = now.matrix + 1 == block.matrices() && now.k + now.depth == k_;
    for (int64_t begin = 0; begin < sizes_.tiles; begin += kKeptTiles) {
      const int64_t end = std::min(sizes_.tiles, begin + kKeptTiles);
      const int64_t steps = ceil_div(now.depth, kStep) * ceil_div(end - begin, 2);
      for (int64_t first = 0; first < columns; first += kPair) {
        Prefetch weights;
        if (first + kPair < columns) {
          if (begin == 0) weights = prefetch(now, first + kPair, steps);
        } else if (end == sizes_.tiles && next.w != nullptr) {
          weights = prefetch(next, 0, steps);
        }
        Task task = weights_of(now, first, scratch);
        for (int64_t tile = begin; tile < end; tile += 2) {
          task.x = x_tile(tile, now.k);
          task.sums = scratch.sums[now.matrix] + sizes_.sums_at(first, tile);
          if (last) task.out = prefetch_out(block, first, tile, task.steps);
          if (tile + 1 < sizes_.tiles) multiply<2>(task, weights);
          else multiply<1>(task, weights);
          if (last) finish(block, scratch, first, tile);
        }
      }
    }
  }

  static Prefetch prefetch(const Piece& piece, int64_t first, int64_t steps) {
    return {piece.at(first), piece.row_bytes(), 2 * piece.depth, std::min(kPair, piece.columns.size() - first), steps};
  }

  // Whole tiles are multiplied where they are in the mapped file. Copying them first, so that their lines do not evict
  // each other from the L1 cache, lost 18 % at 128 and 3 % at 512 rows: they come from the L2 cache anyway.
  Task weights_of(const Piece& now, int64_t first, const Scratch& scratch) const {
    const int64_t columns = std::min(kPair, now.columns.size() - first);
    Task task{};
    task.x_row_bytes = sizes_.x_row_bytes();
    task.steps = ceil_div(now.depth, kStep);
    task.accumulate = now.k > 0;
    if (columns == kPair && now.depth % kStep == 0) {
      task.w[0] = now.at(first);
      task.w[1] = now.at(first + kTileRows);
      task.row_bytes = now.row_bytes();
      task.step_bytes = kLine;
    } else {
      copy_tiles(now.at(first), now.row_bytes(), columns, now.depth, scratch.copy);
      task.w[0] = scratch.copy;
      task.w[1] = scratch.copy + kTileBytes;
      task.row_bytes = kLine;
      task.step_bytes = 2 * kTileBytes;
    }
    return task;
  }

  // Rows of out are kilobytes apart: without a prefetch each is a cache miss.
  Prefetch prefetch_out(const Block& block, int64_t first, int64_t tile, int64_t steps) const {
    const TensorView& out = block.product->out;
    const auto element = static_cast<int64_t>(dtype_size(out.dtype()));
    const int64_t row = tile * kTileRows, at = (rows_.begin + row) * out.stride(0) + block.columns.begin + first;
    return {static_cast<const std::byte*>(out.raw()) + at * element, out.stride(0) * element,
            std::min(kPair, block.columns.size() - first) * element, std::min(kPair, rows_.size() - row), steps};
  }

  // 32 rows times 32 columns.
  void finish(const Block& block, const Scratch& scratch, int64_t first, int64_t tile) const {
    with_activation(block.product->activation, [&](auto activation) {
      for (int64_t i = tile; i < std::min(tile + 2, sizes_.tiles); ++i) {
        // Not with_compute_type(): the code that throws would be compiled for this instruction set and linked for all.
        if (block.product->out.dtype() == DType::kBF16)
          finish_as<BFloat16, decltype(activation)::value>(block, scratch, first, i);
        else finish_as<float, decltype(activation)::value>(block, scratch, first, i);
      }
    });
  }

  // Sixteen rows times 32 columns, whose sums are transposed.
  template <typename Out, Activation kActivation>
  void finish_as(const Block& block, const Scratch& scratch, int64_t first, int64_t tile) const {
    const TensorView &out = block.product->out, &biases = block.product->bias;
    const int64_t column = block.columns.begin + first, columns = block.columns.end - column;
    const int64_t begin = tile * kTileRows, rows = std::min(kTileRows, rows_.size() - begin);
    const bool gated = block.matrices() == 2;
    alignas(64) float sums[2][kTileFloats], gates[2][kTileFloats];
    simd::Floats bias[2] = {simd::zero(), simd::zero()};
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t at = sizes_.sums_at(first, tile) + half * kTileFloats, skipped = half * kTileRows;
      transpose_tile(scratch.sums[0] + at, sums[half]);
      if (gated) transpose_tile(scratch.sums[1] + at, gates[half]);
      if (!biases || columns <= skipped) continue;
      const auto lanes = static_cast<__mmask16>((1u << std::min(kTileRows, columns - skipped)) - 1);
      bias[half] = _mm512_maskz_loadu_ps(lanes, biases.data<float>() + column + skipped);
    }
    for (int64_t row = 0; row < rows; ++row) {
      Out* to = out.data<Out>() + (rows_.begin + begin + row) * out.stride(0) + column;
      for (int64_t half = 0; half < 2; ++half, to += kTileRows) {
        const int64_t left = columns - half * kTileRows;
        if (left <= 0) break;
        simd::Floats value = simd::load(sums[half] + row * kTileRows);
        if (gated) value = value * simd::gelu_tanh(simd::load(gates[half] + row * kTileRows));
        value = activation_vector<kActivation>(value + bias[half]);
        if (left >= kTileRows) simd::store(to, value);
        else simd::store(to, value, left);
      }
    }
  }

  const ThinGemm& args_;
  IndexRange rows_;
  int64_t k_;
  Sizes sizes_;
  std::vector<Block> blocks_;
  std::byte* x_ = nullptr;
};

}  // namespace

void thin_gemm_amx(Stream& stream, const ThinGemm& args) {
  const int64_t rows = args.x.extent(0), k = args.x.extent(1);
  const bool gated = std::any_of(args.products.begin(), args.products.end(),
                                 [](const ThinProduct& product) { return static_cast<bool>(product.gate); });
  const Arena::Scope scope(stream.scratch());
  auto* scratch =
      static_cast<std::byte*>(stream.scratch().allocate(thin_gemm_scratch_bytes(rows, k, gated, stream.team().size())));
  for (int64_t begin = 0; begin < rows; begin += Sizes::kPassRows)
    Pass(args, {begin, std::min(rows, begin + Sizes::kPassRows)}).run(stream, scratch, gated);
}

}  // namespace zoetrope::kernels
