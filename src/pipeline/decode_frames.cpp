#include "pipeline/decode_frames.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "comm/gather_trace.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_tiling.h"
#include "pipeline/finite.h"
#include "pipeline/frame_queue.h"
#include "pipeline/generate_options.h"
#include "pipeline/halo_ranks.h"
#include "pipeline/rank_heartbeat.h"
#include "tensor/finite.h"
#include "trace/elapsed.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kOutputLane = "output";
constexpr const char* kOutputHeartbeat = "heartbeat of the output";

// The decoding of one rank, which has rows of every frame or all of them.
class RankDecode {
 public:
  RankDecode(const Stage& stage, comm::Communicator& decoders, const FrameOutput& output)
      : stage_(stage),
        options_(stage.options),
        decoders_(decoders),
        scale_(stage.model.vae_config.spatial_factor()),
        stream_(stage.threads_of_each(decoders.ranks_in_this_process()),
                {stage.trace, decoders.world_rank(decoders.rank()), trace::kComputeLane}),
        gather_(decoders, stage.plan.latent[1], scale_),
        heartbeat_(decoders, kOutputHeartbeat),
        waited_before_(decoders.counters().wait_seconds) {
    if (output.sink == nullptr) return;
    const Shape frame{options_.height, options_.width, 3}, clip{options_.num_frames, frame[0], frame[1], frame[2]};
    const FrameQueue::Output to{*output.sink, output.dump.reserve("frames", DType::kF32, clip),
                                output.dump.reserve("frames_u8", DType::kU8, clip)};
    const auto tick = [this] {
      stop_if_cancelled();
      if (others_wait_) heartbeat_.beat();
    };
    queue_.emplace(to, frame, tick, trace::Lane{stage.trace, 0, kOutputLane});
  }

  void run(wan::VaeDecoder& decoder, const TensorView& latents /* of the VAE */) {
    tell(0);
    const wan::FrameSink sink = [this](int64_t first, const TensorView& frames) { take(first, frames); };
    if (options_.vae_tiling && wan::decodes_in_tiles(stage_.model.vae_config, latents.shape())) {
      // The clip is complete with its last tile; until then progress is the share of tiles.
      const auto tick = [&](int64_t done, int64_t total) {
        stop_if_cancelled();
        tell(options_.num_frames * done / total);
      };
      wan::decode_tiled(stream_, decoder, stage_.model.vae_config, latents, sink, tick);
    } else {
      HaloRanks halo(decoders_);
      const IndexRange rows = rows_of_part(stage_.plan.latent[1], decoders_.size(), decoders_.rank());
      decoder.decode(stream_, latents, sink, {}, {decoders_.size() > 1 ? &halo : nullptr, rows});
    }
    hand_over();
    gather_.wait();
  }

  // Until the output has every frame; notes seconds.
  void finish(trace::Clock::time_point begin) {
    if (!queue_) return;
    queue_->finish();
    const double ranks = decoders_.counters().wait_seconds - waited_before_, output = queue_->waited_seconds();
    stage_.timing.add("Inference/VAE decode/compute", trace::seconds_since(begin) - output - ranks);
    if (decoders_.size() > 1) stage_.timing.add("Inference/VAE decode/waiting for ranks", ranks);
    stage_.timing.add("Inference/VAE decode/waiting for the output", output);
    stage_.timing.add("Inference/VAE decode/output, meanwhile", queue_->busy_seconds());
  }

 private:
  void stop_if_cancelled() const {
    const auto& cancelled = stage_.callbacks.cancelled;
    if (cancelled && cancelled()) fail("interrupted while decoding; nothing was written");
  }

  void tell(int64_t frames) const {
    if (queue_ && stage_.callbacks.frames) stage_.callbacks.frames(frames, options_.num_frames);
  }

  // frames [n, own rows, W, 3]
  void take(int64_t first, const TensorView& frames) {
    stop_if_cancelled();
    for (int64_t f = 0; f < frames.extent(0); ++f) {
      hand_over();
      frame_ = next_frame();
      gather_.post(stream_, frames.select(0, f), frame_);
      posted_ = true;
    }
    tell(first + frames.extent(0));
  }

