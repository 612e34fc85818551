// Matrix multiplication with packed weights on AMX. A panel of weights is 32 columns; x is packed into tiles of sixteen
// rows and 32 terms once per pass. Both are read from the L2 cache, and 32 × 32 sums stay in four tiles over up to 2048
// terms. Four products (65 536 operations) with their loads take 30.1 ns with zeros and 36.6 ns with random operands,
// the products alone 22.9 and 27.8. Tried and slower, in ns: weights in the first level with sums through memory (32 to
// 39), lines prefetched by hand (32 to 47), pages of 4 KiB (53).
#include "kernels/gemm/packed_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/index_range.h"
#include "kernels/amx_tiles.h"
#include "kernels/gemm/prefetch.h"
#include "kernels/gemm/stored_rows.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kTile = kAmxTileRows, kLine = kAmxTileLine, kTileBytes = kTile * kLine;
constexpr int64_t kStep = 32;         // terms of a tile
constexpr int64_t kPair = 2 * kTile;  // rows of x that are multiplied together, and columns of a panel
constexpr int64_t kPairBytes = 2 * kTileBytes;
constexpr int64_t kSums = kPair * kPair;    // floats
constexpr int64_t kThreadSums = 2 * kSums;  // of a thread: one block's sums are finished while the next are computed
static_assert(kAmxPanelColumns == kPair);

// A block of x should stay in the L2 cache while it is multiplied with all panels: 512 rows of 1536 terms are 1.5 MiB.
// Half as many rows, and 1024, 1536 or 4096 terms at most, differed by less than the measurement noise (3 %) at 8960
// terms.
constexpr int64_t kBlockRows = 512;
constexpr int64_t kMostTerms = 2048;
constexpr int64_t kPassRows = 1024;  // packed into tiles at a time: bounds scratch

int64_t steps_of(int64_t k) { return ceil_div(k, kStep); }

// A multiplication is divided into passes over rows, a pass into pieces of terms, a piece into blocks of rows × panels.
struct Tiling {
  int64_t pass_rows, block_rows;  // multiples of 32
  int64_t pieces, piece_steps;    // of terms

  Tiling(int64_t rows, int64_t k) {
    const auto even = [](int64_t all, int64_t most) {
      return round_up(ceil_div(all, std::max<int64_t>(1, ceil_div(all, most))), kPair);
    };
    pass_rows = even(rows, kPassRows);
    block_rows = even(pass_rows, kBlockRows);
    pieces = ceil_div(k, kMostTerms);
    piece_steps = ceil_div(steps_of(k), pieces);
  }
  int64_t x_bytes() const { return pass_rows / kPair * piece_steps * kPairBytes; }
  // Of a whole pass, where there are several pieces.
  int64_t sums_floats(int64_t panels) const { return pieces > 1 ? panels * pass_rows * kPair : 0; }
  size_t bytes(int64_t panels, int threads) const {
    const int64_t floats = kThreadSums * threads + sums_floats(panels);
    return static_cast<size_t>(x_bytes() + floats * 4);
  }
};

// The epilogue of a block whose sums are ready, where it has an activation: a row of it with each step of the next
// multiplication runs in parallel with AMX (8960 columns with GELU take 0.86 of the time; with four or more rows at
// once all of that was lost). Without an activation it runs at once: during the next multiplication it lost 2 to 5 %.
struct PendingEpilogue {
  decltype(PackedKernel::finish) finish = nullptr;
  Epilogue at;
  const float* sums = nullptr;
  int64_t left = 0, each = 0, columns = 0;  // rows: of all, and per step, so that the steps of one block suffice

  void finish_rows(int64_t rows) {
    finish(at, sums, kPair, rows, columns);
    at = moved(at, rows, 0);
    sums += rows * kPair;
    left -= rows;
  }
  void step() {
    if (left > 0) finish_rows(std::min(each, left));
  }
  void finish_all() {
    if (left > 0) finish_rows(left);
  }
};

// 32 columns times 16 or 32 rows; sums [rows][32].
struct Task {
  const std::byte *x, *w;
  int64_t steps;
  const float* from;  // null: zeros
  float* to;
  Prefetch out, residual, sums;  // needed after the multiplication
};

// kPipelined: `before` is finished at the same time. The check for it alone costs 2 % where there never is one.
template <int kRowTiles, bool kPipelined>
void multiply(Task& t, Prefetch& weights, PendingEpilogue& before) {
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
    weights.step<Prefetch::kIntoL2>();
    t.out.step<Prefetch::kIntoL1>();
    t.residual.step<Prefetch::kIntoL1>();
    t.sums.step<Prefetch::kIntoL1>();
    // Loads first: where two threads share the core they do not overlap with products, and alternating costs 12 % more.
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
    if constexpr (kPipelined) before.step();
  }
  _tile_stored(0, t.to, kSumsLine);
  _tile_stored(1, t.to + kHalf, kSumsLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, t.to + kLower, kSumsLine);
    _tile_stored(3, t.to + kLower + kHalf, kSumsLine);
  }
}

