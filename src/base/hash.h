// Numbers from names, contents and places that are the same on every machine. Against accidents, not against malice.
#pragma once

#include <cstdint>
#include <string_view>

namespace zoetrope {

// FNV-1a, 64 bits (Fowler, Noll, Vo). `hash`: that of the text before, to go on from.
constexpr uint64_t fnv1a64(std::string_view text, uint64_t hash = 0xCBF29CE484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// SplitMix64 (Steele, Lea, Flood 2014): the random number at a place of a sequence, without those before it. The
// argument of number n is the seed + n·kSplitMixStep, or anything else that differs.
inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15u;

constexpr uint64_t split_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace zoetrope
