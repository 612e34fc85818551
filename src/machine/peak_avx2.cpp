// Multiply-adds of AVX2 and FMA: 12 chains, 14 of the 16 registers.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

// Sums converge to b / (1 − a): no overflow, no subnormal.
struct Avx2 {
  using Vec = __m256;
  using Operand = __m256;
  static constexpr int kAccumulators = 12;
  [[gnu::always_inline]] static Vec accumulator(int i) { return _mm256_set1_ps(static_cast<float>(i)); }
  [[gnu::always_inline]] static Operand operand(int which) {
    Operand x = _mm256_set1_ps(which == 0 ? 0.5f : 0.25f);
    asm volatile("" : "+x"(x));  // a value the compiler does not know
    return x;
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) { return _mm256_fmadd_ps(sum, a, b); }
  [[gnu::always_inline]] static void keep(Vec& sum) { asm volatile("" : "+x"(sum)); }
};

}  // namespace

void avx2_multiply_adds(int64_t rounds) { run_multiply_adds<Avx2>(rounds); }

}  // namespace zoetrope::machine