// Up to sixteen rows and 32 terms as a tile; zeros beyond.
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
        tiling_(x.extent(0), w.k),
        panels_(ceil_div(w.n, kPair)),
        steps_(steps_of(w.k)) {}

  void run(Stream& stream) {
    const Arena::Scope scope(stream.scratch());
    const int threads = stream.team().size();
    tiles_ = static_cast<std::byte*>(stream.scratch().allocate(tiling_.bytes(panels_, threads)));
    thread_sums_ = reinterpret_cast<float*>(tiles_ + tiling_.x_bytes());
    sums_ = thread_sums_ + kThreadSums * threads;
    const int64_t rows = x_.extent(0);
    for (int64_t row = 0; row < rows; row += tiling_.pass_rows) {
      for (int64_t step = 0; step < steps_; step += tiling_.piece_steps) {
        const Piece piece{{row, std::min(rows, row + tiling_.pass_rows)},
                          {step, std::min(steps_, step + tiling_.piece_steps)}};
        pack_rows(stream, piece);
        multiply_piece(stream, piece);
      }
    }
  }

 private:
  struct Piece {
    IndexRange rows, steps;
  };

  void pack_rows(Stream& stream, const Piece& piece) const {
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
    float* sums;  // two blocks', used alternately
    PendingEpilogue before = {};
    int64_t blocks = 0;
  };

  // Items are a block of rows times a panel, panels first: the block stays in the cache.
  void multiply_piece(Stream& stream, const Piece& piece) const {
    const int64_t items = ceil_div(piece.rows.size(), tiling_.block_rows) * panels_;
    std::atomic<int64_t> next = 0;
    stream.team().run([&](int thread) {
      const AmxTiles tiles;
      Worker worker{thread_sums_ + thread * kThreadSums};
      for (int64_t item = next++; item < items; item = next++)
        multiply_block(piece, item / panels_ * tiling_.block_rows, item % panels_, worker);
      worker.before.finish_all();
    });
  }

  const std::byte* panel(int64_t index, int64_t step) const { return w_.data + (index * steps_ + step) * kPairBytes; }

  void multiply_block(const Piece& piece, int64_t first, int64_t index, Worker& worker) const {
    const int64_t rows = std::min(tiling_.block_rows, piece.rows.size() - first), pairs = ceil_div(rows, kPair);
    const int64_t columns = std::min(kPair, w_.n - index * kPair), steps = piece.steps.size();
    const bool begin = piece.steps.begin == 0, end = piece.steps.end == steps_;
    const bool pipelined = end && epilogue_.activation != Activation::kNone;
    float* kept = tiling_.pieces > 1 ? sums_ + (index * tiling_.pass_rows + first) * kPair : nullptr;
    Prefetch weights(panel((index + 1) % panels_, piece.steps.begin), 0, steps * kPairBytes, 1, steps * pairs);
    Task task{};
    task.w = panel(index, piece.steps.begin);
    task.steps = steps;
    for (int64_t row = 0; row < rows; row += kPair) {
      const int64_t here = std::min(kPair, rows - row);
      task.x = tiles_ + (first + row) / kPair * steps * kPairBytes;
      task.to = kept != nullptr && !pipelined ? kept + row * kPair : worker.sums + worker.blocks++ % 2 * kSums;
      task.from = begin ? nullptr : kept + row * kPair;
      const Epilogue epilogue = moved(epilogue_, piece.rows.begin + first + row, index * kPair);
      if (end) prefetch_epilogue(task, epilogue, here, columns);
      if (kept != nullptr && row + kPair < rows)
        task.sums = Prefetch(kept + (row + kPair) * kPair, 0, kSums * 4, 1, steps);
      if (pipelined) {
        if (here > kTile) multiply<2, true>(task, weights, worker.before);
        else multiply<1, true>(task, weights, worker.before);
        worker.before = {finish_, epilogue, task.to, here, ceil_div(kPair, steps), columns};
      } else {
        if (here > kTile) multiply<2, false>(task, weights, worker.before);
        else multiply<1, false>(task, weights, worker.before);
        if (end) finish_(epilogue, task.to, kPair, here, columns);
      }
    }
  }

  // Rows of out are kilobytes apart: without a prefetch each is a cache miss, a third of the time at 1536 terms.
  static void prefetch_epilogue(Task& task, const Epilogue& e, int64_t rows, int64_t columns) {
    const auto element = static_cast<int64_t>(dtype_size(e.out_dtype)), width = columns * element;
    task.out = Prefetch(e.out, e.out_stride * element, width, rows, task.steps);
    if (e.residual != nullptr && e.residual != e.out)
      task.residual = Prefetch(e.residual, e.residual_stride * element, width, rows, task.steps);
  }

  TensorView x_;
  const PackedMatrix& w_;
  const Epilogue& epilogue_;
  decltype(PackedKernel::finish) finish_;
  Tiling tiling_;
  int64_t panels_, steps_;
  std::byte* tiles_ = nullptr;  // of x: [pair of tiles][step][2][16][32]
  float *thread_sums_ = nullptr, *sums_ = nullptr;
};

}  // namespace

size_t amx_packed_bytes(const PackedMatrix& matrix) {
  return static_cast<size_t>(ceil_div(matrix.n, kPair) * steps_of(matrix.k) * kPairBytes);
}

void amx_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix, std::byte* out) {
  const PairBlocks blocks{kPair, kPairBytes / 2, steps_of(matrix.k) * kPairBytes / 2};
  auto* const to = reinterpret_cast<BFloat16*>(out) + rows.begin / kPair * blocks.column_stride;
  StoredRows(stored, matrix.k).pack(0, rows.size(), blocks, to);
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
  return Tiling(rows, w.k).bytes(ceil_div(w.n, kPair), threads);
}

}  // namespace zoetrope::kernels
