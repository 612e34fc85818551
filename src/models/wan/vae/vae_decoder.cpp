// Latents to frames. The stages form a tree in time: a latent frame becomes two frames, these become four, and each
// piece runs to the end before the next one starts, so that only small pieces of large frames exist at once.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/vae_pieces.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

struct UpStage {
  explicit UpStage(const StageWeights& weights) : chain(weights.resnets) {
    if (weights.resample) upsampler.emplace(*weights.resample);
  }
  ResidualChain chain;
  std::optional<Upsampler> upsampler;
};

}  // namespace

struct VaeDecoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)), weights(owner->decoder()), in(weights.in), middle(weights), out(weights.out) {
    for (const StageWeights& stage : weights.stages) stages.emplace_back(stage);
  }

  // Histories of the clip that begins: sizes double from stage to stage, and pieces hold at most two frames.
  void start(Stream& stream, FrameSize size) {
    in.start(stream, 1, size);
    middle.start(stream, 1, size);
    pieces.clear();
    for (UpStage& stage : stages) {
      const int64_t piece = pieces.empty() ? 1 : frames_at_once(size, stage.chain.out_channels());
      pieces.push_back(piece);
      stage.chain.start(stream, piece, size);
      if (stage.upsampler) {
        stage.upsampler->start(stream, piece, size);
        size = {2 * size.height, 2 * size.width};
      }
    }
    out.start(stream, pieces.back(), size);
    next_frame = 0;
  }

  void run_latent(const VaeRun& run, const TensorView& latent /* [z, h, w] */) {
    const Arena::Scope scope(run.arena);
    const int64_t height = latent.extent(1), width = latent.extent(2);
    const TensorView z = run.frames(1, height, width, latent.extent(0));
    copy(run.stream, z.select(0, 0), latent.permute({1, 2, 0}));
    weights.quant.run(run.stream, z, in.input(1));
    const TensorView x = run.frames(1, height, width, weights.layout.in.out);
    in.run(run.stream, 1, x);
    show("conv_in", x);
    middle.run(run, x);
    show("mid_block", x);
    run_stage(run, 0, x);
  }

  void run_stage(const VaeRun& run, size_t index, TensorView x) {
    UpStage& stage = stages[index];
    const std::string& name = weights.layout.stages[index].name;
    {
      const trace::Span span(run.stream.lane(), name.c_str());
      const TensorView target = stage.upsampler ? stage.upsampler->input(x.extent(0)) : TensorView{};
      x = stage.chain.run(run, x, target, [](const TensorView&) {});
    }
    if (!stage.upsampler) {
      show(name, x);
      finish(run, x);
      return;
    }
    stage.upsampler->run(run, x, pieces[index + 1], [&](const TensorView& y) {
      show(name, y);
      run_stage(run, index + 1, y);
    });
  }

  void finish(const VaeRun& run, const TensorView& x) {
    const Arena::Scope scope(run.arena);
    const int64_t count = x.extent(0);
    norm_silu(run.stream, x, weights.gamma_out, out.input(count));
    const TensorView frames = run.frames(count, x.extent(1), x.extent(2), weights.layout.out.out);
    out.run(run.stream, count, frames);
    show("conv_out", frames);
    clamp(run.stream, frames);
    (*sink)(next_frame, frames);
    next_frame += count;
  }

  static void clamp(Stream& stream, const TensorView& x) {
    constexpr int64_t kGrain = 1 << 14;
    stream.team().parallel_for(x.size(), kGrain, [&](IndexRange range, int) {
      float* values = x.data<float>();
      for (int64_t i = range.begin; i < range.end; ++i) values[i] = std::clamp(values[i], -1.0f, 1.0f);
    });
  }

  void show(std::string_view name, const TensorView& x) const { observe(*probe, name, x.permute({3, 0, 1, 2})); }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  CausalConv in;
  MiddleBlock middle;
  std::vector<UpStage> stages;
  CausalConv out;
  std::vector<int64_t> pieces;  // frames at once, per stage
  Arena arena;

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
  impl_->start(stream, {z.extent(2), z.extent(3)});
  const VaeRun run{stream, impl_->arena};
  for (int64_t t = 0; t < z.extent(1); ++t) impl_->run_latent(run, z.select(1, t));
}

size_t VaeDecoder::workspace_bytes() const {
  size_t bytes = impl_->arena.reserved() + impl_->in.bytes() + impl_->middle.bytes() + impl_->out.bytes();
  for (const UpStage& stage : impl_->stages) {
    bytes += stage.chain.bytes() + (stage.upsampler ? stage.upsampler->bytes() : 0);
  }
  return bytes;
}

}  // namespace zoetrope::wan
