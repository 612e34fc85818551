// Products of two int16 into int32 and their addition (vpmaddwd, vpaddd), as AVX2 multiplies int8: 8 chains. Four
// products come before their four sums: one after the other, Zen 3 gives a fifth of the multipliers' cycles to
// additions.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

struct Avx2Int8 {
  static constexpr int kVectors = 4;
  struct Vec {
    __m256i of[kVectors];
  };
  using Operand = __m256i;
  static constexpr int kAccumulators = 2;
  [[gnu::always_inline]] static Vec accumulator(int i) {
    const __m256i x = _mm256_set1_epi32(i);
    return {x, x, x, x};
  }
  [[gnu::always_inline]] static Operand operand(int which) { return _mm256_set1_epi16(which == 0 ? 3 : 5); }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) {
    __m256i products[kVectors];
#pragma GCC unroll 4
    for (__m256i& product : products)  // the compiler must not know that they are the same
      asm volatile("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(a), "x"(b));
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) asm volatile("vpaddd %1, %0, %0" : "+x"(sum.of[i]) : "x"(products[i]));
    return sum;
  }
  [[gnu::always_inline]] static void keep(Vec& sum) {
    for (__m256i& x : sum.of) asm volatile("" : "+x"(x));
  }
};

}  // namespace

void avx2_int8_multiply_adds(int64_t rounds) { run_multiply_adds<Avx2Int8>(rounds); }

}  // namespace zoetrope::machine
