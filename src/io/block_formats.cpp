#include "io/block_formats.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "tensor/half.h"

namespace zoetrope::io {
namespace {

// A block's bytes by their number. All products but those of Q6_K are exact in float32, so that a compiler that
// contracts a product and a sum changes nothing.
class Block {
 public:
  explicit Block(const std::byte* bytes) : bytes_(bytes) {}
  int operator[](int at) const { return static_cast<int>(bytes_[at]); }
  int sign_extended(int at) const { return static_cast<int8_t>(bytes_[at]); }
  float half(int at) const {
    Float16 value;
    std::memcpy(&value, bytes_ + at, sizeof value);
    return to_float(value);
  }
  uint32_t u32(int at) const { return number<uint32_t>(at); }
  uint32_t u16(int at) const { return number<uint16_t>(at); }
  // Four bits of byte `at`: the low ones, or the high ones.
  int nibble(int at, bool high) const { return high ? (*this)[at] >> 4 : (*this)[at] & 15; }

 private:
  template <typename T>
  T number(int at) const {
    T value;
    std::memcpy(&value, bytes_ + at, sizeof value);
    return value;
  }
  const std::byte* bytes_;
};

constexpr int kSmall = 32, kLarge = 256;  // elements of a block
constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Of the formats of 32 elements: the low nibbles of 16 bytes, then the high ones.
int small_nibble(const Block& block, int first, int e) { return block.nibble(first + e % 16, e >= 16); }

void q4_0(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0);
  for (int e = 0; e < kSmall; ++e) values[e] = d * static_cast<float>(small_nibble(block, 2, e) - 8);
}

void q4_1(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0), m = block.half(2);
  for (int e = 0; e < kSmall; ++e) values[e] = d * static_cast<float>(small_nibble(block, 4, e)) + m;
}

// The fifth bit of every element is in 32 bits of their own.
int with_fifth_bit(const Block& block, int bits, int nibble, int e) {
  return nibble + 16 * static_cast<int>((block.u32(bits) >> e) & 1);
}

void q5_0(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0);
  for (int e = 0; e < kSmall; ++e) {
    values[e] = d * static_cast<float>(with_fifth_bit(block, 2, small_nibble(block, 6, e), e) - 16);
  }
}

void q5_1(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0), m = block.half(2);
  for (int e = 0; e < kSmall; ++e) {
    values[e] = d * static_cast<float>(with_fifth_bit(block, 4, small_nibble(block, 8, e), e)) + m;
  }
}

void q8_0(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0);
  for (int e = 0; e < kSmall; ++e) values[e] = d * static_cast<float>(block.sign_extended(2 + e));
}

void iq4_nl(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0);
  for (int e = 0; e < kSmall; ++e) values[e] = d * kIq4[small_nibble(block, 2, e)];
}

// Of Q2_K and Q3_K: two bits of each element, 128 elements in 32 bytes.
int two_bits(const Block& block, int first, int e) {
  return (block[first + e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32))) & 3;
}

void q2_k(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(80), m = block.half(82);
  for (int e = 0; e < kLarge; ++e) {
    const int c = block[e / 16];
    const float scale = d * static_cast<float>(c & 15), least = m * static_cast<float>(c >> 4);
    values[e] = scale * static_cast<float>(two_bits(block, 16, e)) - least;
  }
}

void q3_k(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(108);
  for (int e = 0; e < kLarge; ++e) {
    const bool third_bit = ((block[e % 32] >> (e / 32)) & 1) != 0;
    const int q = two_bits(block, 32, e) - (third_bit ? 0 : 4), i = e / 16;
    const int low = block.nibble(96 + i % 8, i >= 8), high = (block[96 + 8 + i % 4] >> (2 * (i / 4))) & 3;
    values[e] = d * static_cast<float>(low + 16 * high - 32) * static_cast<float>(q);
  }
}

// Of Q4_K and Q5_K: six bits for the scale and for the least value of 32 elements, in twelve bytes at 4.
struct SixBits {
  int scale, least;
};
SixBits six_bits(const Block& block, int j) {
  const int s = 4;
  if (j < 4) return {block[s + j] & 63, block[s + j + 4] & 63};
  return {(block[s + j + 4] & 15) + 16 * (block[s + j - 4] >> 6), (block[s + j + 4] >> 4) + 16 * (block[s + j] >> 6)};
}

// 64 elements in 32 bytes, low nibbles first.
int large_nibble(const Block& block, int first, int e) {
  return block.nibble(first + e / 64 * 32 + e % 32, e / 32 % 2 == 1);
}

float scaled(const Block& block, int e, int q) {
  const SixBits bits = six_bits(block, e / 32);
  const float scale = block.half(0) * static_cast<float>(bits.scale),
              least = block.half(2) * static_cast<float>(bits.least);
  return scale * static_cast<float>(q) - least;
}

void q4_k(const std::byte* bytes, float* values) {
  const Block block(bytes);
  for (int e = 0; e < kLarge; ++e) values[e] = scaled(block, e, large_nibble(block, 16, e));
}

void q5_k(const std::byte* bytes, float* values) {
  const Block block(bytes);
  for (int e = 0; e < kLarge; ++e) {
    const int fifth_bit = (block[16 + e % 32] >> (e / 32)) & 1;
    values[e] = scaled(block, e, large_nibble(block, 48, e) + 16 * fifth_bit);
  }
}

void q6_k(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(208);
  for (int e = 0; e < kLarge; ++e) {
    const int low = block.nibble(e / 128 * 64 + e % 64, e / 64 % 2 == 1);
    const int high = (block[128 + e / 128 * 32 + e % 32] >> (2 * (e / 32 % 4))) & 3;
    values[e] = d * static_cast<float>(block.sign_extended(192 + e / 16)) * static_cast<float>(low + 16 * high - 32);
  }
}

void iq4_xs(const std::byte* bytes, float* values) {
  const Block block(bytes);
  const float d = block.half(0);
  for (int e = 0; e < kLarge; ++e) {
    const int g = e / 32;
    const int high = static_cast<int>((block.u16(2) >> (2 * g)) & 3);
    const int c = block.nibble(4 + g / 2, g % 2 == 1) + 16 * high - 32;
    values[e] = d * static_cast<float>(c) * kIq4[block.nibble(8 + 16 * g + e % 16, e / 16 % 2 == 1)];
  }
}

constexpr BlockFormat kFormats[] = {
    {"Q4_0", kSmall, 18, q4_0},  {"Q4_1", kSmall, 20, q4_1},  {"Q5_0", kSmall, 22, q5_0},
    {"Q5_1", kSmall, 24, q5_1},  {"Q8_0", kSmall, 34, q8_0},  {"IQ4_NL", kSmall, 18, iq4_nl},
    {"Q2_K", kLarge, 84, q2_k},  {"Q3_K", kLarge, 110, q3_k}, {"Q4_K", kLarge, 144, q4_k},
    {"Q5_K", kLarge, 176, q5_k}, {"Q6_K", kLarge, 210, q6_k}, {"IQ4_XS", kLarge, 136, iq4_xs},
};

}  // namespace

const BlockFormat* find_block_format(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const BlockFormat& f) { return name == f.name; });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace zoetrope::io
