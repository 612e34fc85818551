// Products of few rows on matrix units. A tile of weights is sixteen of their rows, 64 bytes each, as they lie in the
// map: nothing is turned or widened, and what is left of the time is reading. It is x that is brought into the units'
// order, pairs of terms beside one another, once a call. Products of bf16 are exact and summed in float32; numbers
// below 2^-126 count as zero, as the units have it.
#include "kernels/gemm/thin_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/index_range.h"
#include "kernels/activation.h"
#include "kernels/amx_units.h"
#include "kernels/vector_math.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

using Sizes = ThinAmxSizes;
constexpr int64_t kTileRows = Sizes::kTileRows, kTileBytes = Sizes::kTileBytes, kStep = Sizes::kStep;
constexpr int64_t kPiece = Sizes::kPiece, kPairColumns = Sizes::kPairColumns, kFewRows = Sizes::kFewRows;
constexpr int64_t kTileFloats = kTileRows * kTileRows, kLine = kAmxTileLine;
static_assert(kTileRows == kAmxTileRows && kTileBytes == kTileRows * kLine);

// Weights asked for ahead of their use, some with each step: see ThinAhead in thin_kernel.h.
struct Ahead {
  const std::byte* row = nullptr;
  int64_t row_bytes = 0, line = 0, lines = 0, left = 0, each = 0;

  inline __attribute__((always_inline)) void ask() {
    for (int64_t i = std::min(each, left); i > 0; --i) {
      _mm_prefetch(reinterpret_cast<const char*>(row + line * kLine), _MM_HINT_T1);
      --left;
      if (++line < lines) continue;
      line = 0;
      row += row_bytes;
    }
  }
};

// 32 columns times 16 or 32 rows.
struct Task {
  const std::byte* w[2];  // tiles of sixteen columns each
  int64_t row_bytes, step_bytes;
  const std::byte* x[2];
  int64_t steps;
  float* sums[2][2];  // [tile of columns][tile of rows], each [16][16]
  bool begin;
};

template <int kRowTiles>
void multiply(const Task& t, Ahead& ahead) {
  if (t.begin) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kRowTiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, t.sums[0][0], kLine);
    _tile_loadd(1, t.sums[1][0], kLine);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(2, t.sums[0][1], kLine);
      _tile_loadd(3, t.sums[1][1], kLine);
    }
  }
  const std::byte *w0 = t.w[0], *w1 = t.w[1];
  for (int64_t step = 0; step < t.steps; ++step, w0 += t.step_bytes, w1 += t.step_bytes) {
    ahead.ask();
    _tile_loadd(6, t.x[0] + step * kTileBytes, kLine);
    _tile_loadd(4, w0, t.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, w1, t.row_bytes);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(7, t.x[1] + step * kTileBytes, kLine);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, t.sums[0][0], kLine);
  _tile_stored(1, t.sums[1][0], kLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, t.sums[0][1], kLine);
    _tile_stored(3, t.sums[1][1], kLine);
  }
}

// [pair of terms][row][2] of sixteen rows and 32 terms, zeros where there are none.
void pack_tile(const BFloat16* from, int64_t stride, int64_t rows, int64_t terms, std::byte* to) {
  const auto lanes = static_cast<__mmask16>((1u << rows) - 1);
  const __m512i line = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(static_cast<int>(stride * 2)));
  BFloat16 rest[kTileRows * kStep] = {};
  const BFloat16* base = from;
  __m512i index = line;
  if (terms < kStep) {
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(rest + row * kStep, from + row * stride, static_cast<size_t>(terms) * sizeof(BFloat16));
    base = rest;
    index = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                               _mm512_set1_epi32(static_cast<int>(kLine)));
  }
  for (int64_t pair = 0; pair < kStep / 2; ++pair) {
    const __m512i both = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, index, base + 2 * pair, 1);
    _mm512_store_si512(to + pair * kLine, both);
  }
}

