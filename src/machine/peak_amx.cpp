// Products of tiles with AMX: 6 chains, each instruction 16 × 16 × 32 products of bf16 into float32 (tdpbf16ps), or
// 16 × 16 × 64 of int8 into int32 (tdpbsud).
#include <immintrin.h>

#include "kernels/amx_tiles.h"
#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

constexpr int kChains = 6;
static_assert(kPeakRound % kChains == 0);

void add_bf16() {
  _tile_dpbf16ps(0, 6, 7);
  _tile_dpbf16ps(1, 6, 7);
  _tile_dpbf16ps(2, 6, 7);
  _tile_dpbf16ps(3, 6, 7);
  _tile_dpbf16ps(4, 6, 7);
  _tile_dpbf16ps(5, 6, 7);
}

void add_int8() {
  _tile_dpbsud(0, 6, 7);
  _tile_dpbsud(1, 6, 7);
  _tile_dpbsud(2, 6, 7);
  _tile_dpbsud(3, 6, 7);
  _tile_dpbsud(4, 6, 7);
  _tile_dpbsud(5, 6, 7);
}

struct alignas(64) Operand {
  uint32_t values[256];
};

constexpr Operand filled(uint32_t value) {
  Operand operand{};
  for (uint32_t& one : operand.values) one = value;
  return operand;
}

template <void (*kAdd)()>
void run(const Operand& a, const Operand& b, int64_t rounds) {
  const kernels::AmxTiles tiles;
  _tile_loadd(6, a.values, 64);
  _tile_loadd(7, b.values, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds * (kPeakRound / kChains); ++i) kAdd();
}

}  // namespace

void amx_bf16_multiply_adds(int64_t rounds) {
  // Pairs whose two products cancel (0.5 · 0.25 − 0.5 · 0.25), so that sums stay zero.
  static constexpr Operand kA = filled(0x3f003f00), kB = filled(0x3e80be80);
  run<add_bf16>(kA, kB, rounds);
}

void amx_int8_multiply_adds(int64_t rounds) {
  static constexpr Operand kA = filled(0x03030303), kB = filled(0x05050505);
  run<add_int8>(kA, kB, rounds);
}

}  // namespace zoetrope::machine
