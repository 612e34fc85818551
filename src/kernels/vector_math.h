// exp, erf and the activations made of them, eight floats at a time, to about two ulp. No fast-math shortcuts: float32
// runs are held to the float32 noise floor.
#pragma once

#include "kernels/simd.h"

namespace zoetrope::kernels::simd {

// e^x: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a degree-6 polynomial in r (coefficients of Cephes expf), then two scalings
// by powers of two so that results near the ends of the range stay right. Overflow gives infinity, NaN stays NaN.
inline Floats exp(Floats x) {
  const Floats lowest = set(-104.0f), highest = set(89.0f);
  // max/min return their second operand on NaN: x goes second.
  const Floats clamped = _mm256_min_ps(highest, _mm256_max_ps(lowest, x));
  const Floats n =
      _mm256_round_ps(_mm256_mul_ps(clamped, set(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Floats r = _mm256_fnmadd_ps(n, set(0.693359375f), clamped);
  r = _mm256_fnmadd_ps(n, set(-2.12194440e-4f), r);
  Floats p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(p, _mm256_mul_ps(r, r), r);
  p = _mm256_add_ps(p, set(1.0f));
  const __m256i power = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(power, 1);
  const auto two_to = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(p, two_to(half)), two_to(_mm256_sub_epi32(power, half)));
}

inline Floats sigmoid_times(Floats x, Floats argument) {  // x·sigmoid(argument)
  const Floats negative = _mm256_xor_ps(argument, set(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(set(1.0f), exp(negative)));
}

inline Floats silu(Floats x) { return sigmoid_times(x, x); }

// 0.5·x·(1 + tanh u) = x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³): no cancellation for negative x.
inline Floats gelu_tanh(Floats x) {
  const Floats square = _mm256_mul_ps(x, x);
  const Floats cubic = _mm256_mul_ps(x, fma(square, set(0.044715f), set(1.0f)));
  return sigmoid_times(x, _mm256_mul_ps(cubic, set(1.5957691216057308f)));
}

// erf on |x| ≤ 4 (beyond, ±1 in float32) as x·P(x²)/Q(x²); the rational approximation that Eigen uses.
inline Floats erf(Floats x) {
  const Floats clamped = _mm256_min_ps(set(4.0f), _mm256_max_ps(set(-4.0f), x));
  const Floats z = _mm256_mul_ps(clamped, clamped);
  Floats p = set(-2.72614225801306e-10f);
  p = fma(p, z, set(2.77068142495902e-08f));
  p = fma(p, z, set(-2.10102402082508e-06f));
  p = fma(p, z, set(-5.69250639462346e-05f));
  p = fma(p, z, set(-7.34990630326855e-04f));
  p = fma(p, z, set(-2.95459980854025e-03f));
  p = fma(p, z, set(-1.60960333262415e-02f));
  Floats q = set(-1.45660718464996e-05f);
  q = fma(q, z, set(-2.13374055278905e-04f));
  q = fma(q, z, set(-1.68282697438203e-03f));
  q = fma(q, z, set(-7.37332916720468e-03f));
  q = fma(q, z, set(-1.42647390514189e-02f));
  return _mm256_div_ps(_mm256_mul_ps(clamped, p), q);
}

inline Floats gelu_erf(Floats x) {
  const Floats half = _mm256_mul_ps(x, set(0.5f));
  return fma(half, erf(_mm256_mul_ps(x, set(0.70710678118654752f))), half);
}

}  // namespace zoetrope::kernels::simd
