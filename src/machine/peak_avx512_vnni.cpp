// Products of four int8 into int32 (vpdpbusd), 512 bits: 24 chains.
#include <immintrin.h>

#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

struct Avx512Vnni {
  using Vec = __m512i;
  using Operand = __m512i;
  static constexpr int kAccumulators = 24;
  [[gnu::always_inline]] static Vec accumulator(int i) { return _mm512_set1_epi32(i); }
  [[gnu::always_inline]] static Operand operand(int which) {
    Operand x = _mm512_set1_epi8(which == 0 ? 3 : 5);
    asm volatile("" : "+v"(x));  // a value the compiler does not know
    return x;
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec sum, Operand a, Operand b) {
    return _mm512_dpbusd_epi32(sum, a, b);
  }
  [[gnu::always_inline]] static void keep(Vec& sum) { asm volatile("" : "+v"(sum)); }
};

}  // namespace

void avx512_vnni_multiply_adds(int64_t rounds) { run_multiply_adds<Avx512Vnni>(rounds); }

}  // namespace zoetrope::machine
