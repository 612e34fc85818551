// A number of bytes in the planner's sums. Buffers use std::size_t.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <string>

namespace zoetrope::planner {

// Never negative. Sums and products saturate at the largest number instead of overflowing, so that an absurd size stays
// too large.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count < 0 ? 0 : count) {}
  static constexpr Bytes of_gigabytes(double gigabytes) { return Bytes(static_cast<int64_t>(gigabytes * 1e9)); }

  constexpr int64_t count() const { return count_; }
  constexpr double gigabytes() const { return static_cast<double>(count_) * 1e-9; }
  std::string text() const;  // "12.3 GB", "0.34 GB", "56.7 MB"

  friend constexpr Bytes operator+(Bytes a, Bytes b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.count_, b.count_, &sum) ? most() : Bytes(sum);
  }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }  // at least 0
  friend constexpr Bytes operator*(Bytes a, int64_t factor) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.count_, factor < 0 ? 0 : factor, &product) ? most() : Bytes(product);
  }
  friend constexpr Bytes operator/(Bytes a, int64_t divisor) { return Bytes(a.count_ / divisor); }
  constexpr Bytes& operator+=(Bytes other) { return *this = *this + other; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

  static constexpr Bytes most() { return Bytes(std::numeric_limits<int64_t>::max()); }

 private:
  int64_t count_ = 0;
};

}  // namespace zoetrope::planner
