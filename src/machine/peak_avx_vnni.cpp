// Products of four int8 into int32 (vpdpbusd), 256 bits: 12 chains.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

struct AvxVnni {
  using Vec = __m256i;
  using Operand = __m256i;
  static constexpr int kAccumulators = 12;
  [[gnu::always_inline]] static Vec accumulator(int i) { return _mm256_set1_epi32(i); }
  [[gnu::always_inline]] static Operand operand(int which) {
    Operand x = _mm256_set1_epi8(which == 0 ? 3 : 5);
    asm volatile("" : "+x"(x));  // a value the compiler does not know
    return x;
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) {
    return _mm256_dpbusd_avx_epi32(sum, a, b);
  }
  [[gnu::always_inline]] static void keep(Vec& sum) { asm volatile("" : "+x"(sum)); }
};

}  // namespace

void avx_vnni_multiply_adds(int64_t rounds) { run_multiply_adds<AvxVnni>(rounds); }

}  // namespace zoetrope::machine
