// Frames to latents, frame by frame. A stage that halves time gives nothing until it has a pair.
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/vae_pixels.h"
#include "models/wan/vae/without_batch.h"
#include "tensor/dispatch.h"

namespace zoetrope::wan {
namespace {

std::string_view without_prefix(std::string_view name) { return name.substr(name.find('.') + 1); }

}  // namespace

struct VaeEncoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)),
        weights(owner->encoder()),
        pool(owner->dtype()),
        in(weights.in),
        middle(weights),
        out(weights.out) {
    for (size_t i = 0; i < weights.stages.size(); ++i) {
      stages.emplace_back(weights.stages[i], weights.stages[i].down, weights.layout.stages[i]);
    }
  }

  // Forgets the previous clip.
  void start() {
    in.start();
    for (Stage<Downsampler>& stage : stages) stage.start();
    middle.start();
    out.start();
    next_latent = 0;
  }

  // The norm after the previous stage.
  NextNorm norm_of_stage(size_t index) const {
    return index < stages.size() ? stages[index].resnets.front().first_norm() : middle.first_norm();
  }

  void run_frame(const VaeRun& run, const FrameRows& place, const TensorView& frame /* own rows [H, W, 3] */) {
    Frame pixels = run.take(place, weights.layout.in.in);
    load_pixels(run.stream.team(), frame, owner->config().patch_size, pixels.view());
    Values x{run.like(pixels, in.out_channels()), run.like(pixels, in.out_channels())};
    kernels::FrameConvOutput entered;
    entered.raw = x.raw.view();
    entered.normed = x.normed.view();
    entered.gamma = norm_of_stage(0).gamma;
    entered.silu = norm_of_stage(0).silu;
    in.run(run, std::move(pixels), entered);
    show(run, "conv_in", x.raw);
    for (size_t index = 0; index < stages.size(); ++index) {
      x = run_stage(run, index, std::move(x));
      if (!x) return;
    }
    x = middle.run(run, std::move(x), {weights.gamma_out, true});
    show(run, "mid_block", x.raw);
    x.raw.release();
    finish(run, std::move(x.normed));
  }

  // Empty where the stage waits for a second frame.
  Values run_stage(const VaeRun& run, size_t index, Values x) {
    Stage<Downsampler>& stage = stages[index];
    const StageLayout& layout = weights.layout.stages[index];
    const NextNorm after = norm_of_stage(index + 1);
    Frame more;
    if (stage.shortcut) {
      stage.shortcut->take(run, x.raw);
      more = stage.shortcut->finished();
    }
    const bool parts = layout.name.empty();  // that are shown, or the stage
    for (size_t block = 0; block < stage.resnets.size(); ++block) {
      const bool ends = !stage.resampler && block + 1 == stage.resnets.size();
      x = stage.resnets[block].run(run, std::move(x), stage.norm_after(block, after), ResidualBlock::Raw::kKeep,
                                   ends ? std::move(more) : Frame{});
      if (parts) show(run, without_prefix(layout.resnets[block].name), x.raw);
    }
    if (stage.resampler) {
      x = stage.resampler->run(run, std::move(x.raw), after, std::move(more));
      if (x && parts) show(run, without_prefix(layout.resample->name), x.raw);
    }
    if (x && !parts) show(run, layout.name, x.raw);
    return x;
  }

  void finish(const VaeRun& run, Frame x) {
    const Frame raw = run.like(x, out.out_channels());
    const Frame quantized = run.like(x, out.out_channels(), Border::kNone);
    kernels::FrameConvOutput made;
    made.raw = raw.view();
    out.run(run, std::move(x), made);
    show(run, "conv_out", raw);
    made.raw = quantized.view();
    const TensorView input[] = {raw.bordered()};
    convolve(run, weights.quant, input, raw.place(), made);
    store_moments(quantized.view());
    ++next_latent;
  }

  void store_moments(const TensorView& x /* [h, w, 2·z] */) const {
    const TensorView to = moments.select(1, next_latent);  // [2·z, h, w]
    with_compute_type(x.dtype(), "moments", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* from = x.data<T>();
      for (int64_t y = 0; y < x.extent(0); ++y) {
        for (int64_t column = 0; column < x.extent(1); ++column) {
          float* target = to.data<float>() + y * to.stride(1) + column * to.stride(2);
          for (int64_t c = 0; c < x.extent(2); ++c) target[c * to.stride(0)] = to_float(*from++);
        }
      }
    });
  }

  void show(const VaeRun& run, std::string_view name, const Frame& x) const {
    if (!*probe) return;
    Tensor memory;
    observe(*probe, name, shown(run, x, memory));
  }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  FramePool pool;  // outlives the frames that the layers keep
  CausalConv in;
  std::vector<Stage<Downsampler>> stages;
  MiddleBlock middle;
  CausalConv out;

  // Of the current clip.
  int64_t next_latent = 0;
  TensorView moments;  // [2·z, T, h, w]
  const Probe* probe = nullptr;
};

