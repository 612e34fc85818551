#include "io/weights/block_encoders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tensor/half.h"

namespace zoetrope::io {
namespace {

constexpr int kElements = 32;
using Codes = std::array<uint32_t, kElements>;

// Zero for a scale so small that its inverse is infinite: as a float16 it is zero too.
float inverse(float scale) {
  const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void store_half(float value, std::byte* to) {
  const auto half = from_float<Float16>(value);
  std::memcpy(to, &half, sizeof half);
}

// Four bits of each code: the first half in the low nibbles, the second half in the high ones.
void store_nibbles(const Codes& codes, std::byte* to) {
  for (size_t i = 0; i < kElements / 2; ++i)
    to[i] = static_cast<std::byte>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

void store_fifth_bits(const Codes& codes, std::byte* to) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kElements; ++i) bits |= (codes[i] >> 4 & 1) << i;
  std::memcpy(to, &bits, sizeof bits);
}

// Of formats around zero: codes 0 to 2·half − 1 stand for −half to half − 1 times the scale, and the value of largest
// magnitude, the first of several, gets −half. Product and sum are rounded once together.
float centred_codes(const float* values, int half, Codes& codes) {
  const float* largest =
      std::max_element(values, values + kElements, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = *largest / static_cast<float>(-half), inverted = inverse(scale);
  for (size_t i = 0; i < kElements; ++i) {
    const double steps = static_cast<double>(values[i]) * inverted + (half + 0.5);
    codes[i] = std::min(static_cast<uint32_t>(static_cast<float>(steps)), static_cast<uint32_t>(2 * half - 1));
  }
  return scale;
}

// Of formats from the least value upwards: codes 0 to `most`.
struct Offset {
  float scale, least;
};
Offset offset_codes(const float* values, uint32_t most, Codes& codes) {
  const auto [least, largest] = std::minmax_element(values, values + kElements);
  const float scale = (*largest - *least) / static_cast<float>(most), inverted = inverse(scale);
  for (size_t i = 0; i < kElements; ++i) {
    const float steps = (values[i] - *least) * inverted;
    codes[i] = std::isfinite(scale) ? std::min(static_cast<uint32_t>(steps + 0.5f), most) : 0;
  }
  return {scale, *least};
}

void q4_0(const float* values, std::byte* block) {
  Codes codes;
  store_half(centred_codes(values, 8, codes), block);
  store_nibbles(codes, block + 2);
}

void q5_0(const float* values, std::byte* block) {
  Codes codes;
  store_half(centred_codes(values, 16, codes), block);
  store_fifth_bits(codes, block + 2);
  store_nibbles(codes, block + 6);
}

void q4_1(const float* values, std::byte* block) {
  Codes codes;
  const Offset offset = offset_codes(values, 15, codes);
  store_half(offset.scale, block);
  store_half(offset.least, block + 2);
  store_nibbles(codes, block + 4);
}

void q5_1(const float* values, std::byte* block) {
  Codes codes;
  const Offset offset = offset_codes(values, 31, codes);
  store_half(offset.scale, block);
  store_half(offset.least, block + 2);
  store_fifth_bits(codes, block + 4);
  store_nibbles(codes, block + 8);
}

void q8_0(const float* values, std::byte* block) {
  float largest = 0;
  for (int i = 0; i < kElements; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127.0f, inverted = inverse(scale);
  store_half(scale, block);
  for (int i = 0; i < kElements; ++i) {
    block[2 + i] = static_cast<std::byte>(static_cast<int>(std::round(values[i] * inverted)));  // ties away from zero
  }
}

constexpr std::pair<std::string_view, BlockEncoder> kEncoders[] = {
    {"Q4_0", q4_0}, {"Q4_1", q4_1}, {"Q5_0", q5_0}, {"Q5_1", q5_1}, {"Q8_0", q8_0}};

}  // namespace

BlockEncoder find_block_encoder(std::string_view name) {
  for (const auto& [format, encode] : kEncoders)
    if (name == format) return encode;
  return nullptr;
}

}  // namespace zoetrope::io
