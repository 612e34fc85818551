// Products with packed weights on matrix units. A panel of weights is 32 columns; x is brought into tiles of sixteen
// rows and 32 terms once a pass. Both come from the second-level cache, and 32 × 32 sums stay in four tiles over up to
// 2048 terms: what was measured is in docs/decisions.md.
#include "kernels/gemm/packed_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/index_range.h"
#include "kernels/amx_units.h"
#include "kernels/gemm/ahead.h"
#include "kernels/gemm/stored_rows.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kTile = kAmxTileRows, kLine = kAmxTileLine, kTileBytes = kTile * kLine;
constexpr int64_t kStep = 32;         // terms of a tile
constexpr int64_t kPair = 2 * kTile;  // rows of x that are multiplied together, and columns of a panel
constexpr int64_t kPairBytes = 2 * kTileBytes;
constexpr int64_t kSums = kPair * kPair;  // floats
constexpr int64_t kOwnSums = 2 * kSums;   // of a thread: one product's are finished while the next one's are made
static_assert(kAmxPanelColumns == kPair);

// A block of x is to stay in a second-level cache while panels pass it: of 512 rows 1.5 MiB at 1536 terms. Half as many
// rows, and 1024, 1536 or 4096 terms at most, differed by less than the scatter (3 %) at 8960 terms.
constexpr int64_t kBlockRows = 512;
constexpr int64_t kMostTerms = 2048;
constexpr int64_t kPassRows = 1024;  // for which x is brought into tiles at a time: bounds scratch

int64_t steps_of(int64_t k) { return ceil_div(k, kStep); }

// How a product is cut: passes over rows, of which each takes the terms in pieces, of which each is blocks of rows
// times panels.
struct Cut {
  int64_t pass_rows, block_rows;  // multiples of 32
  int64_t pieces, piece_steps;    // of terms

  Cut(int64_t rows, int64_t k) {
    const auto even = [](int64_t all, int64_t most) {
      return round_up(ceil_div(all, std::max<int64_t>(1, ceil_div(all, most))), kPair);
    };
    pass_rows = even(rows, kPassRows);
    block_rows = even(pass_rows, kBlockRows);
    pieces = ceil_div(k, kMostTerms);
    piece_steps = ceil_div(steps_of(k), pieces);
  }
  int64_t x_bytes() const { return pass_rows / kPair * piece_steps * kPairBytes; }
  // Those of a whole pass, where the terms take several pieces.
  int64_t sums_floats(int64_t panels) const { return pieces > 1 ? panels * pass_rows * kPair : 0; }
  size_t bytes(int64_t panels, int threads) const {
    const int64_t floats = kOwnSums * threads + sums_floats(panels);
    return static_cast<size_t>(x_bytes() + floats * 4);
  }
};

// What follows the product of rows whose sums are ready, where that is an activation: a row of it with each step of the
// next product hides beside the units (8960 columns with GELU take 0.86 of the time; with four or more rows at once all
// of that was lost). Without an activation it is done at once: beside the next product it lost 2 to 5 %.
struct Ends {
  decltype(PackedKernel::finish) finish = nullptr;
  Epilogue at;
  const float* sums = nullptr;
  int64_t left = 0, each = 0, columns = 0;  // rows; of them so many a step, which all steps of a product suffice for

  void some(int64_t rows) {
    finish(at, sums, kPair, rows, columns);
    at = moved(at, rows, 0);
    sums += rows * kPair;
    left -= rows;
  }
  void turn() {
    if (left > 0) some(std::min(each, left));
  }
  void all() {
    if (left > 0) some(left);
  }
};

// 32 columns times 16 or 32 rows; sums [rows][32].
struct Task {
  const std::byte *x, *w;
  int64_t steps;
  const float* from;  // or none: zeros
  float* to;
  Ahead out, residual, sums;  // what comes after the product
};

