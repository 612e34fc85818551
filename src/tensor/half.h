// bfloat16 and float16 as storage types: conversions only, arithmetic is float32.
#pragma once

#include <bit>
#include <cstdint>

namespace zoetrope {

struct BFloat16 {
  uint16_t bits = 0;
};

struct Float16 {
  uint16_t bits = 0;
};

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }
float to_float(Float16 value);

// Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// from_float<T>(x): x as T, rounded once.
template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline BFloat16 from_float<BFloat16>(float value) {
  return to_bfloat16(value);
}
template <>
Float16 from_float<Float16>(float value);

}  // namespace zoetrope
