#include "models/wan/vae/vae_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace zoetrope::wan {
namespace {

// Frames per piece after the first frame, as the reference divides a clip; left-over frames are dropped.
constexpr int64_t kEncodeChunk = 4;

ConvLayout causal_conv(const std::string& name, int64_t in, int64_t out) { return {name, in, out, {3, 3, 3}, false}; }
ConvLayout pointwise_conv(const std::string& name, int64_t in, int64_t out) {
  return {name, in, out, {1, 1, 1}, false};
}
ConvLayout frame_conv(const std::string& name, int64_t in, int64_t out, int64_t kernel) {
  return {name, in, out, {1, kernel, kernel}, true};
}

ResidualLayout residual(const std::string& name, int64_t in, int64_t out) {
  ResidualLayout layout;
  layout.name = name;
  layout.norm1 = {name + ".norm1", in};
  layout.conv1 = causal_conv(name + ".conv1", in, out);
  layout.norm2 = {name + ".norm2", out};
  layout.conv2 = causal_conv(name + ".conv2", out, out);
  if (in != out) layout.shortcut = pointwise_conv(name + ".conv_shortcut", in, out);
  return layout;
}

AttentionLayout attention(const std::string& name, int64_t channels) {
  return {name,
          {name + ".norm", channels, 2},
          frame_conv(name + ".to_qkv", channels, 3 * channels, 1),
          frame_conv(name + ".proj", channels, channels, 1)};
}

ResampleLayout downsample(const std::string& name, int64_t channels, bool time) {
  ResampleLayout layout{name, Scaling::kDown, frame_conv(name + ".resample.1", channels, channels, 3), {}};
  if (time) layout.time = ConvLayout{name + ".time_conv", channels, channels, {3, 1, 1}, false};
  return layout;
}

ResampleLayout upsample(const std::string& name, int64_t channels, int64_t out, bool time) {
  ResampleLayout layout{name, Scaling::kUp, frame_conv(name + ".resample.1", channels, out, 3), {}};
  if (time) layout.time = ConvLayout{name + ".time_conv", channels, 2 * channels, {3, 1, 1}, false};
  return layout;
}

void set_middle(CoderLayout& layout, const std::string& prefix, int64_t channels) {
  layout.middle_first = residual(prefix + ".mid_block.resnets.0", channels, channels);
  layout.middle_attention = attention(prefix + ".mid_block.attentions.0", channels);
  layout.middle_last = residual(prefix + ".mid_block.resnets.1", channels, channels);
}

// The shortcut around a stage, which may change sizes as `resample` does.
ShortcutLayout shortcut(const StageLayout& stage, int64_t in, int64_t out, Scaling scaling) {
  ShortcutLayout layout{in, out};
  if (scaling == Scaling::kUp) std::swap(layout.large, layout.small);
  if (stage.resample) layout.space = 2;
  if (stage.resample && stage.resample->time) layout.time = 2;
  const int64_t values = layout.large * layout.time * layout.space * layout.space;
  if (values % layout.small != 0) {
    fail("the VAE's stage {} has no shortcut: {} values of a cell make no whole groups for {} channels", stage.name,
         values, layout.small);
  }
  return layout;
}

void require_layout(const VaeConfig& config) {
  if (config.dim_mult.empty() || config.temporal_downsample.size() + 1 != config.dim_mult.size()) {
    fail("the VAE's config has {} values in dim_mult and {} in temperal_downsample; there must be one less",
         config.dim_mult.size(), config.temporal_downsample.size());
  }
  if (kEncodeChunk % config.temporal_factor() != 0) {
    fail("the VAE's temperal_downsample halves the frames {} times; at most twice is possible",
         std::count(config.temporal_downsample.begin(), config.temporal_downsample.end(), true));
  }
}

}  // namespace

Shape ConvLayout::weight_shape() const {
  if (per_frame) return {out, in, kernel[1], kernel[2]};
  return {out, in, kernel[0], kernel[1], kernel[2]};
}

Shape NormLayout::gamma_shape() const {
  Shape shape{channels};
  for (int axis = 0; axis < trailing; ++axis) shape.append(1);
  return shape;
}

