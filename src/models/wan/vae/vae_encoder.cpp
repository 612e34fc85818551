// Frames to latents. Frames enter one or two at a time; a stage that halves time gives nothing until it has a pair.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/vae_pieces.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

struct DownStage {
  explicit DownStage(const StageWeights& weights) : chain(weights.resnets) {
    if (weights.resample) downsampler.emplace(*weights.resample);
  }
  ResidualChain chain;
  std::optional<Downsampler> downsampler;
};

std::string_view without_prefix(std::string_view name) { return name.substr(name.find('.') + 1); }

}  // namespace

struct VaeEncoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)), weights(owner->encoder()), in(weights.in), middle(weights), out(weights.out) {
    for (const StageWeights& stage : weights.stages) stages.emplace_back(stage);
  }

  void start(Stream& stream, FrameSize size) {
    piece = frames_at_once(size, weights.layout.in.out);
    int64_t at_once = piece;
    in.start(stream, at_once, size);
    for (DownStage& stage : stages) {
      stage.chain.start(stream, at_once, size);
      if (!stage.downsampler) continue;
      stage.downsampler->start(stream, at_once, size);
      size = Downsampler::out_size(size);
      if (stage.downsampler->halves_frames()) at_once = (at_once + 1) / 2;
    }
    middle.start(stream, at_once, size);
    out.start(stream, at_once, size);
    next_latent = 0;
  }

  void run_piece(const VaeRun& run, const TensorView& video /* [n, H, W, 3] */) {
    const Arena::Scope scope(run.arena);
    const int64_t count = video.extent(0);
    copy(run.stream, in.input(count), video);
    const TensorView x = run.frames(count, video.extent(1), video.extent(2), weights.layout.in.out);
    in.run(run.stream, count, x);
    show("conv_in", x);
    run_stages(run, x);
  }

  void run_stages(const VaeRun& run, TensorView x) {
    for (size_t index = 0; index < stages.size(); ++index) {
      DownStage& stage = stages[index];
      const StageLayout& layout = weights.layout.stages[index];
      size_t block = 0;
      x = stage.chain.run(run, x, {},
                          [&](const TensorView& y) { show(without_prefix(layout.resnets[block++].name), y); });
      if (!stage.downsampler) continue;
      x = stage.downsampler->run(run, x);
      if (!x) return;
      show(without_prefix(layout.resample->name), x);
    }
    middle.run(run, x);
    show("mid_block", x);
    finish(run, x);
  }

  void finish(const VaeRun& run, const TensorView& x) {
    const int64_t count = x.extent(0), channels = weights.layout.quant.out;
    norm_silu(run.stream, x, weights.gamma_out, out.input(count));
    const TensorView raw = run.frames(count, x.extent(1), x.extent(2), channels);
    out.run(run.stream, count, raw);
    show("conv_out", raw);
    const TensorView quantized = run.frames(count, x.extent(1), x.extent(2), channels);
    weights.quant.run(run.stream, raw, quantized);
    copy(run.stream, moments.slice(1, next_latent, next_latent + count), quantized.permute({3, 0, 1, 2}));
    next_latent += count;
  }

  void show(std::string_view name, const TensorView& x) const { observe(*probe, name, x.permute({3, 0, 1, 2})); }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  CausalConv in;
  std::vector<DownStage> stages;
  MiddleBlock middle;
  CausalConv out;
  Arena arena;

  // Of the clip in work.
  int64_t piece = 1;  // frames that enter at once, after the first
  int64_t next_latent = 0;
  TensorView moments;  // [2·z, T, h, w]
  const Probe* probe = nullptr;
};

VaeEncoder::VaeEncoder(std::shared_ptr<const VaeWeights> weights) : impl_(std::make_unique<Impl>(std::move(weights))) {}
VaeEncoder::~VaeEncoder() = default;
VaeEncoder::VaeEncoder(VaeEncoder&&) noexcept = default;

Shape VaeEncoder::moments_shape(const Shape& video_shape) const {
  const VaeConfig& config = impl_->owner->config();
  const int64_t factor = spatial_factor(config);
  if (video_shape.rank() != 4 || video_shape[0] < 1 || video_shape[1] < factor || video_shape[2] < factor ||
      video_shape[3] != config.in_channels) {
    fail("the VAE encodes video [F, H, W, {}] with at least 1 frame of {}×{}, not {}", config.in_channels, factor,
         factor, video_shape.to_string());
  }
  return {2 * config.z_dim, latent_frames(config, video_shape[0]), video_shape[1] / factor, video_shape[2] / factor};
}

void VaeEncoder::encode(Stream& stream, const TensorView& video, const TensorView& moments, const Probe& probe) {
  const Shape expected = moments_shape(video.shape());
  if (video.dtype() != DType::kF32) fail("the VAE encodes F32 video, not {}", dtype_name(video.dtype()));
  impl_->moments = without_batch(moments, "the VAE's moments", "2·z, T, h, w");
  if (!(impl_->moments.shape() == expected)) {
    fail("the VAE's moments of video {} are {}, not {}", video.shape().to_string(), expected.to_string(),
         moments.shape().to_string());
  }
  impl_->probe = &probe;
  impl_->start(stream, {video.extent(1), video.extent(2)});
  const VaeRun run{stream, impl_->arena};
  const int64_t used = video_frames(impl_->owner->config(), expected[1]);
  for (int64_t begin = 0; begin < used;) {
    const int64_t count = begin == 0 ? 1 : std::min(impl_->piece, used - begin);
    impl_->run_piece(run, video.slice(0, begin, begin + count));
    begin += count;
  }
}

size_t VaeEncoder::workspace_bytes() const {
  size_t bytes = impl_->arena.reserved() + impl_->in.bytes() + impl_->middle.bytes() + impl_->out.bytes();
  for (const DownStage& stage : impl_->stages) {
    bytes += stage.chain.bytes() + (stage.downsampler ? stage.downsampler->bytes() : 0);
  }
  return bytes;
}

}  // namespace zoetrope::wan
