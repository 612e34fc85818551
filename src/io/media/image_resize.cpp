// Resizing as Pillow does it for 8-bit pictures (libImaging/Resample.c): weights in double, then 22-bit fixed point,
// one pass for each axis that changes, each rounded to bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "base/error.h"
#include "io/media/image.h"

namespace zoetrope::io {
namespace {

constexpr int64_t kChannels = 3;
// 8 bits of a value and 2 of overshoot leave 22 of 32 for the weights.
constexpr int kWeightBits = 32 - 8 - 2;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  const double angle = x * std::numbers::pi;
  return std::sin(angle) / angle;
}

struct Kernel {
  double support;
  double (*value)(double);
};

Kernel kernel_of(ResizeFilter filter) {
  if (filter == ResizeFilter::kLanczos) {
    return {3.0, [](double x) { return x < -3.0 || x >= 3.0 ? 0.0 : sinc(x) * sinc(x / 3); }};
  }
  return {2.0, [](double x) {  // Keys' cubic with a = −1/2
            constexpr double kA = -0.5;
            x = std::abs(x);
            if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
            if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
            return 0.0;
          }};
}

// How each output of one axis is computed: from `count` inputs from `first`, with weights at [output · stride].
struct Taps {
  struct Window {
    int64_t first, count;
  };
  std::vector<Window> windows;
  std::vector<int32_t> weights;
  int64_t stride;

  std::span<const int32_t> weights_of(size_t output) const {
    return {weights.data() + output * static_cast<size_t>(stride), static_cast<size_t>(windows[output].count)};
  }
};

Taps make_taps(int64_t in, int64_t out, const Kernel& kernel) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double widened = std::max(scale, 1.0);
  const double support = kernel.support * widened, narrow = 1.0 / widened;
  Taps taps;
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<size_t>(out * taps.stride));
  std::vector<double> values;
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const int64_t end = std::min(in, static_cast<int64_t>(centre + support + 0.5));
    values.clear();
    double sum = 0.0;
    for (int64_t x = first; x < end; ++x) {
      values.push_back(kernel.value((static_cast<double>(x) - centre + 0.5) * narrow));
      sum += values.back();
    }
    int32_t* weights = taps.weights.data() + i * taps.stride;
    for (size_t x = 0; x < values.size(); ++x) {
      const double exact = (sum != 0.0 ? values[x] / sum : values[x]) * (1 << kWeightBits);
      weights[x] = static_cast<int32_t>(exact < 0 ? exact - 0.5 : exact + 0.5);
    }
    taps.windows.push_back({first, end - first});
  }
  return taps;
}

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

// image [H, W, 3] → [H, columns, 3].
Tensor resize_columns(const TensorView& image, int64_t columns, const Kernel& kernel) {
  const Taps taps = make_taps(image.extent(1), columns, kernel);
  Tensor out = Tensor::uninitialized(DType::kU8, {image.extent(0), columns, kChannels});
  uint8_t* to = out.data<uint8_t>();
  for (int64_t y = 0; y < image.extent(0); ++y) {
    const uint8_t* row = image.data<uint8_t>() + y * image.stride(0);
    for (size_t x = 0; x < taps.windows.size(); ++x, to += kChannels) {
      const uint8_t* from = row + taps.windows[x].first * kChannels;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (const int32_t weight : taps.weights_of(x)) {
        red += from[0] * weight;
        green += from[1] * weight;
        blue += from[2] * weight;
        from += kChannels;
      }
      to[0] = rounded(red);
      to[1] = rounded(green);
      to[2] = rounded(blue);
    }
  }
  return out;
}

// image [H, W, 3] → [rows, W, 3].
Tensor resize_rows(const TensorView& image, int64_t rows, const Kernel& kernel) {
  const Taps taps = make_taps(image.extent(0), rows, kernel);
  const int64_t values = image.extent(1) * kChannels;
  Tensor out = Tensor::uninitialized(DType::kU8, {rows, image.extent(1), kChannels});
  uint8_t* to = out.data<uint8_t>();
  std::vector<int32_t> sums(static_cast<size_t>(values));
  for (size_t y = 0; y < taps.windows.size(); ++y, to += values) {
    std::fill(sums.begin(), sums.end(), kHalf);
    const uint8_t* from = image.data<uint8_t>() + taps.windows[y].first * image.stride(0);
    for (const int32_t weight : taps.weights_of(y)) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += from[i] * weight;
      from += image.stride(0);
    }
    std::transform(sums.begin(), sums.end(), to, rounded);
  }
  return out;
}

// Which pass is first shows in the last bits. Pillow 13 begins with the rows where these shrink by more than twice what
// the columns do; before version 13 the columns always came first.
bool rows_first(const TensorView& image, ImageSize size) {
  const int64_t rows_lost = image.extent(0) - size.height, columns_lost = image.extent(1) - size.width;
  return rows_lost > 0 && rows_lost > 2 * columns_lost;
}

}  // namespace

Tensor resize(const TensorView& image, ImageSize size, ResizeFilter filter) {
  ZT_CHECK(image.dtype() == DType::kU8 && image.rank() == 3 && image.extent(2) == kChannels, "{}",
           image.shape().to_string());
  ZT_CHECK(image.stride(2) == 1 && image.stride(1) == kChannels && image.size() > 0);
  if (size.height < 1 || size.width < 1) {
    fail("a picture cannot be resized to {} x {}; both sides must be at least 1", size.width, size.height);
  }
  const Kernel kernel = kernel_of(filter);
  const bool wider = size.width != image.extent(1), taller = size.height != image.extent(0);
  if (wider && taller && rows_first(image, size)) {
    return resize_columns(resize_rows(image, size.height, kernel), size.width, kernel);
  }
  if (wider && taller) return resize_rows(resize_columns(image, size.width, kernel), size.height, kernel);
  if (wider) return resize_columns(image, size.width, kernel);
  if (taller) return resize_rows(image, size.height, kernel);
  Tensor same = Tensor::uninitialized(DType::kU8, image.shape());
  const int64_t row = image.extent(1) * kChannels;
  for (int64_t y = 0; y < image.extent(0); ++y) {
    std::memcpy(same.data<uint8_t>() + y * row, image.data<uint8_t>() + y * image.stride(0), static_cast<size_t>(row));
  }
  return same;
}

}  // namespace zoetrope::io
