// The loops that peak.cpp times, one small file per instruction set. Each call does `rounds` × kPeakRound
// independent multiply_add() of its set, on registers. Call them only if the CPU has the instructions.
#pragma once

#include <cstdint>

namespace zoetrope::machine {

// multiply_add() per round; a multiple of each file's accumulators.
inline constexpr int64_t kPeakRound = 48;

void avx2_multiply_adds(int64_t rounds);
void avx512_multiply_adds(int64_t rounds);
void avx512_bf16_multiply_adds(int64_t rounds);
void avx512_vnni_multiply_adds(int64_t rounds);
void avx_vnni_multiply_adds(int64_t rounds);
void avx2_int8_multiply_adds(int64_t rounds);
// In a loop of their own: tiles are no values.
void amx_bf16_multiply_adds(int64_t rounds);
void amx_int8_multiply_adds(int64_t rounds);

// The loop itself: kAccumulators chains, more than latency × instructions per cycle of any core so far (6 × 2 for
// vdpbf16ps), and few enough to stay in registers together with the operands. `Set` has Vec, Operand, accumulator(),
// operand(), multiply_add() and keep(). A template, so that every file compiles its own with its own flags.
template <typename Set>
[[gnu::always_inline]] inline void run_multiply_adds(int64_t rounds) {
  static_assert(kPeakRound % Set::kAccumulators == 0);
  typename Set::Vec sum[Set::kAccumulators];
#pragma GCC unroll 24
  for (int i = 0; i < Set::kAccumulators; ++i) sum[i] = Set::accumulator(i);
  const typename Set::Operand a = Set::operand(0), b = Set::operand(1);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 4
    for (int part = 0; part < kPeakRound / Set::kAccumulators; ++part) {
#pragma GCC unroll 24
      for (int i = 0; i < Set::kAccumulators; ++i) sum[i] = Set::multiply_add(sum[i], a, b);
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < Set::kAccumulators; ++i) Set::keep(sum[i]);
}

}  // namespace zoetrope::machine
