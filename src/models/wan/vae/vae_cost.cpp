#include "models/wan/vae/vae_cost.h"

#include <algorithm>

#include "base/error.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_shortcut.h"

namespace zoetrope::wan {
namespace {

// Pairs (output in `range`, tap) whose input lies in [0, size).
int64_t taps_inside(IndexRange range, int64_t kernel, int64_t stride, int64_t offset, int64_t size) {
  int64_t count = 0;
  for (int64_t at = range.begin; at < range.end; ++at) {
    const int64_t first = at * stride + offset;
    count += std::max<int64_t>(0, std::min(first + kernel, size) - std::max<int64_t>(first, 0));
  }
  return count;
}

// Frames that a causal convolution over `kernel` frames sees, summed over a clip.
int64_t frames_seen(int64_t clip, int64_t kernel) {
  int64_t count = 0;
  for (int64_t t = 0; t < clip; ++t) count += std::min(t + 1, kernel);
  return count;
}

// Counts while a clip passes the layers of one half.
class Count {
 public:
  Count(int64_t frames, int64_t height, int64_t width) : frames_(frames), height_(height), width_(width) {}
  double flops() const { return flops_; }
  int64_t frames() const { return frames_; }

  void causal(const ConvLayout& conv) { add(conv, frames_seen(frames_, conv.kernel[0]), 1, conv.kernel[1] / 2); }
  void residual(const ResidualLayout& block) {
    causal(block.conv1);
    causal(block.conv2);
    if (block.shortcut) causal(*block.shortcut);
  }
  void middle(const CoderLayout& layout) {
    residual(layout.middle_first);
    causal(layout.middle_attention.to_qkv);
    causal(layout.middle_attention.proj);
    const int64_t tokens = height_ * width_;
    flops_ += static_cast<double>(frames_) * attention_flops(tokens, tokens, layout.middle_attention.proj.in);
    residual(layout.middle_last);
  }
  // As four 2×2 convolutions on the small picture, see UpsampleWeights.
  void up(const ResampleLayout& resample) {
    if (resample.time) {
      const int64_t later = frames_ - 1;
      const double products = 2.0 * static_cast<double>(resample.time->in * resample.time->out);
      flops_ += products * static_cast<double>(height_ * width_ * frames_seen(later, resample.time->kernel[0]));
      frames_ += later;
    }
    const double taps = static_cast<double>((4 * height_ - 2) * (4 * width_ - 2));
    flops_ += 2.0 * taps * static_cast<double>(resample.spatial.in * resample.spatial.out * frames_);
    height_ *= 2;
    width_ *= 2;
  }
  void down(const ResampleLayout& resample, bool shortcut) {
    const int64_t twice = shortcut && resample.time ? 1 : 0;  // the first frame, see Downsampler::run()
    add(resample.spatial, frames_ + twice, 2, 0);
    height_ /= 2;
    width_ /= 2;
    if (!resample.time) return;
    const int64_t later = (frames_ - 1) / 2;
    const double products = 2.0 * static_cast<double>(resample.time->in * resample.time->out);
    flops_ += products * static_cast<double>(height_ * width_ * later * resample.time->kernel[0]);
    frames_ = 1 + later;
  }

 private:
  void add(const ConvLayout& conv, int64_t frames, int64_t stride, int64_t before) {
    kernels::FrameConvProblem problem;
    problem.in_channels = conv.in;
    problem.out_channels = conv.out;
    problem.kernel = {conv.kernel[1], conv.kernel[2]};
    problem.stride = stride;
    flops_ += convolution_flops(problem, {0, height_ / stride}, width_ / stride, height_, width_, frames, before);
  }

  int64_t frames_, height_, width_;
  double flops_ = 0;
};

constexpr int64_t kInWork = 3;  // frames of a residual block in addition to its histories

// Memory of frames, stage by stage.
class FrameMemory {
 public:
  FrameMemory(DType dtype, FrameRows place) : dtype_(dtype), place_(place) {}
  size_t bytes() const { return bytes_; }
  const FrameRows& place() const { return place_; }