  // Rank 0's memory for the next frame; elsewhere null. Where the output is slow, rank 0 waits here as long as
  // needed and sends heartbeats to the others, who would otherwise give up in the next exchange after comm_timeout.
  TensorView next_frame() {
    if (!queue_) {
      heartbeat_.wait();
      return {};
    }
    others_wait_ = true;
    const TensorView frame = queue_->next();
    others_wait_ = false;
    heartbeat_.done();
    return frame;
  }

  // The frame under way, when its rows are all here.
  void hand_over() {
    if (!posted_ || !queue_) return;
    gather_.wait();
    if (options_.check_finite) require_finite_frame();
    queue_->push();
    posted_ = false;
    ++handed_over_;
  }

  void require_finite_frame() const {
    const std::optional<NonFinite> found = first_non_finite(frame_);
    if (!found) return;
    const int64_t row = found->index / (frame_.size() / frame_.extent(0)) / scale_;
    int rank = 0;
    while (row >= rows_of_part(stage_.plan.latent[1], decoders_.size(), rank).end) ++rank;
    const std::optional<std::string> weight = spoiled_weight(stage_.model.vae, options_.vae_dtype, nullptr);
    require_finite(frame_, fmt::format("after the last step, rank {}: frame {} of {}, {},", decoders_.world_rank(rank),
                                       handed_over_ + 1, options_.num_frames,
                                       weight ? "from " + *weight : "though the VAE's weights are finite"));
  }

  const Stage& stage_;
  const GenerateOptions& options_;
  comm::Communicator& decoders_;
  const int64_t scale_;
  Stream stream_;
  std::optional<FrameQueue> queue_;  // rank 0's
  FrameGather gather_;               // ends before the queue, into whose memory it receives
  RankHeartbeat heartbeat_;
  const double waited_before_;
  TensorView frame_;  // rank 0's, under way
  int64_t handed_over_ = 0;
  bool posted_ = false;
  bool others_wait_ = false;
};

void decode_video(const Stage& stage, comm::Communicator& decoders, wan::VaeDecoder& decoder, const TensorView& latents,
                  const FrameOutput& output, bool last) {
  const trace::Timing::Scope scope(stage.timing, "Inference/VAE decode");
  const auto begin = trace::Clock::now();
  Tensor raw(DType::kF32, latents.shape());
  wan::denormalize_latents(stage.model.vae_config, latents, raw);
  RankDecode rank(stage, decoders, output);
  {
    const trace::Span phase({stage.trace, decoders.world_rank(decoders.rank()), trace::kComputeLane},
                            "phase: VAE decode");
    rank.run(decoder, raw);
  }
  if (last && stage.trace != nullptr) comm::gather_trace(decoders, *stage.trace);
  rank.finish(begin);
}

void decode_on(const Stage& stage, comm::Communicator& decoders, SharedVae& shared, const TensorView& latents,
               const std::vector<FrameOutput>& outputs) {
  const std::shared_ptr<const wan::VaeWeights> weights = load_vae(stage, shared, wan::VaeParts::kDecoder);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto video = static_cast<int64_t>(i);
    wan::VaeDecoder decoder(weights);
    try {
      decode_video(stage, decoders, decoder, latents.slice(0, video, video + 1), outputs[i], i + 1 == outputs.size());
    } catch (const Error& error) {
      if (outputs.size() == 1) throw;
      fail("video {} of the batch: {}", i + 1, error.what());
    }
    if (i + 1 < outputs.size() && outputs[i].finish) outputs[i].finish();
  }
}

}  // namespace

void decode_frames(const Stage& stage, comm::Communicator& world, SharedVae& shared, const TensorView& latents,
                   const std::vector<FrameOutput>& outputs) {
  const int count = stage.layout.vae_ranks;
  const bool decodes = world.rank() < count;
  const auto decoders = world.split(decodes ? 0 : 1, world.rank());
  // The others end here, so what they recorded is brought to rank 0 now.
  if (stage.trace != nullptr && count < world.size()) {
    const bool gathers = world.rank() == 0 || !decodes;
    const auto leaving = world.split(gathers ? 0 : 1, world.rank());
    if (gathers) comm::gather_trace(*leaving, *stage.trace);
  }
  if (decodes) decode_on(stage, *decoders, shared, latents, outputs);
}

}  // namespace zoetrope::pipeline