CoderLayout encoder_layout(const VaeConfig& config) {
  require_layout(config);
  const size_t levels = config.dim_mult.size();
  CoderLayout layout;
  int64_t channels = config.base_dim;
  layout.in = causal_conv("encoder.conv_in", config.in_channels, channels);
  int index = 0;  // where there are no stages to the names, down_blocks is one flat list
  for (size_t level = 0; level < levels; ++level) {
    StageLayout stage;
    if (config.is_residual) stage.name = fmt::format("down_blocks.{}", level);
    const auto part = [&](const std::string& of_stage) {
      return config.is_residual ? fmt::format("encoder.{}.{}", stage.name, of_stage)
                                : fmt::format("encoder.down_blocks.{}", index++);
    };
    const int64_t in = channels;
    for (int64_t block = 0; block < config.num_res_blocks; ++block) {
      const int64_t out = config.base_dim * config.dim_mult[level];
      stage.resnets.push_back(residual(part(fmt::format("resnets.{}", block)), channels, out));
      channels = out;
    }
    if (level + 1 < levels)
      stage.resample = downsample(part("downsampler"), channels, config.temporal_downsample[level]);
    if (config.is_residual) stage.shortcut = shortcut(stage, in, channels, Scaling::kDown);
    layout.stages.push_back(std::move(stage));
  }
  set_middle(layout, "encoder", channels);
  layout.norm_out = {"encoder.norm_out", channels};
  layout.out = causal_conv("encoder.conv_out", channels, 2 * config.z_dim);
  layout.quant = pointwise_conv("quant_conv", 2 * config.z_dim, 2 * config.z_dim);
  return layout;
}

CoderLayout decoder_layout(const VaeConfig& config) {
  require_layout(config);
  const size_t levels = config.dim_mult.size();
  CoderLayout layout;
  layout.quant = pointwise_conv("post_quant_conv", config.z_dim, config.z_dim);
  int64_t channels = config.decoder_base_dim * config.dim_mult.back();
  layout.in = causal_conv("decoder.conv_in", config.z_dim, channels);
  set_middle(layout, "decoder", channels);
  for (size_t level = 0; level < levels; ++level) {
    StageLayout stage;
    stage.name = fmt::format("up_blocks.{}", level);
    const std::string prefix = "decoder." + stage.name;
    const int64_t in = channels, out = config.decoder_base_dim * config.dim_mult[levels - 1 - level];
    for (int64_t block = 0; block <= config.num_res_blocks; ++block) {
      stage.resnets.push_back(residual(fmt::format("{}.resnets.{}", prefix, block), channels, out));
      channels = out;
    }
    if (level + 1 < levels) {
      if (!config.is_residual) channels /= 2;
      if (channels < 1) fail("the VAE's decoder cannot halve its {} channels; base_dim is too small", out);
      stage.resample = upsample(prefix + (config.is_residual ? ".upsampler" : ".upsamplers.0"), out, channels,
                                config.temporal_downsample[levels - 2 - level]);
      if (config.is_residual) stage.shortcut = shortcut(stage, in, channels, Scaling::kUp);
    }
    layout.stages.push_back(std::move(stage));
  }
  layout.norm_out = {"decoder.norm_out", channels};
  layout.out = causal_conv("decoder.conv_out", channels, config.out_channels);
  return layout;
}

int64_t layer_factor(const VaeConfig& config) { return int64_t{1} << config.temporal_downsample.size(); }

int64_t pixel_channels(const VaeConfig& config, int64_t channels) {
  return channels / (config.patch_size * config.patch_size);
}

int64_t VaeConfig::temporal_factor() const {
  int64_t factor = 1;
  for (const bool halves : temporal_downsample) factor *= halves ? 2 : 1;
  return factor;
}

int64_t VaeConfig::spatial_factor() const { return layer_factor(*this) * patch_size; }

int64_t VaeConfig::latent_frames(int64_t video_frames) const {
  const int64_t used = (video_frames - 1) / kEncodeChunk * kEncodeChunk;
  return 1 + used / temporal_factor();
}

int64_t VaeConfig::video_frames(int64_t latent_frames) const { return 1 + (latent_frames - 1) * temporal_factor(); }

}  // namespace zoetrope::wan
