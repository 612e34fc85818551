// The direct convolution on matrix units (AMX), which multiply sixteen pixels, 32 input channels and sixteen output
// channels at a time, read the pixels where they lie in the frames, and sum in float32. Numbers below 2^-126 count as
// zero, as the units have it.
//
// A tile is two rows of sixteen pixels times 32 output channels: four units of sums, 64 cycles between two additions to
// one of them, which take 52. The rows lie above one another and not side by side because the lower one's upper taps
// are the upper one's lower ones: for 3×3 that spares two of twelve loads. Taps are summed channels first, columns
// next, rows last, so that what a column shares with the next is still in the first cache level. Weights come from the
// second at half of what it gives.
#include <immintrin.h>

#include "kernels/amx_units.h"
#include "kernels/conv/direct.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

constexpr int kChannels = 32;  // of inputs in a unit
constexpr int64_t kUnitBytes = int64_t{kAmxTileRows} * kAmxTileLine;
// Units by number: sums 0 to 3 ([row][half of the output channels]), inputs 4 and 5, weights 6 and 7.

template <int kVectors>
void begin() {
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kVectors == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
}

template <int kVectors>
void end(const TileCall& call) {
  const auto stride = static_cast<size_t>(call.acc_stride) * sizeof(float);
  _tile_stored(0, call.acc, stride);
  _tile_stored(2, call.acc + call.acc_row, stride);
  if constexpr (kVectors == 2) {
    _tile_stored(1, call.acc + kAmxTileRows, stride);
    _tile_stored(3, call.acc + call.acc_row + kAmxTileRows, stride);
  }
}

#define ZT_AMX_WEIGHTS(at)            \
  _tile_loadd(6, (at), kAmxTileLine); \
  if constexpr (kVectors == 2) _tile_loadd(7, (at) + kUnitBytes, kAmxTileLine)
#define ZT_AMX_UPPER(inputs)    \
  _tile_dpbf16ps(0, inputs, 6); \
  if constexpr (kVectors == 2) _tile_dpbf16ps(1, inputs, 7)
#define ZT_AMX_LOWER(inputs)    \
  _tile_dpbf16ps(2, inputs, 6); \
  if constexpr (kVectors == 2) _tile_dpbf16ps(3, inputs, 7)

// Rows of taps that two rows of output share.
template <int kVectors, int kRows>
void shared_tile(const TileCall& call) {
  static_assert(kRows == 2 || kRows == 3);
  constexpr int64_t kStep = kVectors * kUnitBytes;
  const auto* weights = static_cast<const std::byte*>(call.weights);
  const auto pixel = static_cast<size_t>(call.pixel_stride) * sizeof(BFloat16);
  begin<kVectors>();
  for (int64_t frame = 0; frame < call.frames; ++frame) {
    const void* const* runs = call.runs + frame * (kRows + 1);
    const auto *x0 = static_cast<const BFloat16*>(runs[0]), *x1 = static_cast<const BFloat16*>(runs[1]),
               *x2 = static_cast<const BFloat16*>(runs[2]), *x3 = static_cast<const BFloat16*>(runs[kRows]);
    for (int64_t c = 0; c < call.channels; c += kChannels) {
      for (int64_t j = 0; j < call.kernel[1]; ++j) {
        const int64_t at = j * call.channels + c;
        _tile_loadd(4, x0 + at, pixel);
        ZT_AMX_WEIGHTS(weights);
        ZT_AMX_UPPER(4);
        _tile_loadd(5, x1 + at, pixel);
        ZT_AMX_LOWER(5);
        weights += kStep;
        ZT_AMX_WEIGHTS(weights);
        ZT_AMX_UPPER(5);
        _tile_loadd(4, x2 + at, pixel);
        ZT_AMX_LOWER(4);
        weights += kStep;
        if constexpr (kRows == 3) {
          ZT_AMX_WEIGHTS(weights);
          ZT_AMX_UPPER(4);
          _tile_loadd(5, x3 + at, pixel);
          ZT_AMX_LOWER(5);
          weights += kStep;
        }
      }
    }
  }
  end<kVectors>(call);
}

// Any other.
template <int kVectors>
void plain_tile(const TileCall& call) {
  constexpr int64_t kStep = kVectors * kUnitBytes;
  const auto* weights = static_cast<const std::byte*>(call.weights);
  const auto pixel = static_cast<size_t>(call.pixel_stride) * sizeof(BFloat16);
  begin<kVectors>();
  for (int64_t frame = 0; frame < call.frames; ++frame) {
    const void* const* runs = call.runs + frame * (call.kernel[0] + call.row_stride);
    for (int64_t c = 0; c < call.channels; c += kChannels) {
      for (int64_t j = 0; j < call.kernel[1]; ++j) {
        const int64_t at = j * call.channels + c;
        for (int64_t i = 0; i < call.kernel[0]; ++i) {
          _tile_loadd(4, static_cast<const BFloat16*>(runs[i]) + at, pixel);
          ZT_AMX_WEIGHTS(weights);
          ZT_AMX_UPPER(4);
          _tile_loadd(5, static_cast<const BFloat16*>(runs[i + call.row_stride]) + at, pixel);
          ZT_AMX_LOWER(5);
          weights += kStep;
        }
      }
    }
  }
  end<kVectors>(call);
}

template <int kVectors>
void amx_tile(const TileCall& call) {
  if (call.row_stride == 1 && call.kernel[0] == 3) return shared_tile<kVectors, 3>(call);
  if (call.row_stride == 1 && call.kernel[0] == 2) return shared_tile<kVectors, 2>(call);
  plain_tile<kVectors>(call);
}

void with_units(void (*work)(void*), void* argument) {
  const AmxUnits units;
  work(argument);
}

}  // namespace

// The ends of rows are those of AVX-512, compiled there, as for direct_avx512_bf16().
const DirectKernels& direct_amx() {
  static const DirectKernels kernels = [] {
    DirectKernels k{};
    k.rows = 2;
    k.depth = kChannels;
    k.lanes = kAmxTileRows;
    k.pixels = kAmxTileRows;
    k.vectors = 2;
    k.pair = 2;
    k.tile[0][0] = amx_tile<1>;
    k.tile[0][1] = amx_tile<2>;
    k.finish_f32 = direct_avx512().finish_f32;
    k.finish_bf16 = direct_avx512().finish_bf16;
    k.widen = direct_avx512().widen;
    k.with_units = with_units;
    return k;
  }();
  return kernels;
}

}  // namespace zoetrope::kernels
