#include "io/weights/block_formats.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace zoetrope::io {
namespace {

// A block's bytes by their number. All products but those of Q6_K are exact in float32, so that a compiler that
// contracts a product and a sum changes nothing. Values are written in runs of 16 or 32 with one scale, whose loops
// become vector instructions.
class Block {
 public:
  explicit Block(const std::byte* bytes) : bytes_(reinterpret_cast<const uint8_t*>(bytes)) {}
  int operator[](int at) const { return bytes_[at]; }
  int sign_extended(int at) const { return static_cast<int8_t>(bytes_[at]); }
  float half(int at) const { return _cvtsh_ss(number<uint16_t>(at)); }
  uint32_t u32(int at) const { return number<uint32_t>(at); }
  uint32_t u16(int at) const { return number<uint16_t>(at); }
  // Four bits of byte `at`: the low ones, or the high ones.
  int low(int at) const { return bytes_[at] & 15; }
  int high(int at) const { return bytes_[at] >> 4; }
  int nibble(int at, bool of_high) const { return of_high ? high(at) : low(at); }
  // Two bits of byte `at`, the pair-th from below.
  int pair(int at, int pair) const { return (bytes_[at] >> (2 * pair)) & 3; }
  int bit(int at, int bit) const { return (bytes_[at] >> bit) & 1; }

