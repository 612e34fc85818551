// Latents to frames. The stages form a tree in time: a latent frame becomes two frames, these become four, and each
// runs to the end before the next one starts, so that large frames exist one at a time.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_blocks.h"
#include "models/wan/vae/vae_pixels.h"
#include "models/wan/vae/without_batch.h"
#include "trace/trace.h"

namespace zoetrope::wan {

struct VaeDecoder::Impl {
  explicit Impl(std::shared_ptr<const VaeWeights> shared)
      : owner(std::move(shared)),
        weights(owner->decoder()),
        pool(owner->dtype()),
        in(weights.in),
        middle(weights),
        out(weights.out) {
    for (size_t i = 0; i < weights.stages.size(); ++i) {
      stages.emplace_back(weights.stages[i], weights.stages[i].up, weights.layout.stages[i]);
    }
  }

  // Forgets the previous clip.
  void start() {
    in.start();
    middle.start();
    for (Stage<Upsampler>& stage : stages) stage.start();
    out.start();
    next_frame = 0;
  }

  void each_past(const EachPast& visit) {
    in.each_past(visit);
    middle.each_past(visit);
    for (Stage<Upsampler>& stage : stages) {
      for (ResidualBlock& block : stage.resnets) block.each_past(visit);
      if (stage.resampler) stage.resampler->each_past(visit);
    }
    out.each_past(visit);
  }

  std::vector<DecodeStops::Remembered> remembered() {
    std::vector<DecodeStops::Remembered> all;
    each_past([&](PastFrames& past) {
      for (const Frame* frame : past.frames()) {
        DecodeStops::Remembered& one = all.emplace_back();
        if (*frame) one = {frame->view(), frame->place().rows, frame->place().height};
      }
    });
    return all;
  }

  // Rows of the part and, where the picture is split, those at its borders.
  void remember(const VaeRun& run, const FrameRows& latent, const DecodeStops& stops) {
    size_t index = 0;
    each_past([&](PastFrames& past) {
      for (Frame* frame : past.frames()) {
        const size_t number = index++;
        const Shape shape = stops.shape(number);
        if (shape.rank() == 0) continue;
        const int64_t scale = shape[0] / latent.height;
        const FrameRows place{{scale * latent.rows.begin, scale * latent.rows.end}, shape[0], shape[1]};
        *frame = run.take(place, shape[2]);
        const int64_t first = std::max<int64_t>(0, place.rows.begin - 1);
        const int64_t end = std::min(place.height, place.rows.end + 1);
        for (int64_t row = first; row < end; ++row) stops.read(number, row, frame->row(row - place.rows.begin));
      }
    });
    for (Stage<Upsampler>& stage : stages)
      if (stage.resampler) stage.resampler->go_on();
  }

  void run_latent(const VaeRun& run, const FrameRows& place, const TensorView& latent /* [z, h, w] */) {
    Frame raw = run.take(place, latent.extent(0));
    const TensorView rows = latent.slice(1, place.rows.begin, place.rows.end).permute({1, 2, 0});
    load_pixels(run.stream.team(), rows, 1, raw.view());
    Frame z = run.like(raw, raw.channels());
    kernels::FrameConvOutput quantized;
    quantized.raw = z.view();
    const TensorView input[] = {raw.bordered()};
    convolve(run, weights.quant, input, place, quantized);
    raw.release();
    Values x{run.like(z, in.out_channels()), run.like(z, in.out_channels())};
    kernels::FrameConvOutput entered;
    entered.raw = x.raw.view();
    entered.normed = x.normed.view();
    entered.gamma = middle.first_norm().gamma;
    entered.silu = middle.first_norm().silu;
    in.run(run, std::move(z), entered);
    show(run, "conv_in", x.raw);
    x = middle.run(run, std::move(x), norm_of_stage(0));
    show(run, "mid_block", x.raw);
    run_stage(run, 0, std::move(x));
  }

  // The norm after the previous stage.
  NextNorm norm_of_stage(size_t index) const {
    if (index < stages.size()) return stages[index].resnets.front().first_norm();
    return {weights.gamma_out, true};
  }

  void run_stage(const VaeRun& run, size_t index, Values x) {
    Stage<Upsampler>& stage = stages[index];
    const std::string& name = weights.layout.stages[index].name;
    const NextNorm after = norm_of_stage(index + 1);
    if (stage.shortcut) stage.shortcut->take(run, x.raw);
    {
      const trace::Span span(run.stream.lane(), name.c_str());
      for (size_t block = 0; block < stage.resnets.size(); ++block) {
        // The last block of all is followed by a norm and no sum.
        const bool last = !stage.resampler && block + 1 == stage.resnets.size() && !*probe;
        x = stage.resnets[block].run(run, std::move(x), stage.norm_after(block, after),
                                     last ? ResidualBlock::Raw::kDrop : ResidualBlock::Raw::kKeep);
      }
    }
    if (!stage.resampler) {
      show(run, name, x.raw);
      finish(run, std::move(x.normed));
      return;
    }
    const CopyShortcut* around = stage.shortcut ? &*stage.shortcut : nullptr;
    stage.resampler->run(run, std::move(x.raw), after, around, [&](Values y) {
      show(run, name, y.raw);
      run_stage(run, index + 1, std::move(y));
    });
  }

