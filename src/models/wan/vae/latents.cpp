#include "models/wan/vae/latents.h"

#include "base/error.h"
#include "models/wan/vae/without_batch.h"

namespace zoetrope::wan {
namespace {

// Latents are small (2 M values for 81 frames at 480×832): one thread, any strides.
template <typename Function>
void map_channels(const VaeConfig& config, const TensorView& latents, const TensorView& out, Function&& function) {
  const TensorView x = without_batch(latents, "latents", "z, T, h, w");
  const TensorView y = without_batch(out, "the result for latents", "z, T, h, w");
  ZT_CHECK(x.shape() == y.shape());
  const auto channels = static_cast<int64_t>(config.latents_mean.size());
  if (x.extent(0) != channels || config.latents_std.size() != config.latents_mean.size()) {
    fail("latents have {} channels, but the VAE's config has {} values in latents_mean and {} in latents_std",
         x.extent(0), config.latents_mean.size(), config.latents_std.size());
  }
  for (int64_t c = 0; c < x.extent(0); ++c) {
    const float mean = config.latents_mean[static_cast<size_t>(c)];
    const float reciprocal = 1.0f / config.latents_std[static_cast<size_t>(c)];
    for (int64_t t = 0; t < x.extent(1); ++t) {
      for (int64_t h = 0; h < x.extent(2); ++h) {
        const float* from = x.data<float>() + c * x.stride(0) + t * x.stride(1) + h * x.stride(2);
        float* to = y.data<float>() + c * y.stride(0) + t * y.stride(1) + h * y.stride(2);
        for (int64_t w = 0; w < x.extent(3); ++w) {
          to[w * y.stride(3)] = function(from[w * x.stride(3)], mean, reciprocal);
        }
      }
    }
  }
}

}  // namespace

TensorView mode(const TensorView& moments) {
  ZT_CHECK(moments.rank() == 4 || moments.rank() == 5);
  const int channel_axis = moments.rank() - 4;
  return moments.slice(channel_axis, 0, moments.extent(channel_axis) / 2);
}

void normalize_latents(const VaeConfig& config, const TensorView& latents, const TensorView& out) {
  map_channels(config, latents, out, [](float x, float mean, float reciprocal) { return (x - mean) * reciprocal; });
}

void denormalize_latents(const VaeConfig& config, const TensorView& latents, const TensorView& out) {
  map_channels(config, latents, out, [](float x, float mean, float reciprocal) { return x / reciprocal + mean; });
}

}  // namespace zoetrope::wan