 private:
  template <typename T>
  T number(int at) const {
    T value;
    std::memcpy(&value, bytes_ + at, sizeof value);
    return value;
  }
  const uint8_t* bytes_;
};

constexpr int kSmall = 32, kLarge = 256;  // elements of a block
constexpr int kRun = 16, kPart = 32;      // of a large block: elements with one scale, and of one row of bytes
constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float number(int value) { return static_cast<float>(value); }

// Of the formats of 32 elements: the low nibbles of 16 bytes, then the high ones.

void q4_0(const Block& block, float* __restrict values) {
  const float d = block.half(0);
  for (int i = 0; i < kRun; ++i) values[i] = d * number(block.low(2 + i) - 8);
  for (int i = 0; i < kRun; ++i) values[kRun + i] = d * number(block.high(2 + i) - 8);
}

void q4_1(const Block& block, float* __restrict values) {
  const float d = block.half(0), m = block.half(2);
  for (int i = 0; i < kRun; ++i) values[i] = d * number(block.low(4 + i)) + m;
  for (int i = 0; i < kRun; ++i) values[kRun + i] = d * number(block.high(4 + i)) + m;
}

// The fifth bit of every element is in 32 bits of their own.
int fifth(uint32_t bits, int e) { return 16 * static_cast<int>((bits >> e) & 1); }

void q5_0(const Block& block, float* __restrict values) {
  const float d = block.half(0);
  const uint32_t bits = block.u32(2);
  for (int i = 0; i < kRun; ++i) values[i] = d * number(block.low(6 + i) + fifth(bits, i) - 16);
  for (int i = 0; i < kRun; ++i) values[kRun + i] = d * number(block.high(6 + i) + fifth(bits, kRun + i) - 16);
}

void q5_1(const Block& block, float* __restrict values) {
  const float d = block.half(0), m = block.half(2);
  const uint32_t bits = block.u32(4);
  for (int i = 0; i < kRun; ++i) values[i] = d * number(block.low(8 + i) + fifth(bits, i)) + m;
  for (int i = 0; i < kRun; ++i) values[kRun + i] = d * number(block.high(8 + i) + fifth(bits, kRun + i)) + m;
}

void q8_0(const Block& block, float* __restrict values) {
  const float d = block.half(0);
  for (int e = 0; e < kSmall; ++e) values[e] = d * number(block.sign_extended(2 + e));
}

void iq4_nl(const Block& block, float* __restrict values) {
  const float d = block.half(0);
  for (int i = 0; i < kRun; ++i) values[i] = d * kIq4[block.low(2 + i)];
  for (int i = 0; i < kRun; ++i) values[kRun + i] = d * kIq4[block.high(2 + i)];
}

// Q2_K and Q3_K have two bits of each element, of 128 elements in 32 bytes.

void q2_k(const Block& block, float* __restrict values) {
  const float d = block.half(80), m = block.half(82);
  for (int run = 0; run < kLarge / kRun; ++run, values += kRun) {
    const int c = block[run], first = 16 + run / 8 * kPart + run % 2 * kRun, pair = run % 8 / 2;
    const float scale = d * number(c & 15), least = m * number(c >> 4);
    for (int i = 0; i < kRun; ++i) values[i] = scale * number(block.pair(first + i, pair)) - least;
  }
}

void q3_k(const Block& block, float* __restrict values) {
  const float d = block.half(108);
  for (int run = 0; run < kLarge / kRun; ++run, values += kRun) {
    const int third = run % 2 * kRun, first = 32 + run / 8 * kPart + third, pair = run % 8 / 2;
    const int low = block.nibble(96 + run % 8, run >= 8), high = block.pair(96 + 8 + run % 4, run / 4);
    const float scale = d * number(low + 16 * high - 32);
    for (int i = 0; i < kRun; ++i)
      values[i] = scale * number(block.pair(first + i, pair) - 4 + 4 * block.bit(third + i, run / 2));
  }
}

// Of Q4_K and Q5_K: six bits for the scale and for the least value of 32 elements, in twelve bytes at 4.
struct Scaled {
  float scale, least;
};
Scaled six_bits(const Block& block, int j) {
  const int s = 4;
  const bool first = j < 4;
  const int scale = first ? block[s + j] & 63 : (block[s + j + 4] & 15) + 16 * (block[s + j - 4] >> 6);
  const int least = first ? block[s + j + 4] & 63 : (block[s + j + 4] >> 4) + 16 * (block[s + j] >> 6);
  return {block.half(0) * number(scale), block.half(2) * number(least)};
}

// 64 elements in 32 bytes, low nibbles first.

void q4_k(const Block& block, float* __restrict values) {
  for (int two = 0; two < kLarge / kPart / 2; ++two, values += 2 * kPart) {
    const int first = 16 + two * kPart;
    const Scaled a = six_bits(block, 2 * two), b = six_bits(block, 2 * two + 1);
    for (int i = 0; i < kPart; ++i) values[i] = a.scale * number(block.low(first + i)) - a.least;
    for (int i = 0; i < kPart; ++i) values[kPart + i] = b.scale * number(block.high(first + i)) - b.least;
  }
}

void q5_k(const Block& block, float* __restrict values) {
  for (int two = 0; two < kLarge / kPart / 2; ++two, values += 2 * kPart) {
    const int first = 48 + two * kPart, even = 2 * two, odd = even + 1;
    const Scaled a = six_bits(block, even), b = six_bits(block, odd);
    for (int i = 0; i < kPart; ++i)
      values[i] = a.scale * number(block.low(first + i) + 16 * block.bit(16 + i, even)) - a.least;
    for (int i = 0; i < kPart; ++i)
      values[kPart + i] = b.scale * number(block.high(first + i) + 16 * block.bit(16 + i, odd)) - b.least;
  }
}

void q6_k(const Block& block, float* __restrict values) {
  const float d = block.half(208);
  for (int run = 0; run < kLarge / kRun; ++run, values += kRun) {
    const int half = run / 8, part = run % 8 / 2, within = run % 2 * kRun;
    const int low = half * 64 + part % 2 * kPart + within, high = 128 + half * kPart + within;
    const float scale = d * number(block.sign_extended(192 + run));
    if (part < 2) {
      for (int i = 0; i < kRun; ++i)
        values[i] = scale * number(block.low(low + i) + 16 * block.pair(high + i, part) - 32);
    } else {
      for (int i = 0; i < kRun; ++i)
        values[i] = scale * number(block.high(low + i) + 16 * block.pair(high + i, part) - 32);
    }
  }
}

void iq4_xs(const Block& block, float* __restrict values) {
  const float d = block.half(0);
  for (int g = 0; g < kLarge / kPart; ++g, values += kPart) {
    const int high = static_cast<int>((block.u16(2) >> (2 * g)) & 3), first = 8 + kRun * g;
    const float scale = d * number(block.nibble(4 + g / 2, g % 2 == 1) + 16 * high - 32);
    for (int i = 0; i < kRun; ++i) values[i] = scale * kIq4[block.low(first + i)];
    for (int i = 0; i < kRun; ++i) values[kRun + i] = scale * kIq4[block.high(first + i)];
  }
}

template <int kElements, int kBytes, void (*kDecode)(const Block&, float*)>
void each(const std::byte* blocks, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) kDecode(Block(blocks + i * kBytes), values + i * kElements);
}

template <int kElements, int kBytes, void (*kDecode)(const Block&, float*)>
constexpr BlockFormat format(const char* name) {
  return {name, kElements, kBytes, each<kElements, kBytes, kDecode>};
}

constexpr BlockFormat kFormats[] = {
    format<kSmall, 18, q4_0>("Q4_0"),  format<kSmall, 20, q4_1>("Q4_1"),  format<kSmall, 22, q5_0>("Q5_0"),
    format<kSmall, 24, q5_1>("Q5_1"),  format<kSmall, 34, q8_0>("Q8_0"),  format<kSmall, 18, iq4_nl>("IQ4_NL"),
    format<kLarge, 84, q2_k>("Q2_K"),  format<kLarge, 110, q3_k>("Q3_K"), format<kLarge, 144, q4_k>("Q4_K"),
    format<kLarge, 176, q5_k>("Q5_K"), format<kLarge, 210, q6_k>("Q6_K"), format<kLarge, 136, iq4_xs>("IQ4_XS"),
};

}  // namespace

const BlockFormat* find_block_format(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const BlockFormat& f) { return name == f.name; });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace zoetrope::io
