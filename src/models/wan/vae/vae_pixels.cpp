#include "models/wan/vae/vae_pixels.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "tensor/dispatch.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kGrainRows = 8;

// Offsets of a value's channels in its patch, from the patch's first pixel.
std::vector<int64_t> places(const TensorView& pixels, int64_t patch) {
  std::vector<int64_t> offsets;
  for (int64_t c = 0; c < pixels.extent(2); ++c) {
    for (int64_t column = 0; column < patch; ++column) {
      for (int64_t row = 0; row < patch; ++row) {
        offsets.push_back(c * pixels.stride(2) + column * pixels.stride(1) + row * pixels.stride(0));
      }
    }
  }
  return offsets;
}

// body(pixel, value, offsets) for every value: pointers to its patch and to its first channel.
template <typename T, typename Body>
void for_values(ThreadTeam& team, const TensorView& pixels, int64_t patch, const TensorView& values, Body&& body) {
  const std::vector<int64_t> offsets = places(pixels, patch);
  team.parallel_for(values.extent(0), kGrainRows, [&](IndexRange range, int) {
    for (int64_t y = range.begin; y < range.end; ++y) {
      for (int64_t x = 0; x < values.extent(1); ++x) {
        body(pixels.data<float>() + patch * (y * pixels.stride(0) + x * pixels.stride(1)),
             values.data<T>() + y * values.stride(0) + x * values.stride(1), offsets);
      }
    }
  });
}

void check(const TensorView& pixels, int64_t patch, const TensorView& values) {
  ZT_CHECK(pixels.dtype() == DType::kF32);
  ZT_CHECK(pixels.extent(0) / patch == values.extent(0) && pixels.extent(1) / patch == values.extent(1) &&
               pixels.extent(2) * patch * patch == values.extent(2),
           "pixels {} with values {}", pixels.shape().to_string(), values.shape().to_string());
}

}  // namespace

void load_pixels(ThreadTeam& team, const TensorView& pixels, int64_t patch, const TensorView& values) {
  check(pixels, patch, values);
  with_compute_type(values.dtype(), "a frame", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_values<T>(team, pixels, patch, values, [](const float* from, T* to, const std::vector<int64_t>& offsets) {
      for (const int64_t offset : offsets) *to++ = from_float<T>(from[offset]);
    });
  });
}

void store_pixels(ThreadTeam& team, const TensorView& values, int64_t patch, const TensorView& pixels) {
  check(pixels, patch, values);
  with_compute_type(values.dtype(), "a frame", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_values<T>(team, pixels, patch, values, [](float* to, const T* from, const std::vector<int64_t>& offsets) {
      for (const int64_t offset : offsets) to[offset] = std::clamp(to_float(*from++), -1.0f, 1.0f);
    });
  });
}

}  // namespace zoetrope::wan