VaeEncoder::VaeEncoder(std::shared_ptr<const VaeWeights> weights) : impl_(std::make_unique<Impl>(std::move(weights))) {}
VaeEncoder::~VaeEncoder() = default;
VaeEncoder::VaeEncoder(VaeEncoder&&) noexcept = default;

Shape VaeEncoder::moments_shape(const Shape& video_shape) const {
  const VaeConfig& config = impl_->owner->config();
  const int64_t factor = config.spatial_factor(), channels = pixel_channels(config, config.in_channels);
  if (video_shape.rank() != 4 || video_shape[0] < 1 || video_shape[1] < factor || video_shape[2] < factor ||
      video_shape[3] != channels) {
    fail("the VAE encodes video [F, H, W, {}] with at least 1 frame of {}×{}, not {}", channels, factor, factor,
         video_shape.to_string());
  }
  return {2 * config.z_dim, config.latent_frames(video_shape[0]), video_shape[1] / factor, video_shape[2] / factor};
}

FrameSource frames_of(const TensorView& video) {
  if (video.dtype() != DType::kF32) fail("the VAE encodes F32 video, not {}", dtype_name(video.dtype()));
  return {video.shape(), [video](int64_t frame) { return video.select(0, frame); }};
}

void VaeEncoder::encode(Stream& stream, const FrameSource& video, const TensorView& moments, const Probe& probe,
                        const kernels::RowSplit& split) {
  Shape expected = moments_shape(video.shape);
  const VaeConfig& config = impl_->owner->config();
  const int64_t height = video.shape[1], factor = config.spatial_factor(), patch = config.patch_size;
  const IndexRange rows = rows_of_part(split, expected[2]);
  // The last part also has the rows that do not fill a latent row.
  const IndexRange own{factor * rows.begin, rows.end == expected[2] ? height : factor * rows.end};
  const FrameRows place{{own.begin / patch, own.end / patch}, height / patch, video.shape[2] / patch};
  expected[2] = rows.size();
  impl_->moments = without_batch(moments, "the VAE's moments", "2·z, T, h, w");
  if (!(impl_->moments.shape() == expected)) {
    fail("the VAE's moments of video {} are {}, not {}", video.shape.to_string(), expected.to_string(),
         moments.shape().to_string());
  }
  impl_->probe = &probe;
  impl_->start();
  impl_->pool.trim_to(place);
  const VaeRun run{stream, impl_->pool, split.exchange};
  const int64_t used = config.video_frames(expected[1]);
  for (int64_t frame = 0; frame < used; ++frame) {
    impl_->run_frame(run, place, video.frame(frame).slice(0, own.begin, own.end));
  }
  impl_->start();  // gives the histories back for whoever comes next
}

size_t VaeEncoder::workspace_bytes() const { return impl_->pool.bytes(); }

}  // namespace zoetrope::wan
