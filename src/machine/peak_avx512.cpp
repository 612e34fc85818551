// Multiply-adds of AVX-512: 24 chains.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

// Sums converge to b / (1 − a): no overflow, no subnormal.
struct Avx512 {
  using Vec = __m512;
  using Operand = __m512;
  static constexpr int kAccumulators = 24;
  [[gnu::always_inline]] static Vec accumulator(int i) { return _mm512_set1_ps(static_cast<float>(i)); }
  [[gnu::always_inline]] static Operand operand(int which) {
    Operand x = _mm512_set1_ps(which == 0 ? 0.5f : 0.25f);
    asm volatile("" : "+v"(x));  // a value the compiler does not know
    return x;
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) { return _mm512_fmadd_ps(sum, a, b); }
  [[gnu::always_inline]] static void keep(Vec& sum) { asm volatile("" : "+v"(sum)); }
};

}  // namespace

void avx512_multiply_adds(int64_t rounds) { run_multiply_adds<Avx512>(rounds); }

}  // namespace zoetrope::machine