// `columns` rows of weights from one of their terms on, as contiguous tiles [step][tile of columns][16 lines].
void copy_tiles(const std::byte* w, int64_t row_bytes, int64_t columns, int64_t terms, std::byte* to) {
  const int64_t steps = ceil_div(terms, kStep);
  for (int64_t column = 0; column < kPairColumns; ++column) {
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

// Columns [begin, end) of a product: what a thread does at a time.
struct Block {
  const ThinProduct* product;
  IndexRange columns;
};

// Terms of a block's w or gate.
struct Piece {
  const TensorView* w;
  IndexRange columns;
  int64_t k, depth;
  const std::byte* at(int64_t column) const {
    return static_cast<const std::byte*>(w->raw()) + ((columns.begin + column) * w->stride(0) + k) * 2;
  }
};

struct Room {
  std::byte* copy;
  float* sums[2];
};

class Pass {
 public:
  Pass(const ThinGemm& args, IndexRange rows)
      : args_(args), rows_(rows), k_(args.x.extent(1)), sizes_(rows.size(), args.x.extent(1)) {
    for (const ThinProduct& product : args.products) {
      const int64_t columns = product.w.extent(0);
      for (int64_t begin = 0; begin < columns; begin += sizes_.block)
        blocks_.push_back({&product, {begin, std::min(columns, begin + sizes_.block)}});
    }
  }

  void run(Stream& stream, std::byte* scratch, bool gated) {
    x_ = scratch;
    pack_rows(stream);
    std::atomic<size_t> next{0};
    stream.team().run([&](int thread) {
      const AmxUnits units;
      std::byte* mine = scratch + sizes_.x_bytes() + thread * sizes_.room_bytes(gated);
      auto* sums = reinterpret_cast<float*>(mine + sizes_.copy_bytes());
      const Room room{mine, {sums, gated ? sums + sizes_.sums_floats() : nullptr}};
      size_t block = next++;
      while (block < blocks_.size()) {
        const size_t after = next++;
        multiply_block(blocks_[block], after < blocks_.size() ? &blocks_[after] : nullptr, room);
        block = after;
      }
    });
  }

 private:
  void pack_rows(Stream& stream) const {
    const TensorView x = args_.x.slice(0, rows_.begin, rows_.end);
    stream.team().parallel_for(sizes_.tiles * sizes_.steps, 16, [&](IndexRange range, int) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t row = i / sizes_.steps * kTileRows, term = i % sizes_.steps * kStep;
        pack_tile(x.data<BFloat16>() + row * x.stride(0) + term, x.stride(0), std::min(kTileRows, rows_.size() - row),
                  std::min(kStep, k_ - term), x_ + i * kTileBytes);
      }
    });
  }

  Ahead ahead(const Piece& next, int64_t turns) const {
    Ahead a;
    a.row = next.at(0);
    a.row_bytes = next.w->stride(0) * 2;
    a.lines = ceil_div(2 * next.depth, kLine);
    a.left = a.lines * next.columns.size();
    a.each = ceil_div(a.left, std::max<int64_t>(1, turns));
    return a;
  }

  void multiply_piece(const Piece& now, Ahead& ahead, const Room& room, float* sums) const {
    const int64_t row_bytes = now.w->stride(0) * 2;
    for (int64_t first = 0; first < now.columns.size(); first += kPairColumns) {
      const int64_t columns = std::min(kPairColumns, now.columns.size() - first);
      Task task{};
      task.steps = ceil_div(now.depth, kStep);
      task.begin = now.k == 0;
      if (rows_.size() <= kFewRows && columns == kPairColumns && now.depth % kStep == 0) {
        task.w[0] = now.at(first);
        task.w[1] = now.at(first + kTileRows);
        task.row_bytes = row_bytes;
        task.step_bytes = kLine;
      } else {
        copy_tiles(now.at(first), row_bytes, columns, now.depth, room.copy);
        task.w[0] = room.copy;
        task.w[1] = room.copy + kTileBytes;
        task.row_bytes = kLine;
        task.step_bytes = 2 * kTileBytes;
      }
      for (int64_t tile = 0; tile < sizes_.tiles; tile += 2) {
        for (int64_t i = 0; i < 2; ++i) {
          task.x[i] = x_ + ((tile + i) * sizes_.steps + now.k / kStep) * kTileBytes;
          for (int64_t half = 0; half < 2; ++half)
            task.sums[half][i] = sums + ((first / kTileRows + half) * sizes_.tiles + tile + i) * kTileFloats;
        }
        if (tile + 1 < sizes_.tiles) multiply<2>(task, ahead);
        else multiply<1>(task, ahead);
      }
    }
  }

  void multiply_block(const Block& block, const Block* after, const Room& room) const {
    std::vector<Piece> pieces;
    for (const TensorView* w : {&block.product->w, &block.product->gate}) {
      if (!*w) continue;
      for (int64_t k = 0; k < k_; k += kPiece) pieces.push_back({w, block.columns, k, std::min(kPiece, k_ - k)});
    }
    const size_t own = pieces.size();
    if (after != nullptr) pieces.push_back({&after->product->w, after->columns, 0, std::min(kPiece, k_)});
    const int64_t turns = ceil_div(block.columns.size(), kPairColumns) * ceil_div(sizes_.tiles, 2);
    for (size_t i = 0; i < own; ++i) {
      const Piece& now = pieces[i];
      Ahead asked;
      if (i + 1 < pieces.size()) asked = ahead(pieces[i + 1], turns * ceil_div(now.depth, kStep));
      multiply_piece(now, asked, room, room.sums[now.w == &block.product->w ? 0 : 1]);
    }
    // Not by with_compute_type(): what it throws would be compiled for this instruction set and linked for all.
    if (block.product->out.dtype() == DType::kBF16) finish<BFloat16>(block, room);
    else finish<float>(block, room);
  }

  template <typename Out>
  void finish(const Block& block, const Room& room) const {
    with_activation(block.product->activation,
                    [&](auto activation) { finish_as<Out, decltype(activation)::value>(block, room); });
  }

  // Sums are [column][row] in their tiles and go out the other way round.
  template <typename Out, Activation kActivation>
  void finish_as(const Block& block, const Room& room) const {
    const TensorView& out = block.product->out;
    const bool gated = static_cast<bool>(block.product->gate);
    const float* biases = block.product->bias ? block.product->bias.data<float>() + block.columns.begin : nullptr;
    const __m512i lines = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                             _mm512_set1_epi32(static_cast<int>(kTileRows)));
    for (int64_t first = 0; first < block.columns.size(); first += kTileRows) {
      const int64_t columns = std::min(kTileRows, block.columns.size() - first);
      simd::Floats bias = _mm512_setzero_ps();
      if (biases != nullptr) bias = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << columns) - 1), biases + first);
      for (int64_t row = 0; row < rows_.size(); ++row) {
        const int64_t at = (first / kTileRows * sizes_.tiles + row / kTileRows) * kTileFloats + row % kTileRows;
        simd::Floats value = _mm512_i32gather_ps(lines, room.sums[0] + at, sizeof(float));
        if (gated) value = value * simd::gelu_tanh(_mm512_i32gather_ps(lines, room.sums[1] + at, sizeof(float)));
        value = activation_vector<kActivation>(value + bias);
        Out* to = out.data<Out>() + (rows_.begin + row) * out.stride(0) + block.columns.begin + first;
        if (columns == kTileRows) simd::store(to, value);
        else simd::store(to, value, columns);
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