// kBeside: `before` is finished meanwhile. Only to ask whether there is something costs 2 % where there never is.
template <int kRowTiles, bool kBeside>
void multiply(Task& t, Ahead& weights, Ends& before) {
  constexpr int64_t kSumsLine = kPair * 4, kHalf = kTile, kLower = kTile * kPair;
  if (t.from == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kRowTiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, t.from, kSumsLine);
    _tile_loadd(1, t.from + kHalf, kSumsLine);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(2, t.from + kLower, kSumsLine);
      _tile_loadd(3, t.from + kLower + kHalf, kSumsLine);
    }
  }
  const std::byte *x = t.x, *w = t.w;
  for (int64_t step = 0; step < t.steps; ++step, x += kPairBytes, w += kPairBytes) {
    weights.ask<_MM_HINT_T1>();
    t.out.ask<_MM_HINT_T0>();
    t.residual.ask<_MM_HINT_T0>();
    t.sums.ask<_MM_HINT_T0>();
    // Loads first: where the core is shared they do not run beside products, and taking turns costs 12 % more.
    _tile_loadd(6, x, kLine);
    _tile_loadd(4, w, 2 * kLine);
    _tile_loadd(5, w + kLine, 2 * kLine);
    if constexpr (kRowTiles == 2) _tile_loadd(7, x + kTileBytes, kLine);
    _tile_dpbf16ps(0, 6, 4);
    _tile_dpbf16ps(1, 6, 5);
    if constexpr (kRowTiles == 2) {
      _tile_dpbf16ps(2, 7, 4);
      _tile_dpbf16ps(3, 7, 5);
    }
    if constexpr (kBeside) before.turn();
  }
  _tile_stored(0, t.to, kSumsLine);
  _tile_stored(1, t.to + kHalf, kSumsLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, t.to + kLower, kSumsLine);
    _tile_stored(3, t.to + kLower + kHalf, kSumsLine);
  }
}

// Terms [begin, begin + 32) of up to sixteen rows as a tile, zeros where there are none.
void copy_tile(const BFloat16* from, int64_t stride, int64_t rows, int64_t terms, std::byte* to) {
  const auto lanes = static_cast<__mmask32>(terms >= kStep ? ~0u : (1u << std::max<int64_t>(0, terms)) - 1);
  for (int64_t row = 0; row < kTile; ++row) {
    const __m512i line = row < rows ? _mm512_maskz_loadu_epi16(lanes, from + row * stride) : _mm512_setzero_si512();
    _mm512_store_si512(to + row * kLine, line);
  }
}

class Product {
 public:
  Product(const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue, decltype(PackedKernel::finish) finish)
      : x_(x),
        w_(w),
        epilogue_(epilogue),
        finish_(finish),
        cut_(x.extent(0), w.k),
        panels_(ceil_div(w.n, kPair)),
        steps_(steps_of(w.k)) {}

  void run(Stream& stream) {
    const Arena::Scope scope(stream.scratch());
    const int threads = stream.team().size();
    tiles_ = static_cast<std::byte*>(stream.scratch().allocate(cut_.bytes(panels_, threads)));
    own_ = reinterpret_cast<float*>(tiles_ + cut_.x_bytes());
    sums_ = own_ + kOwnSums * threads;
    const int64_t rows = x_.extent(0);
    for (int64_t row = 0; row < rows; row += cut_.pass_rows) {
      for (int64_t step = 0; step < steps_; step += cut_.piece_steps) {
        const Piece piece{{row, std::min(rows, row + cut_.pass_rows)},
                          {step, std::min(steps_, step + cut_.piece_steps)}};
        copy_rows(stream, piece);
        multiply_piece(stream, piece);
      }
    }
  }

 private:
  struct Piece {
    IndexRange rows, steps;
  };

  void copy_rows(Stream& stream, const Piece& piece) const {
    const int64_t tiles = ceil_div(piece.rows.size(), kPair) * 2;
    stream.team().parallel_for(tiles, 1, [&](IndexRange range, int) {
      for (int64_t tile = range.begin; tile < range.end; ++tile) {
        const int64_t row = piece.rows.begin + tile * kTile;
        std::byte* to = tiles_ + tile / 2 * piece.steps.size() * kPairBytes + tile % 2 * kTileBytes;
        for (int64_t step = piece.steps.begin; step < piece.steps.end; ++step, to += kPairBytes) {
          copy_tile(x_.data<BFloat16>() + row * x_.stride(0) + step * kStep, x_.stride(0), piece.rows.end - row,
                    w_.k - step * kStep, to);
        }
      }
    });
  }

  struct Worker {
    float* own;
    Ends before = {};
    int64_t turn = 0;
  };

  // Items are a block of rows times a panel, panels first: the block stays while they pass.
  void multiply_piece(Stream& stream, const Piece& piece) const {
    const int64_t items = ceil_div(piece.rows.size(), cut_.block_rows) * panels_;
    std::atomic<int64_t> next = 0;
    stream.team().run([&](int thread) {
      const AmxUnits units;
      Worker worker{own_ + thread * kOwnSums};
      for (int64_t item = next++; item < items; item = next++)
        multiply_block(piece, item / panels_ * cut_.block_rows, item % panels_, worker);
      worker.before.all();
    });
  }

