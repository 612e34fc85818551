// exp, erf and the activations based on them, on vectors of floats, to about two ulp. No fast-math shortcuts: float32
// runs must stay within float32 rounding noise.
#pragma once

#include "kernels/simd.h"

namespace zoetrope::kernels::simd {
inline namespace ZOETROPE_SIMD {

// Beyond it e^x overflows to infinity, or underflows to 0 below −104.
constexpr float kExpEnd = 104.0f;
// Below it e^x is negligible compared with 1. Clamping there avoids denormal numbers in 1 + e^x, which take fifteen
// times as long as the rest of an activation.
constexpr float kExpVanishes = -80.0f;

// e^x for |x| ≤ kExpEnd: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a degree-6 polynomial in r (coefficients of Cephes expf),
// then two scalings by powers of two so that results near the ends of the range stay correct. Overflow gives infinity,
// NaN stays NaN.
inline Floats exp_inside(Floats x) {
  const Floats n = nearest(x * set(1.44269504088896341f));
  Floats r = fnma(n, set(0.693359375f), x);
  r = fnma(n, set(-2.12194440e-4f), r);
  Floats p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(p, r * r, r);
  return scale_by_power(p + set(1.0f), n);
}

// max/min return their second operand on NaN: x goes second.
inline Floats exp(Floats x) { return exp_inside(min(set(kExpEnd), max(set(-kExpEnd), x))); }

// x / (1 + e^−x), clamped as the exponential, on one side by clamping x itself: for −inf the quotient would be NaN, and
// is −104 / inf this way.
inline Floats silu(Floats x) {
  const Floats above = max(set(-kExpEnd), x);
  return above / (set(1.0f) + exp_inside(max(set(kExpVanishes), -above)));
}

// 0.5·x·(1 + tanh u) = x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³): no cancellation for negative x. NaN for −inf, as in
// PyTorch.
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = x * fma(x * x, set(0.044715f), set(1.0f));
  return x / (set(1.0f) + exp_inside(min(set(kExpEnd), max(set(kExpVanishes), cubic * set(-1.5957691216057308f)))));
}

// erf on |x| ≤ 4 (beyond, ±1 in float32) as x·P(x²)/Q(x²); the rational approximation that Eigen uses.
inline Floats erf(Floats x) {
  const Floats clamped = min(set(4.0f), max(set(-4.0f), x));
  const Floats z = clamped * clamped;
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
  return clamped * p / q;
}

inline Floats gelu_erf(Floats x) {
  const Floats half = x * set(0.5f);
  return fma(half, erf(x * set(0.70710678118654752f)), half);
}

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels::simd
