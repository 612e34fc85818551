// The formulas of every Activation: in double for references, in vectors for kernels.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/pointwise/pointwise.h"
#include "kernels/vector_math.h"

namespace zoetrope::kernels {

// x / (1 + e^−x); at −inf, where that is a quotient of infinities, its limit 0.
inline double silu_reference(double x) {
  return x == -std::numeric_limits<double>::infinity() ? -0.0 : x / (1.0 + std::exp(-x));
}

inline double activation_reference(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return silu_reference(x);
    case Activation::kGeluTanh:
      // 0.5·x·(1 + tanh u) = x / (1 + e^(−2u)), which keeps its digits where tanh u is near −1; NaN for −inf, as
      // PyTorch
      return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);  // erfc(−z) = 1 + erf(z)
  }
  return x;
}

inline namespace ZOETROPE_SIMD {

template <Activation kActivation>
simd::Floats activation_vector(simd::Floats x) {
  if constexpr (kActivation == Activation::kSilu) return simd::silu(x);
  if constexpr (kActivation == Activation::kGeluTanh) return simd::gelu_tanh(x);
  if constexpr (kActivation == Activation::kGeluErf) return simd::gelu_erf(x);
  return x;
}

}  // namespace ZOETROPE_SIMD

template <Activation kActivation>
struct ActivationTag {
  static constexpr Activation value = kActivation;
};

// Returns body(ActivationTag<…>{}), so that the choice is made once, outside the loop.
template <typename Body>
auto with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kSilu:
      return body(ActivationTag<Activation::kSilu>{});
    case Activation::kGeluTanh:
      return body(ActivationTag<Activation::kGeluTanh>{});
    case Activation::kGeluErf:
      return body(ActivationTag<Activation::kGeluErf>{});
    case Activation::kNone:
      break;
  }
  return body(ActivationTag<Activation::kNone>{});
}

}  // namespace zoetrope::kernels