  void frames(int64_t count, int64_t channels) { add(count, place_.count() + 2, place_.width + 2, channels); }
  void plain(int64_t count, int64_t channels) { add(count, place_.count(), place_.width, channels); }
  // Histories of `blocks` residual blocks from `in` to `out` channels, with the three current frames (plain values,
  // input of a convolution, input of the next one) and `more` frames of `out` channels.
  void residuals(const StageLayout& stage, int64_t more) {
    const int64_t in = stage.resnets.front().conv1.in, out = stage.resnets.front().conv1.out;
    const auto blocks = static_cast<int64_t>(stage.resnets.size());
    const int64_t histories = 4 * blocks;
    if (in == out) return frames(histories + kInWork + more, out);
    frames(4, in);  // the first convolution's history, what it reads and the plain values
    const int64_t in_work = blocks == 1 && stage.resample ? 2 : kInWork;  // a resampler reads plain values
    frames(histories - 2 + in_work + more, out);
  }
  // Queries and the result, keys and values; those of the whole picture if this is a part.
  void attention(int64_t channels, bool split) {
    plain(2, channels);
    plain(1, 2 * channels);
    if (split) add(1, place_.height, place_.width, 2 * channels);
  }
  void enlarge() { place_ = {{2 * place_.rows.begin, 2 * place_.rows.end}, 2 * place_.height, 2 * place_.width}; }
  void reduce() { place_ = {{place_.rows.begin / 2, place_.rows.end / 2}, place_.height / 2, place_.width / 2}; }

