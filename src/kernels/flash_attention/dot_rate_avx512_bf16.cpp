#include <immintrin.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/flash_attention/dot_rate.h"

namespace zoetrope::kernels {
namespace {

constexpr int kChains = 16;  // more than latency × throughput of either instruction
constexpr int kRounds = 100;
// Of each instruction, in turns: the first ones pass while the core still raises its power for long vectors. The
// shortest counts: an interrupt makes a window long, nothing makes it short.
constexpr int kWindows = 128;

// Ticks of kRounds · kChains instructions.
template <typename Step>
inline __attribute__((always_inline)) uint64_t window(Step&& step) {
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    acc[i] = _mm512_setzero_ps();
    asm volatile("" : "+v"(acc[i]));  // or the compiler sees sixteen chains of one value, and keeps one
  }
  const uint64_t begin = __rdtsc();
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = step(acc[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) asm volatile("" ::"v"(acc[i]));
  return __rdtsc() - begin;
}

}  // namespace

double measure_bf16_dot_rate() {
  __m512 one = _mm512_set1_ps(1.0f);
  __m512i pairs = _mm512_set1_epi32(0x3f803f80);
  asm volatile("" : "+v"(one), "+v"(pairs));
  uint64_t fma = UINT64_MAX, dot = UINT64_MAX;
  for (int turn = 0; turn < kWindows; ++turn) {
    fma = std::min(fma, window([&](__m512 x) { return _mm512_fmadd_ps(one, one, x); }));
    dot = std::min(dot, window([&](__m512 x) { return _mm512_dpbf16_ps(x, (__m512bh)pairs, (__m512bh)pairs); }));
  }
  return 2.0 * static_cast<double>(fma) / static_cast<double>(dot);
}

}  // namespace zoetrope::kernels
