// Latents to frames. The stages form a tree in time: a latent frame becomes two frames, these become four, and each
// runs to the end before the next one starts, so that large frames exist one at a time.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/without_batch.h"
#include "trace/trace.h"

namespace zoetrope::wan {

struct VaeDecoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)), weights(owner->decoder()), in(weights.in), middle(weights), out(weights.out) {
    for (const StageWeights& stage : weights.stages) stages.emplace_back(stage.resnets, stage.up);
  }

  // Forgets the clip before.
  void start() {
    in.start();
    middle.start();
    for (Stage<Upsampler>& stage : stages) stage.start();
    out.start();
    next_frame = 0;
  }

  void run_latent(const VaeRun& run, const TensorView& latent /* [z, h, w] */) {
    const int64_t height = latent.extent(1), width = latent.extent(2);
    Frame raw = pool.take(height, width, latent.extent(0));
    copy(run.stream, raw.view().select(0, 0), latent.permute({1, 2, 0}));
    Frame z = run.like(raw, raw.channels());
    weights.quant.run(run.stream, raw.view(), z.view());
    raw.release();
    Frame x = run.like(z, in.out_channels());
    in.run(run, std::move(z), x.view());
    show("conv_in", x);
    x = middle.run(run, std::move(x));
    show("mid_block", x);
    run_stage(run, 0, std::move(x));
  }

  void run_stage(const VaeRun& run, size_t index, Frame x) {
    Stage<Upsampler>& stage = stages[index];
    const std::string& name = weights.layout.stages[index].name;
    {
      const trace::Span span(run.stream.lane(), name.c_str());
      for (ResidualBlock& block : stage.resnets) x = block.run(run, std::move(x));
    }
    if (!stage.resampler) {
      show(name, x);
      finish(run, std::move(x));
      return;
    }
    stage.resampler->run(run, std::move(x), [&](Frame y) {
      show(name, y);
      run_stage(run, index + 1, std::move(y));
    });
  }

  void finish(const VaeRun& run, Frame x) {
    norm_silu(run, x.view(), weights.gamma_out, x.view());
    const Frame frame = run.like(x, out.out_channels());
    out.run(run, std::move(x), frame.view());
    show("conv_out", frame);
    clamp(run.stream, frame.view());
    (*sink)(next_frame++, frame.view());
  }

  static void clamp(Stream& stream, const TensorView& x) {
    constexpr int64_t kGrain = 1 << 14;
    stream.team().parallel_for(x.size(), kGrain, [&](IndexRange range, int) {
      float* values = x.data<float>();
      for (int64_t i = range.begin; i < range.end; ++i) values[i] = std::clamp(values[i], -1.0f, 1.0f);
    });
  }

  void show(std::string_view name, const Frame& x) const { observe(*probe, name, x.view().permute({3, 0, 1, 2})); }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  FramePool pool;  // outlives the frames that the layers keep
  CausalConv in;
  MiddleBlock middle;
  std::vector<Stage<Upsampler>> stages;
  CausalConv out;

  // Of the clip in work.
  int64_t next_frame = 0;
  const FrameSink* sink = nullptr;
  const Probe* probe = nullptr;
};

VaeDecoder::VaeDecoder(std::shared_ptr<const VaeWeights> weights) : impl_(std::make_unique<Impl>(std::move(weights))) {}
VaeDecoder::~VaeDecoder() = default;
VaeDecoder::VaeDecoder(VaeDecoder&&) noexcept = default;

void VaeDecoder::decode(Stream& stream, const TensorView& latents, const FrameSink& sink, const Probe& probe) {
  const TensorView z = without_batch(latents, "the VAE's latents", "z, T, h, w");
  const int64_t channels = impl_->weights.layout.quant.in;
  if (z.extent(0) != channels || z.size() == 0) {
    fail("the VAE decodes latents [{}, T, h, w] with sizes of at least 1, not {}", channels,
         latents.shape().to_string());
  }
  impl_->sink = &sink;
  impl_->probe = &probe;
  impl_->start();
  impl_->pool.trim_to({z.extent(2), z.extent(3)});
  const VaeRun run{stream, impl_->pool};
  for (int64_t t = 0; t < z.extent(1); ++t) impl_->run_latent(run, z.select(1, t));
  impl_->start();  // gives the histories back for whoever comes next
}

size_t VaeDecoder::workspace_bytes() const { return impl_->pool.bytes(); }

}  // namespace zoetrope::wan
