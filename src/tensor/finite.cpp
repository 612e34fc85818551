#include "tensor/finite.h"

#include <algorithm>
#include <bit>

#include "tensor/dispatch.h"

namespace zoetrope {
namespace {

constexpr int64_t kBlock = 1024;  // values that are checked without branches

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
uint16_t bits_of(BFloat16 value) { return value.bits; }

template <typename T>
std::optional<NonFinite> first_of(const T* values, int64_t count) {
  using Bits = decltype(bits_of(T{}));
  constexpr Bits kExponent = sizeof(T) == 4 ? static_cast<Bits>(0x7f800000u) : static_cast<Bits>(0x7f80u);
  const auto spoiled = [](T value) { return (bits_of(value) & kExponent) == kExponent; };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    Bits any = 0;
    for (int64_t i = begin; i < end; ++i) any |= static_cast<Bits>(spoiled(values[i]) ? 1 : 0);
    if (any == 0) continue;
    const T* found = std::find_if(values + begin, values + end, spoiled);
    return NonFinite{found - values, to_float(*found)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<NonFinite> first_non_finite(const TensorView& values) {
  if (values.size() == 0) return std::nullopt;
  if (!values.contiguous()) {
    const int64_t rows = values.extent(0), each = values.size() / rows;
    for (int64_t row = 0; row < rows; ++row) {
      if (const auto found = first_non_finite(values.select(0, row)))
        return NonFinite{row * each + found->index, found->value};
    }
    return std::nullopt;
  }
  return with_compute_type(values.dtype(), "a tensor that is checked for NaN", [&](auto tag) {
    return first_of(values.data<typename decltype(tag)::type>(), values.size());
  });
}

}  // namespace zoetrope
