#include "pipeline/preview.h"

#include <vector>

#include "base/error.h"
#include "io/video.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/preview_latents.h"
#include "pipeline/rank_heartbeat.h"

namespace zoetrope::pipeline {

void Preview::after(const Denoiser::StepDone& done, int64_t before) {
  const int64_t steps = before + done.step + 1;
  const std::optional<int64_t>& every = stage_.options.preview;
  if (!every || steps % *every != 0 || done.step + 1 == stage_.plan.steps()) return;
  RankHeartbeat heartbeat(world_, "heartbeat of a preview");
  if (world_.rank() != 0) {
    heartbeat.wait();
    return;
  }
  const trace::Timing::Scope scope(stage_.timing, "Inference/Preview");
  if (stage_.callbacks.preview) show(done, steps, [&] { heartbeat.beat(); });
  heartbeat.done();
}

void Preview::show(const Denoiser::StepDone& done, int64_t steps, const std::function<void()>& tick) {
  const wan::VaeConfig& config = stage_.model.vae_config;
  if (!decoder_) decoder_.emplace(load_vae(stage_, shared_, wan::VaeParts::kDecoder));
  const auto of_first = [&](const TensorView& all) {
    return all.slice(0, 0, 1).slice(2, stage_.plan.references, all.extent(2));
  };
  const Tensor small = wan::preview_latents(config, of_first(done.latents), of_first(done.velocity), done.noise);
  wan::denormalize_latents(config, small, small);
  const int64_t count = small.shape()[2], factor = config.spatial_factor();
  const int64_t height = small.shape()[3] * factor, width = small.shape()[4] * factor;
  Tensor frames = Tensor::uninitialized(DType::kU8, {count, height, width, 3});
  Stream stream(stage_.threads_of_each(1), {stage_.trace, world_.world_rank(world_.rank()), trace::kComputeLane});
  std::vector<float> unit(static_cast<size_t>(height * width * 3));
  for (int64_t f = 0; f < count; ++f) {
    tick();
    if (stage_.callbacks.cancelled && stage_.callbacks.cancelled()) fail("interrupted; nothing was written");
    decoder_->decode(stream, small.view().slice(2, f, f + 1), [&](int64_t, const TensorView& frame) {
      const float* values = frame.data<float>();
      for (size_t i = 0; i < unit.size(); ++i) unit[i] = 0.5f * values[i] + 0.5f;
      io::to_u8(PixelRounding::kTruncate, unit, frames.view().select(0, f).data<uint8_t>());
    });
  }
  stage_.callbacks.preview(steps, frames);
}

}  // namespace zoetrope::pipeline