 private:
  void add(int64_t count, int64_t rows, int64_t width, int64_t channels) {
    bytes_ += static_cast<size_t>(count * rows * width * channels) * dtype_size(dtype_);
  }
  DType dtype_;
  FrameRows place_;
  size_t bytes_ = 0;
};

constexpr int64_t kMiddleHistories = 8;  // two of each of four convolutions
constexpr int64_t kHistory = 2;

size_t decoder_bytes(const VaeConfig& config, const FrameRows& latent, DType dtype, bool split) {
  const CoderLayout layout = decoder_layout(config);
  FrameMemory memory(dtype, latent);
  memory.frames(kHistory + 2, layout.quant.in);
  memory.attention(layout.middle_attention.proj.in, split);
  for (size_t index = 0; index < layout.stages.size(); ++index) {
    const StageLayout& stage = layout.stages[index];
    int64_t more = index == 0 ? kMiddleHistories : 0;
    if (!stage.resample || stage.resample->time) more += kHistory;  // of the upsampler, or of conv_out
    memory.residuals(stage, more);
    if (stage.shortcut) memory.frames(copied_pictures(*stage.shortcut), stage.shortcut->large);
    if (stage.resample) memory.enlarge();
  }
  memory.plain(1, layout.out.out);
  const FrameRows& place = memory.place();
  return memory.bytes() + static_cast<size_t>(place.count() * place.width * layout.out.out) * sizeof(float);
}

size_t encoder_bytes(const VaeConfig& config, const FrameRows& video, DType dtype, bool split) {
  const CoderLayout layout = encoder_layout(config);
  FrameMemory memory(dtype, video);
  memory.frames(kHistory + 1, layout.in.in);
  int64_t arriving = 2;  // frames that the stage before needs of its result's size: plain and normed
  for (const StageLayout& stage : layout.stages) {
    const int64_t in = stage.resnets.front().conv1.in, out = stage.resnets.front().conv1.out;
    const bool last = !stage.resample;
    int64_t more = last ? kMiddleHistories + kHistory : 0;
    const int64_t kept = last && stage.shortcut ? 1 : 0;  // elsewhere what a shortcut keeps is of the next stage's size
    // The incoming frames, or the current ones, which residuals() counts.
    if (in == out) {
      more += std::max(kept, arriving - kInWork);
    } else {
      more += kept;
      memory.frames(arriving - 2, in);
    }
    memory.residuals(stage, more);
    if (last) continue;
    // While two frames become one, five frames exist besides the histories: the pair, the one before, and the result.
    arriving = (stage.resample->time ? 5 : 2) + (stage.shortcut ? 1 : 0);
    memory.reduce();
  }
  memory.attention(layout.middle_attention.proj.in, split);
  memory.frames(1, layout.out.out);
  memory.plain(1, layout.out.out);
  return memory.bytes();
}

size_t workspace(const VaeConfig& config, int64_t height, int64_t width, DType dtype, VaeParts part, IndexRange rows,
                 bool split) {
  ZT_CHECK(part != VaeParts::kBoth);
  const int64_t factor = layer_factor(config), latent = height / config.spatial_factor();
  if (part == VaeParts::kDecoder) {
    return decoder_bytes(config, {rows, latent, width / config.spatial_factor()}, dtype, split);
  }
  const int64_t patch = config.patch_size, end = rows.end == latent ? height / patch : factor * rows.end;
  return encoder_bytes(config, {{factor * rows.begin, end}, height / patch, width / patch}, dtype, split);
}

}  // namespace

double convolution_flops(const kernels::FrameConvProblem& p, IndexRange rows, int64_t columns, int64_t input_height,
                         int64_t input_width, int64_t frames, int64_t border) {
  const int64_t down = taps_inside(rows, p.kernel[0], p.stride, p.origin[0] - border, input_height);
  const int64_t across = taps_inside({0, columns}, p.kernel[1], p.stride, p.origin[1] - border, input_width);
  return 2.0 * static_cast<double>(down * across) * static_cast<double>(p.in_channels * p.out_channels * frames);
}

double attention_flops(int64_t queries, int64_t keys, int64_t channels) {
  return 4.0 * static_cast<double>(queries) * static_cast<double>(keys) * static_cast<double>(channels);
}

double vae_decode_flops(const VaeConfig& config, int64_t latent_frames, int64_t latent_height, int64_t latent_width) {
  const CoderLayout layout = decoder_layout(config);
  Count count(latent_frames, latent_height, latent_width);
  count.causal(layout.quant);
  count.causal(layout.in);
  count.middle(layout);
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) count.residual(block);
    if (stage.resample) count.up(*stage.resample);
  }
  count.causal(layout.out);
  return count.flops();
}

double vae_encode_flops(const VaeConfig& config, int64_t video_frames_given, int64_t height, int64_t width) {
  const CoderLayout layout = encoder_layout(config);
  const int64_t frames = config.video_frames(config.latent_frames(video_frames_given)), patch = config.patch_size;
  Count count(frames, height / patch, width / patch);
  count.causal(layout.in);
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) count.residual(block);
    if (stage.resample) count.down(*stage.resample, stage.shortcut.has_value());
  }
  count.middle(layout);
  count.causal(layout.out);
  count.causal(layout.quant);
  return count.flops();
}

size_t vae_workspace_bytes(const VaeConfig& config, int64_t height, int64_t width, DType dtype, VaeParts part) {
  return workspace(config, height, width, dtype, part, {0, height / config.spatial_factor()}, false);
}

size_t vae_workspace_bytes(const VaeConfig& config, int64_t height, int64_t width, DType dtype, VaeParts part,
                           IndexRange latent_rows) {
  return workspace(config, height, width, dtype, part, latent_rows, true);
}

size_t vae_attention_scratch_bytes(const VaeConfig& config, int64_t height, int64_t width, VaeParts part) {
  ZT_CHECK(part != VaeParts::kBoth);
  const CoderLayout layout = part == VaeParts::kDecoder ? decoder_layout(config) : encoder_layout(config);
  const int64_t factor = config.spatial_factor(), tokens = (height / factor) * (width / factor);
  return static_cast<size_t>(tokens * 2 * layout.middle_attention.proj.in) * sizeof(float);
}

}  // namespace zoetrope::wan
