// The direct convolution on AMX, which multiplies sixteen pixels, 32 input channels and sixteen output channels at a
// time, reads the pixels directly from the frames, and sums in float32. AMX treats numbers below 2^-126 as zero.
//
// A tile is four rows of sixteen pixels times sixteen output channels: adjacent rows of output share rows of input, so
// 3×3 takes nine loads for twelve products. Two rows × 32 channels took ten and were 0 to 3 % of the peak slower, 32
// pixels × 32 channels took twelve and were 1 to 10 % slower. Taps are summed channels first, columns next, rows last,
// so that the inputs a column shares with the next are still in the L1 cache.
#include <immintrin.h>

#include <algorithm>

#include "kernels/amx_tiles.h"
#include "kernels/conv/direct.h"
#include "kernels/vector_math.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

constexpr int kChannels = 32;  // of inputs in an AMX tile
constexpr int64_t kTileBytes = int64_t{kAmxTileRows} * kAmxTileLine;
// AMX tiles by number: sums 0 to 3, a row each; weights 4; inputs 5 to 7.

void begin(const TileCall& call) {
  if (call.accumulate) {
    const auto stride = static_cast<size_t>(call.acc_stride) * sizeof(float);
    _tile_loadd(0, call.acc, stride);
    _tile_loadd(1, call.acc + call.acc_row, stride);
    _tile_loadd(2, call.acc + 2 * call.acc_row, stride);
    _tile_loadd(3, call.acc + 3 * call.acc_row, stride);
    return;
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void end(const TileCall& call) {
  const auto stride = static_cast<size_t>(call.acc_stride) * sizeof(float);
  _tile_stored(0, call.acc, stride);
  _tile_stored(1, call.acc + call.acc_row, stride);
  _tile_stored(2, call.acc + 2 * call.acc_row, stride);
  _tile_stored(3, call.acc + 3 * call.acc_row, stride);
}

// Stride 1: row r of the output takes row r + i of the input for tap i, so rows of output share their inputs.
template <int kRows>
void shared_tile(const TileCall& call) {
  static_assert(kRows == 2 || kRows == 3);
  const auto* weights = static_cast<const std::byte*>(call.weights);
  const auto pixel = static_cast<size_t>(call.pixel_stride) * sizeof(BFloat16);
  begin(call);
  for (int64_t frame = 0; frame < call.frames; ++frame) {
    const BFloat16* x[6];
    for (int i = 0; i < kRows + 3; ++i) x[i] = static_cast<const BFloat16*>(call.runs[frame * (kRows + 3) + i]);
    for (int64_t c = 0; c < call.channels; c += kChannels) {
      for (int64_t j = 0; j < call.kernel[1]; ++j) {
        call.overlapped(call.overlapped_work);
        const int64_t at = j * call.column_stride + c;
        _tile_loadd(4, weights, kAmxTileLine);
        _tile_loadd(5, x[0] + at, pixel);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, x[1] + at, pixel);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(7, x[2] + at, pixel);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, x[3] + at, pixel);
        _tile_dpbf16ps(3, 5, 4);
        _tile_loadd(4, weights + kTileBytes, kAmxTileLine);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 7, 4);
        _tile_dpbf16ps(2, 5, 4);
        _tile_loadd(6, x[4] + at, pixel);
        _tile_dpbf16ps(3, 6, 4);
        if constexpr (kRows == 3) {
          _tile_loadd(4, weights + 2 * kTileBytes, kAmxTileLine);
          _tile_dpbf16ps(0, 7, 4);
          _tile_dpbf16ps(1, 5, 4);
          _tile_dpbf16ps(2, 6, 4);
          _tile_loadd(7, x[5] + at, pixel);
          _tile_dpbf16ps(3, 7, 4);
        }
        weights += kRows * kTileBytes;
      }
    }
  }
  end(call);
}

// Any other stride or kernel.
void plain_tile(const TileCall& call) {
  const auto* weights = static_cast<const std::byte*>(call.weights);
  const auto pixel = static_cast<size_t>(call.pixel_stride) * sizeof(BFloat16);
  const int64_t step = call.row_stride;
  begin(call);
  for (int64_t frame = 0; frame < call.frames; ++frame) {
    const void* const* runs = call.runs + frame * (call.kernel[0] + 3 * step);
    for (int64_t c = 0; c < call.channels; c += kChannels) {
      for (int64_t j = 0; j < call.kernel[1]; ++j) {
        call.overlapped(call.overlapped_work);
        const int64_t at = j * call.column_stride + c;
        for (int64_t i = 0; i < call.kernel[0]; ++i, weights += kTileBytes) {
          _tile_loadd(4, weights, kAmxTileLine);
          _tile_loadd(5, static_cast<const BFloat16*>(runs[i]) + at, pixel);
          _tile_dpbf16ps(0, 5, 4);
          _tile_loadd(6, static_cast<const BFloat16*>(runs[i + step]) + at, pixel);
          _tile_dpbf16ps(1, 6, 4);
          _tile_loadd(7, static_cast<const BFloat16*>(runs[i + 2 * step]) + at, pixel);
          _tile_dpbf16ps(2, 7, 4);
          _tile_loadd(5, static_cast<const BFloat16*>(runs[i + 3 * step]) + at, pixel);
          _tile_dpbf16ps(3, 5, 4);
        }
      }
    }
  }
  end(call);
}

