#include "kernels/rope/rope.h"

#include <cmath>
#include <vector>

#include "base/error.h"

namespace zoetrope::kernels {
namespace {

struct Angles {
  std::vector<float> cos, sin;  // [positions, width / 2]
  int64_t pairs = 0;
};

// angle(p, k) = p·theta^(−2k/width), once per position and pair: tokens of a grid repeat them.
Angles axis_angles(int64_t width, int64_t positions, double theta) {
  Angles angles;
  angles.pairs = width / 2;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t k = 0; k < angles.pairs; ++k) {
      const double angle =
          static_cast<double>(p) * std::pow(theta, -2.0 * static_cast<double>(k) / static_cast<double>(width));
      angles.cos.push_back(static_cast<float>(std::cos(angle)));
      angles.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return angles;
}

}  // namespace

RopeAxes rope_axes(int64_t head_dim) {
  if (head_dim < 2 || head_dim % 2 != 0) fail("rope: head_dim is {}, but an even number is needed", head_dim);
  const int64_t plane = 2 * (head_dim / 6);
  return {head_dim - 2 * plane, plane, plane};
}

RopeTable make_rope_table(int64_t head_dim, int64_t frames, int64_t height, int64_t width, IndexRange tokens,
                          double theta) {
  const RopeAxes axes = rope_axes(head_dim);
  ZT_CHECK(frames > 0 && height > 0 && width > 0, "grid {}x{}x{}", frames, height, width);
  ZT_CHECK(0 <= tokens.begin && tokens.begin <= tokens.end && tokens.end <= frames * height * width,
           "tokens [{}, {}) of a grid {}x{}x{}", tokens.begin, tokens.end, frames, height, width);
  const Angles by_axis[] = {axis_angles(axes.t, frames, theta), axis_angles(axes.h, height, theta),
                            axis_angles(axes.w, width, theta)};
  const int64_t pairs = head_dim / 2;
  RopeTable table{Tensor(DType::kF32, {tokens.size(), pairs}), Tensor(DType::kF32, {tokens.size(), pairs})};
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const int64_t positions[] = {token / (height * width), token / width % height, token % width};
    int64_t at = (token - tokens.begin) * pairs;
    for (size_t axis = 0; axis < 3; ++axis) {
      const Angles& angles = by_axis[axis];
      for (int64_t k = 0; k < angles.pairs; ++k, ++at) {
        const auto from = static_cast<size_t>(positions[axis] * angles.pairs + k);
        table.cos.data<float>()[at] = angles.cos[from];
        table.sin.data<float>()[at] = angles.sin[from];
      }
    }
  }
  return table;
}

}  // namespace zoetrope::kernels
