#include "io/weights/checksum.h"

#include <algorithm>
#include <cstring>

namespace zoetrope::io {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * sizeof(uint64_t);
constexpr size_t kStripesPerMix = 16;
// Digits of the golden ratio and of SplitMix64's constants: any odd numbers without a pattern do.
constexpr uint64_t kFirst = 0x9E3779B97F4A7C15u;
constexpr uint64_t kSecond = 0xBF58476D1CE4E5B9u;
constexpr uint64_t kThird = 0x94D049BB133111EBu;

constexpr uint64_t finish(uint64_t z) {
  z = (z ^ (z >> 30)) * kSecond;
  z = (z ^ (z >> 27)) * kThird;
  return z ^ (z >> 31);
}

// Eight sums in parallel, each of products of the halves of its words and of its neighbour's words (the step of
// XXH3_64bits, Collet 2019): 32-bit products are what vector units have.
void add_stripe(const std::byte* data, uint64_t key, uint64_t* lanes) {
  uint64_t words[kLanes];
  std::memcpy(words, data, kStripe);
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t word = words[i] ^ (kFirst * (i + 1) + key);
    lanes[i] += words[i ^ 1] + (word & 0xFFFFFFFFu) * (word >> 32);
  }
}

}  // namespace

uint64_t checksum(const std::byte* data, size_t bytes) {
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kThird * (i + 1);
  size_t at = 0;
  while (bytes - at >= kStripe) {
    const size_t stripes = std::min(kStripesPerMix, (bytes - at) / kStripe);
    for (size_t s = 0; s < stripes; ++s, at += kStripe) add_stripe(data + at, kSecond * s, lanes);
    // Between the blocks, so that their order counts.
    for (uint64_t& lane : lanes) lane = (lane ^ (lane >> 47)) * kFirst;
  }
  std::byte rest[kStripe] = {};
  std::memcpy(rest, data + at, bytes - at);
  add_stripe(rest, kThird, lanes);
  uint64_t sum = finish(bytes + kFirst);
  for (const uint64_t lane : lanes) sum = finish(sum ^ lane);
  return sum;
}

}  // namespace zoetrope::io