void amx_tile(const TileCall& call) {
  if (call.row_stride == 1 && call.kernel[0] == 3) return shared_tile<3>(call);
  if (call.row_stride == 1 && call.kernel[0] == 2) return shared_tile<2>(call);
  plain_tile(call);
}

using Lanes = __mmask16;
constexpr int64_t kLanes = 16;

inline __m512 widened(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
inline __m256i rounded(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

// x / (1 + e^−x), accurate to 2^-14, a 32nd of the rounding to bf16: 2^t for t = −x·log₂e from its whole part, which
// scalef() takes itself, and a minimax polynomial of degree 4 in the fraction over [0, 1) (3e-6, relative). Limits:
// reduce() of an infinity is 0; −inf is clamped to −104, for which 2^t is infinite and its reciprocal 0; NaN stays NaN
// (max returns its second operand).
inline __m512 silu(__m512 x) {
  const __m512 above = _mm512_max_ps(_mm512_set1_ps(-simd::kExpEnd), x);
  const __m512 t = _mm512_mul_ps(above, _mm512_set1_ps(-1.44269504f));
  const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.0135341678f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0520114601f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.241442755f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693003833f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.00000262f));
  return _mm512_mul_ps(above, _mm512_rcp14_ps(_mm512_add_ps(_mm512_scalef_ps(p, t), _mm512_set1_ps(1.0f))));
}

template <typename Body>
inline __attribute__((always_inline)) void for_lanes(int64_t channels, Body&& body) {
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + kLanes <= channels; i += kLanes) body(i, static_cast<Lanes>(0xffff));
  if (i < channels) body(i, static_cast<Lanes>((1u << (channels - i)) - 1));
}

// As direct_finish(), but with the CPU's rounding to bf16, without divisions, and for several pixels at a time: with
// one, the code after the norm would wait for it and delay the products that follow.
constexpr int64_t kTogether = 4;

struct Pixel {
  const float* acc;
  const BFloat16* add;  // nullptr: none
  BFloat16* kept;       // rounded sums
  BFloat16* normed;     // the same as `kept` where raw sums are not wanted, or nullptr
};

// The sum of squares, lane by lane.
inline __m512 add_up(const FinishCall& call, const Pixel& pixel) {
  __m512 squares = _mm512_setzero_ps();
  for_lanes(call.channels, [&](int64_t i, Lanes lanes) {
    __m512 y = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, pixel.acc + i), _mm512_loadu_ps(call.bias + i));
    if (pixel.add != nullptr) y = _mm512_add_ps(y, widened(_mm256_maskz_loadu_epi16(lanes, pixel.add + i)));
    const __m256i half = rounded(y);
    _mm256_mask_storeu_epi16(pixel.kept + i, lanes, half);
    y = widened(half);
    squares = _mm512_fmadd_ps(y, y, squares);
  });
  return squares;
}

inline void normalize(const FinishCall& call, const Pixel& pixel, float factor) {
  const __m512 scale = _mm512_set1_ps(factor);
  for_lanes(call.channels, [&](int64_t i, Lanes lanes) {
    const __m512 x = widened(_mm256_maskz_loadu_epi16(lanes, pixel.kept + i));
    __m512 y = _mm512_mul_ps(_mm512_mul_ps(x, scale), _mm512_loadu_ps(call.gamma + i));
    if (call.silu) y = silu(y);
    _mm256_mask_storeu_epi16(pixel.normed + i, lanes, rounded(y));
  });
}

void finish(const FinishCall& call) {
  const auto* add = static_cast<const BFloat16*>(call.add);
  auto *raw = static_cast<BFloat16*>(call.raw), *normed = static_cast<BFloat16*>(call.normed);
  for (int64_t first = 0; first < call.pixels; first += kTogether) {
    const int64_t count = std::min(kTogether, call.pixels - first);
    Pixel pixels[kTogether];
    alignas(16) float squares[kTogether] = {};
    for (int64_t i = 0; i < count; ++i) {
      const auto at = [&](auto* base, int64_t stride) {
        return base == nullptr ? nullptr : base + (first + i) * stride;
      };
      Pixel& pixel = pixels[i];
      pixel = {call.acc + (first + i) * call.acc_stride, at(add, call.add_stride), at(raw, call.raw_stride),
               at(normed, call.normed_stride)};
      if (pixel.kept == nullptr) pixel.kept = pixel.normed;
      squares[i] = _mm512_reduce_add_ps(add_up(call, pixel));
    }
    if (normed == nullptr) continue;
    // max returns its second operand where that is NaN.
    const __m128 norm = _mm_max_ps(_mm_set1_ps(1e-12f), _mm_sqrt_ps(_mm_load_ps(squares)));
    _mm_store_ps(squares, _mm_div_ps(_mm_set1_ps(call.root), norm));
    for (int64_t i = 0; i < count; ++i) normalize(call, pixels[i], squares[i]);
  }
}

void with_amx(void (*work)(void*), void* argument) {
  const AmxTiles tiles;
  work(argument);
}

}  // namespace

const DirectKernels& direct_amx() {
  static const DirectKernels kernels = [] {
    DirectKernels k{};
    k.rows = 4;
    k.depth = kChannels;
    k.lanes = kAmxTileRows;
    k.pixels = kAmxTileRows;
    k.vectors = 1;
    k.pair = 2;
    k.tile[0][0] = amx_tile;
    k.finish_bf16 = finish;
    k.with_amx = with_amx;
    return k;
  }();
  return kernels;
}

}  // namespace zoetrope::kernels
