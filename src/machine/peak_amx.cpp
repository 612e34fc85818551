// Products of bf16 tiles into float32 with AMX (tdpbf16ps): 6 chains, each instruction 16 × 16 × 32 products.
#include <immintrin.h>

#include "kernels/amx_units.h"
#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

constexpr int kChains = 6;
static_assert(kPeakRound % kChains == 0);

}  // namespace

void amx_bf16_multiply_adds(int64_t rounds) {
  // Pairs whose two products cancel (0.5 · 0.25 − 0.5 · 0.25), so that sums stay zero.
  alignas(64) static const auto operands = [] {
    struct {
      uint32_t a[256], b[256];
    } pairs{};
    for (int i = 0; i < 256; ++i) {
      pairs.a[i] = 0x3f003f00;
      pairs.b[i] = 0x3e80be80;
    }
    return pairs;
  }();
  const kernels::AmxUnits units;
  _tile_loadd(6, operands.a, 64);
  _tile_loadd(7, operands.b, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds * (kPeakRound / kChains); ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
}

}  // namespace zoetrope::machine
