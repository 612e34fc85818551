#include "models/wan/vae/preview_latents.h"

#include <algorithm>

namespace zoetrope::wan {
namespace {

constexpr int64_t kMostPixels = 256;  // of a side
constexpr int64_t kMostFrames = 24;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t shown_frame(int64_t index, int64_t shown, int64_t frames) {
  return shown == frames ? index : index * (frames - 1) / (shown - 1);
}

}  // namespace

int64_t preview_cells(const VaeConfig& config, int64_t latent_height, int64_t latent_width) {
  return ceil_div(std::max(latent_height, latent_width) * config.spatial_factor(), kMostPixels);
}

int64_t preview_frames(int64_t latent_frames) { return std::min(latent_frames, kMostFrames); }

Tensor preview_latents(const VaeConfig& config, const TensorView& latents, const TensorView& velocity, double noise) {
  const int64_t channels = latents.extent(1), frames = latents.extent(2);
  const int64_t height = latents.extent(3), width = latents.extent(4);
  const int64_t cells = preview_cells(config, height, width), shown = preview_frames(frames);
  Tensor small =
      Tensor::uninitialized(DType::kF32, {1, channels, shown, ceil_div(height, cells), ceil_div(width, cells)});
  const auto level = static_cast<float>(noise);
  float* to = small.data<float>();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t f = 0; f < shown; ++f) {
      const int64_t frame = shown_frame(f, shown, frames);
      const TensorView from = latents.select(0, 0).select(0, c).select(0, frame);
      const TensorView change = velocity.select(0, 0).select(0, c).select(0, frame);
      for (int64_t y = 0; y < height; y += cells) {
        for (int64_t x = 0; x < width; x += cells) {
          const int64_t end_y = std::min(y + cells, height), end_x = std::min(x + cells, width);
          float sum = 0;
          for (int64_t i = y; i < end_y; ++i) {
            const float* values = from.select(0, i).data<float>();
            const float* changes = change.select(0, i).data<float>();
            for (int64_t j = x; j < end_x; ++j)
              sum += values[j * from.stride(1)] - level * changes[j * change.stride(1)];
          }
          *to++ = sum / static_cast<float>((end_y - y) * (end_x - x));
        }
      }
    }
  }
  return small;
}

}  // namespace zoetrope::wan
