// Products of bf16 pairs into float32 (vdpbf16ps): 24 chains.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

// The two products of a pair cancel (0.5 · 0.25 − 0.5 · 0.25), so sums stay where they are.
struct Avx512Bf16 {
  using Vec = __m512;
  using Operand = __m512bh;
  static constexpr int kAccumulators = 24;
  [[gnu::always_inline]] static Vec accumulator(int i) { return _mm512_set1_ps(static_cast<float>(i)); }
  [[gnu::always_inline]] static Operand operand(int which) {
    Operand x = (__m512bh)_mm512_set1_epi32(which == 0 ? 0x3f003f00 : 0x3e80be80);
    asm volatile("" : "+v"(x));  // a value the compiler does not know
    return x;
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) { return _mm512_dpbf16_ps(sum, a, b); }
  [[gnu::always_inline]] static void keep(Vec& sum) { asm volatile("" : "+v"(sum)); }
};

}  // namespace

void avx512_bf16_multiply_adds(int64_t rounds) { run_multiply_adds<Avx512Bf16>(rounds); }

}  // namespace zoetrope::machine
