#include "pipeline/decode_frames.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/launcher.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"

namespace zoetrope::pipeline {

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
  const int64_t pixels = options.height * options.width * 3;
  const Shape clip{options.num_frames, options.height, options.width, 3};
  const TensorView kept = dump.reserve("frames", DType::kF32, clip);
  const TensorView bytes = dump.reserve("frames_u8", DType::kU8, clip);
  std::vector<float> frame(static_cast<size_t>(pixels));
  wan::VaeDecoder decoder(weights);
  if (callbacks.frames) callbacks.frames(0, options.num_frames);
  double formatting = 0;
  const auto begin = trace::Clock::now();
  decoder.decode(stream, raw, [&](int64_t first, const TensorView& frames) {
    if (callbacks.cancelled && callbacks.cancelled()) fail("interrupted while decoding; nothing was written");
    const auto start = trace::Clock::now();
    for (int64_t f = 0; f < frames.extent(0); ++f) {
      const float* values = frames.select(0, f).data<float>();
      for (int64_t i = 0; i < pixels; ++i) {
        frame[static_cast<size_t>(i)] = std::clamp(0.5f * values[i] + 0.5f, 0.0f, 1.0f);
      }
      writer.add_frame_float(frame.data());
      if (!kept) continue;
      std::memcpy(kept.select(0, first + f).raw(), frame.data(), frame.size() * sizeof(float));
      uint8_t* to = bytes.select(0, first + f).data<uint8_t>();
      for (int64_t i = 0; i < pixels; ++i) to[i] = io::to_u8_truncate(frame[static_cast<size_t>(i)]);
    }
    formatting += std::chrono::duration<double>(trace::Clock::now() - start).count();
    if (callbacks.frames) callbacks.frames(first + frames.extent(0), options.num_frames);
  });
  const double all = std::chrono::duration<double>(trace::Clock::now() - begin).count();
  timing.add("Inference/VAE decode/compute", all - formatting);
  timing.add("Inference/VAE decode/host formatting", formatting);
}

}  // namespace zoetrope::pipeline
