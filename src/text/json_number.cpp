#include "text/json_number.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace zoetrope::text {

namespace {

constexpr int kMaxPower = std::numeric_limits<double>::max_exponent10;

const std::array<double, kMaxPower + 1>& powers_of_ten() {
  static const auto powers = [] {
    std::array<double, kMaxPower + 1> table{};
    for (int i = 0; i <= kMaxPower; ++i) {
      table[static_cast<size_t>(i)] = std::strtod(fmt::format("1e{}", i).c_str(), nullptr);
    }
    return table;
  }();
  return powers;
}

}  // namespace

double reference_double(std::string_view token) {
  const bool negative = token.starts_with('-');
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool fraction = false, full = false;
  size_t i = negative ? 1 : 0;
  for (; i < token.size() && token[i] != 'e' && token[i] != 'E'; ++i) {
    if (token[i] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(token[i] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;
    // Digits that no longer fit are dropped; before the point they still count for the size.
    if (full) {
      exponent += fraction ? 0 : 1;
    } else {
      digits = digits * 10 + digit;
      exponent -= fraction ? 1 : 0;
    }
  }
  if (i < token.size()) exponent += std::strtol(std::string(token.substr(i + 1)).c_str(), nullptr, 10);
  auto value = static_cast<double>(digits);
  for (; value != 0 && exponent < -kMaxPower; exponent += kMaxPower) value /= powers_of_ten()[kMaxPower];
  if (value != 0 && exponent > kMaxPower) value = std::numeric_limits<double>::infinity();
  if (value != 0 && exponent <= kMaxPower) {
    const double power = powers_of_ten()[static_cast<size_t>(exponent < 0 ? -exponent : exponent)];
    value = exponent < 0 ? value / power : value * power;
  }
  return negative ? -value : value;
}

}  // namespace zoetrope::text
