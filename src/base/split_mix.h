// SplitMix64 (Steele, Lea, Flood 2014): the random number at a place of a sequence, without those before it.
#pragma once

#include <cstdint>

namespace zoetrope {

inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15u;

// Of number n of a sequence the argument is its seed + n·kSplitMixStep, or anything else that differs.
constexpr uint64_t split_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace zoetrope
