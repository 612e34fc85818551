// The rotation of ConvRot, with which int8 files spread large values over a group (docs/spec/weights.md, section 4.4):
// x·R, R = (H ⊗ … ⊗ H)/√group with H = [[1,1,1,−1],[1,1,−1,1],[1,−1,1,1],[−1,1,1,1]]. R is symmetric, and R·R is the
// identity.
#pragma once

#include <bit>
#include <cstdint>

namespace zoetrope {

// √group of a power of 4.
constexpr int64_t convrot_root(int64_t group) {
  return int64_t{1} << (std::countr_zero(static_cast<uint64_t>(group)) / 2);
}

// x·R·√group of a group, in place: in each four, their sum less twice the one across.
template <typename T>
void rotate_unscaled(T* x, int64_t group) {
  for (int64_t step = 1; step < group; step *= 4) {
    for (int64_t first = 0; first < group; first += 4 * step) {
      for (T* four = x + first; four < x + first + step; ++four) {
        const T a = four[0], b = four[step], c = four[2 * step], d = four[3 * step], sum = (a + b) + (c + d);
        four[0] = sum - 2 * d;
        four[step] = sum - 2 * c;
        four[2 * step] = sum - 2 * b;
        four[3 * step] = sum - 2 * a;
      }
    }
  }
}

}  // namespace zoetrope