  const std::byte* panel(int64_t index, int64_t step) const { return w_.data + (index * steps_ + step) * kPairBytes; }

  void multiply_block(const Piece& piece, int64_t first, int64_t index, Worker& worker) const {
    const int64_t rows = std::min(cut_.block_rows, piece.rows.size() - first), pairs = ceil_div(rows, kPair);
    const int64_t columns = std::min(kPair, w_.n - index * kPair), steps = piece.steps.size();
    const bool begin = piece.steps.begin == 0, end = piece.steps.end == steps_;
    const bool beside = end && epilogue_.activation != Activation::kNone;
    float* kept = cut_.pieces > 1 ? sums_ + (index * cut_.pass_rows + first) * kPair : nullptr;
    Ahead weights(panel((index + 1) % panels_, piece.steps.begin), 0, steps * kPairBytes, 1, steps * pairs);
    Task task{};
    task.w = panel(index, piece.steps.begin);
    task.steps = steps;
    for (int64_t row = 0; row < rows; row += kPair) {
      const int64_t here = std::min(kPair, rows - row);
      task.x = tiles_ + (first + row) / kPair * steps * kPairBytes;
      task.to = kept != nullptr && !beside ? kept + row * kPair : worker.own + worker.turn++ % 2 * kSums;
      task.from = begin ? nullptr : kept + row * kPair;
      const Epilogue ends = moved(epilogue_, piece.rows.begin + first + row, index * kPair);
      if (end) ask_for_ends(task, ends, here, columns);
      if (kept != nullptr && row + kPair < rows)
        task.sums = Ahead(kept + (row + kPair) * kPair, 0, kSums * 4, 1, steps);
      if (beside) {
        if (here > kTile) multiply<2, true>(task, weights, worker.before);
        else multiply<1, true>(task, weights, worker.before);
        worker.before = {finish_, ends, task.to, here, ceil_div(kPair, steps), columns};
      } else {
        if (here > kTile) multiply<2, false>(task, weights, worker.before);
        else multiply<1, false>(task, weights, worker.before);
        if (end) finish_(ends, task.to, kPair, here, columns);
      }
    }
  }

  // Rows of out stand kilobytes apart: met unasked, each is a miss, a third of the time at 1536 terms.
  static void ask_for_ends(Task& task, const Epilogue& ends, int64_t rows, int64_t columns) {
    const auto element = static_cast<int64_t>(dtype_size(ends.out_dtype)), width = columns * element;
    task.out = Ahead(ends.out, ends.out_stride * element, width, rows, task.steps);
    if (ends.residual != nullptr && ends.residual != ends.out)
      task.residual = Ahead(ends.residual, ends.residual_stride * element, width, rows, task.steps);
  }

  TensorView x_;
  const PackedMatrix& w_;
  const Epilogue& epilogue_;
  decltype(PackedKernel::finish) finish_;
  Cut cut_;
  int64_t panels_, steps_;
  std::byte* tiles_ = nullptr;  // of x: [pair of tiles][step][2][16][32]
  float *own_ = nullptr, *sums_ = nullptr;
};

}  // namespace

size_t amx_packed_bytes(const PackedMatrix& matrix) {
  return static_cast<size_t>(ceil_div(matrix.n, kPair) * steps_of(matrix.k) * kPairBytes);
}

void amx_pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out) {
  const PairBlocks blocks{kPair, kPairBytes / 2, steps_of(matrix.k) * kPairBytes / 2};
  StoredRows(stored, matrix.k).pack(0, matrix.n, blocks, reinterpret_cast<BFloat16*>(out));
}

int64_t amx_packed_index(const PackedMatrix& matrix, int64_t n, int64_t k) {
  const int64_t step = n / kPair * steps_of(matrix.k) + k / kStep;
  return step * kPairBytes / 2 + k % kStep / 2 * kLine + n % kPair * 2 + k % 2;
}

void amx_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                     decltype(PackedKernel::finish) finish) {
  Product(x, w, epilogue, finish).run(stream);
}

size_t amx_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads) {
  return Cut(rows, w.k).bytes(ceil_div(w.n, kPair), threads);
}

}  // namespace zoetrope::kernels
