// Frames to latents, frame by frame. A stage that halves time gives nothing until it has a pair.
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/without_batch.h"

namespace zoetrope::wan {
namespace {

std::string_view without_prefix(std::string_view name) { return name.substr(name.find('.') + 1); }

}  // namespace

struct VaeEncoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)), weights(owner->encoder()), in(weights.in), middle(weights), out(weights.out) {
    for (const StageWeights& stage : weights.stages) stages.emplace_back(stage.resnets, stage.down);
  }

  // Forgets the clip before.
  void start() {
    in.start();
    for (Stage<Downsampler>& stage : stages) stage.start();
    middle.start();
    out.start();
    next_latent = 0;
  }

  void run_frame(const VaeRun& run, const TensorView& frame /* [1, H, W, 3] */) {
    Frame pixels = pool.take(frame.extent(1), frame.extent(2), frame.extent(3));
    copy(run.stream, pixels.view(), frame);
    Frame x = run.like(pixels, in.out_channels());
    in.run(run, std::move(pixels), x.view());
    show("conv_in", x);
    for (size_t index = 0; index < stages.size(); ++index) {
      Stage<Downsampler>& stage = stages[index];
      const StageLayout& layout = weights.layout.stages[index];
      for (size_t block = 0; block < stage.resnets.size(); ++block) {
        x = stage.resnets[block].run(run, std::move(x));
        show(without_prefix(layout.resnets[block].name), x);
      }
      if (!stage.resampler) continue;
      x = stage.resampler->run(run, std::move(x));
      if (!x) return;
      show(without_prefix(layout.resample->name), x);
    }
    x = middle.run(run, std::move(x));
    show("mid_block", x);
    finish(run, std::move(x));
  }

  void finish(const VaeRun& run, Frame x) {
    norm_silu(run, x.view(), weights.gamma_out, x.view());
    const Frame raw = run.like(x, out.out_channels()), quantized = run.like(x, out.out_channels());
    out.run(run, std::move(x), raw.view());
    show("conv_out", raw);
    weights.quant.run(run.stream, raw.view(), quantized.view());
    copy(run.stream, moments.slice(1, next_latent, next_latent + 1), quantized.view().permute({3, 0, 1, 2}));
    ++next_latent;
  }

  void show(std::string_view name, const Frame& x) const { observe(*probe, name, x.view().permute({3, 0, 1, 2})); }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  FramePool pool;  // outlives the frames that the layers keep
  CausalConv in;
  std::vector<Stage<Downsampler>> stages;
  MiddleBlock middle;
  CausalConv out;

  // Of the clip in work.
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
  impl_->start();
  impl_->pool.trim_to({video.extent(1), video.extent(2)});
  const VaeRun run{stream, impl_->pool};
  const int64_t used = video_frames(impl_->owner->config(), expected[1]);
  for (int64_t frame = 0; frame < used; ++frame) impl_->run_frame(run, video.slice(0, frame, frame + 1));
  impl_->start();  // gives the histories back for whoever comes next
}

size_t VaeEncoder::workspace_bytes() const { return impl_->pool.bytes(); }

}  // namespace zoetrope::wan
