#include "pipeline/decode_frames.h"

#include <memory>

#include "base/error.h"
#include "comm/launcher.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "pipeline/frame_queue.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kOutputLane = "output";

double seconds_since(trace::Clock::time_point then) {
  return std::chrono::duration<double>(trace::Clock::now() - then).count();
}

}  // namespace

void decode_frames(const Stage& stage, const TensorView& latents, io::FrameWriter& writer, Dump& dump) {
  const GenerateOptions& options = stage.options;
  const GenerateCallbacks& callbacks = stage.callbacks;
  trace::Timing& timing = stage.timing;
  std::shared_ptr<const wan::VaeWeights> weights;
  {
    const trace::Timing::Scope scope(timing, "Load/VAE");
    weights = std::make_shared<wan::VaeWeights>(
        stage.model.vae_config, std::make_shared<io::Weights>(stage.model.vae.source(comm::process_threads(options.threads))),
        wan::VaeParts::kDecoder);
  }
  const trace::Timing::Scope scope(timing, "Inference/VAE decode");
  Stream stream(comm::process_threads(options.threads), {stage.trace, 0, trace::kComputeLane});
  Tensor raw(DType::kF32, latents.shape());
  wan::denormalize_latents(stage.model.vae_config, latents, raw);
  const Shape frame{options.height, options.width, 3};
  const Shape clip{options.num_frames, options.height, options.width, 3};
  const auto stop_if_cancelled = [&] {
    if (callbacks.cancelled && callbacks.cancelled()) fail("interrupted while decoding; nothing was written");
  };
  wan::VaeDecoder decoder(weights);
  const FrameQueue::Output output{writer, dump.reserve("frames", DType::kF32, clip),
                                  dump.reserve("frames_u8", DType::kU8, clip)};
  FrameQueue queue(output, frame, stop_if_cancelled, {stage.trace, 0, kOutputLane});
  if (callbacks.frames) callbacks.frames(0, options.num_frames);
  const auto begin = trace::Clock::now();
  decoder.decode(stream, raw, [&](int64_t first, const TensorView& frames) {
    stop_if_cancelled();
    for (int64_t f = 0; f < frames.extent(0); ++f) {
      copy(stream, queue.next(), frames.select(0, f));
      queue.push();
    }
    if (callbacks.frames) callbacks.frames(first + frames.extent(0), options.num_frames);
  });
  queue.finish();
  timing.add("Inference/VAE decode/compute", seconds_since(begin) - queue.waited_seconds());
  timing.add("Inference/VAE decode/waiting for the output", queue.waited_seconds());
  timing.add("Inference/VAE decode/output, meanwhile", queue.busy_seconds());
}

}  // namespace zoetrope::pipeline
