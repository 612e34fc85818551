#include "kernels/norm/reference.h"

#include <cmath>
#include <vector>

#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

double read(const TensorView& view, int64_t offset) {
  return view.dtype() == DType::kBF16 ? to_float(view.data<BFloat16>()[offset]) : view.data<float>()[offset];
}

void write(const TensorView& view, int64_t offset, double value) {
  const auto rounded = static_cast<float>(value);
  if (view.dtype() == DType::kBF16) view.data<BFloat16>()[offset] = to_bfloat16(rounded);
  else view.data<float>()[offset] = rounded;
}

}  // namespace

void layer_norm_reference(Stream&, const LayerNorm& a) {
  const int64_t d = a.x.extent(2);
  const auto count = static_cast<double>(d);
  for (int64_t b = 0; b < a.x.extent(0); ++b) {
    for (int64_t s = 0; s < a.x.extent(1); ++s) {
      const int64_t row = b * a.x.stride(0) + s * a.x.stride(1);
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < d; ++i) mean += read(a.x, row + i) / count;
      for (int64_t i = 0; i < d; ++i) variance += std::pow(read(a.x, row + i) - mean, 2) / count;
      for (int64_t i = 0; i < d; ++i) {
        double y = (read(a.x, row + i) - mean) / std::sqrt(variance + static_cast<double>(a.eps));
        if (a.weight) y = y * read(a.weight, i) + read(a.bias, i);
        if (a.scale) {
          const int64_t token = a.scale.extent(1) == 1 ? 0 : s;
          y = y * (1 + read(a.scale, b * a.scale.stride(0) + token * a.scale.stride(1) + i)) +
              read(a.shift, b * a.shift.stride(0) + token * a.shift.stride(1) + i);
        }
        if (a.round_to_bf16) y = to_float(to_bfloat16(static_cast<float>(y)));
        write(a.out, b * a.out.stride(0) + s * a.out.stride(1) + i, y);
      }
    }
  }
}

void rms_norm_rope_reference(Stream&, const RmsNormRope& a) {
  const int64_t heads = a.x.extent(2), d = a.x.extent(3);
  std::vector<double> y(static_cast<size_t>(heads * d));
  for (int64_t b = 0; b < a.x.extent(0); ++b) {
    for (int64_t s = 0; s < a.x.extent(1); ++s) {
      double square = 0;
      for (int64_t i = 0; i < heads * d; ++i) {
        auto& value = y[static_cast<size_t>(i)];
        value = read(a.x, b * a.x.stride(0) + s * a.x.stride(1) + i / d * a.x.stride(2) + i % d);
        square += value * value;
      }
      const double scale = 1 / std::sqrt(square / static_cast<double>(heads * d) + static_cast<double>(a.eps));
      if (a.weight)
        for (int64_t i = 0; i < heads * d; ++i) y[static_cast<size_t>(i)] *= scale * read(a.weight, i);
      if (a.cos)
        for (int64_t i = 0; i < heads * d; i += 2) {
          const double c = read(a.cos, s * a.cos.stride(0) + i % d / 2);
          const double n = read(a.sin, s * a.sin.stride(0) + i % d / 2);
          double &even = y[static_cast<size_t>(i)], &odd = y[static_cast<size_t>(i + 1)];
          const double rotated = even * c - odd * n;
          odd = even * n + odd * c;
          even = rotated;
        }
      for (const HeadSlot& slot : a.slots)
        for (int64_t h = slot.heads.begin; h < slot.heads.end; ++h)
          for (int64_t i = 0; i < d; ++i) {
            const TensorView& out = slot.out;
            const int64_t at = b * out.stride(0) + s * out.stride(1) + (h - slot.heads.begin) * out.stride(2) + i;
            write(out, at, y[static_cast<size_t>(h * d + i)]);
          }
    }
  }
}

void rms_norm_reference(Stream&, const RmsNorm& a) {
  const int64_t d = a.x.extent(1);
  for (int64_t m = 0; m < a.x.extent(0); ++m) {
    double square = 0;
    for (int64_t i = 0; i < d; ++i) square += std::pow(read(a.x, m * a.x.stride(0) + i), 2);
    const double scale = 1 / std::sqrt(square / static_cast<double>(d) + static_cast<double>(a.eps));
    for (int64_t i = 0; i < d; ++i) {
      double normal = read(a.x, m * a.x.stride(0) + i) * scale;
      if (a.out.dtype() == DType::kBF16) normal = to_float(to_bfloat16(static_cast<float>(normal)));
      write(a.out, m * a.out.stride(0) + i, normal * read(a.weight, i));
    }
  }
}

}  // namespace zoetrope::kernels