  void finish(const VaeRun& run, Frame x) {
    const Frame frame = run.like(x, out.out_channels(), Border::kNone);
    kernels::FrameConvOutput made;
    made.raw = frame.view();
    out.run(run, std::move(x), made);
    show(run, "conv_out", frame);
    if (wanted == Wanted::kValues) {
      Tensor memory;
      (*sink)(next_frame++, shown(run, frame, memory).permute({1, 2, 3, 0}));
      return;
    }
    const int64_t patch = owner->config().patch_size;
    const Shape shape{1, patch * frame.place().count(), patch * frame.place().width,
                      pixel_channels(owner->config(), frame.channels())};
    if (!(pixels.shape() == shape)) pixels = Tensor::uninitialized(DType::kF32, shape);
    store_pixels(run.stream.team(), frame.view(), patch, pixels.view().select(0, 0));
    (*sink)(next_frame++, pixels);
  }

  enum class Wanted : uint8_t { kPixels, kValues };
  void decode(Stream& stream, const TensorView& latents, Wanted what, const FrameCallback& frames, const Probe& watcher,
              const kernels::RowSplit& split, const DecodeStops& stops, int64_t first_frame) {
    const TensorView z = without_batch(latents, "the VAE's latents", "z, T, h, w");
    const int64_t channels = weights.layout.quant.in;
    if (z.extent(0) != channels || z.size() == 0) {
      fail("the VAE decodes latents [{}, T, h, w] with sizes of at least 1, not {}", channels,
           latents.shape().to_string());
    }
    const FrameRows place{rows_of_part(split, z.extent(2)), z.extent(2), z.extent(3)};
    wanted = what;
    sink = &frames;
    probe = &watcher;
    start();
    pool.trim_to(place);
    const VaeRun run{stream, pool, split.exchange};
    if (stops.first > 0) remember(run, place, stops);
    next_frame = first_frame;
    for (int64_t t = stops.first; t < z.extent(1); ++t) {
      run_latent(run, place, z.select(1, t));
      if (stops.after) stops.after(t + 1, remembered());
    }
    start();  // gives the histories back for whoever comes next
  }

  void show(const VaeRun& run, std::string_view name, const Frame& x) const {
    if (!*probe) return;
    Tensor memory;
    observe(*probe, name, shown(run, x, memory));
  }

  std::shared_ptr<const VaeWeights> owner;
  const CoderWeights& weights;
  FramePool pool;  // outlives the frames that the layers keep
  Tensor pixels;   // [1, H, W, 3] F32
  CausalConv in;
  MiddleBlock middle;
  std::vector<Stage<Upsampler>> stages;
  CausalConv out;

  // Of the current clip.
  int64_t next_frame = 0;
  Wanted wanted = Wanted::kPixels;
  const FrameCallback* sink = nullptr;
  const Probe* probe = nullptr;
};

VaeDecoder::VaeDecoder(std::shared_ptr<const VaeWeights> weights) : impl_(std::make_unique<Impl>(std::move(weights))) {}
VaeDecoder::~VaeDecoder() = default;
VaeDecoder::VaeDecoder(VaeDecoder&&) noexcept = default;

void VaeDecoder::decode(Stream& stream, const TensorView& latents, const FrameCallback& sink, const Probe& probe,
                        const kernels::RowSplit& split) {
  impl_->decode(stream, latents, Impl::Wanted::kPixels, sink, probe, split, {}, 0);
}

void VaeDecoder::decode(Stream& stream, const TensorView& latents, int64_t first_frame, const FrameCallback& sink,
                        const kernels::RowSplit& split, const DecodeStops& stops) {
  impl_->decode(stream, latents, Impl::Wanted::kPixels, sink, {}, split, stops, first_frame);
}

void VaeDecoder::decode_values(Stream& stream, const TensorView& latents, const FrameCallback& sink) {
  impl_->decode(stream, latents, Impl::Wanted::kValues, sink, {}, {}, {}, 0);
}

size_t VaeDecoder::workspace_bytes() const { return impl_->pool.bytes() + impl_->pixels.view().bytes(); }

}  // namespace zoetrope::wan
