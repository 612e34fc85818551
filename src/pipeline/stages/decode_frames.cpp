#include "pipeline/stages/decode_frames.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "comm/gather_trace.h"
#include "io/media/video.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/preview_latents.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_tiling.h"
#include "pipeline/outputs/frame_queue.h"
#include "pipeline/ranks/halo_ranks.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/records/decode_journal.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/stages/finite.h"
#include "pipeline/stages/phases.h"
#include "tensor/finite.h"
#include "trace/elapsed.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kOutputLane = "output";
constexpr const char* kOutputHeartbeat = "heartbeat of the output";
constexpr const char* kReplayHeartbeat = "heartbeat of frames from the journal";
constexpr const char* kDecodeHeartbeat = "heartbeat of decoding";
constexpr const char* kWhileDecoding = "while decoding";

// What decoding is given on a rank.
struct Decoding {
  const Stage& stage;
  comm::Communicator& ranks;                   // that decode
  RankHeartbeat* listeners = nullptr;          // rank 0 and those that decode nothing, where they wait for the end
  const JournaledDecode* journaled = nullptr;  // null: it is not noted

  Journal* journal() const { return journaled != nullptr ? journaled->journal : nullptr; }  // rank 0's
  void beat() const {
    if (listeners != nullptr) listeners->beat();
  }
};

// Of so many decoded frames those that the output gets.
int64_t frames_of_output(const DecodedPart& part, int64_t decoded) {
  return std::clamp<int64_t>(decoded - part.left_out, 0, part.frames);
}

// The place of a video's first frame of a segment among all frames of a journal, which has the segment of one video
// after that of another.
int64_t place_in_journal(const Stage& stage, const DecodedPart& part, int64_t video) {
  return stage.plan.videos * part.first + video * part.frames;
}

void give_frames(const Stage& stage, const Journal& journal, const FrameOutput& output, int64_t video, int64_t count,
                 const std::function<void()>& beat) {
  const DecodedPart& part = output.part;
  if (count == 0) return;
  const Shape frame{stage.options.height, stage.options.width, 3};
  const auto own = [&](const TensorView& all) { return all ? all.slice(0, part.first, part.first + count) : all; };
  const auto tick = [&] {
    stop_if_cancelled(stage.callbacks.cancelled);
    beat();
  };
  FrameQueue queue({*output.sink, own(output.floats), own(output.bytes)}, frame, tick);
  const int64_t begin = place_in_journal(stage, part, video);
  for (int64_t i = 0; i < count; ++i) {
    tick();
    journal.read_frame(begin + i, queue.next());
    queue.push();
  }
  queue.finish();
}

// Collective. Rank 0 gives its output what the journal has, however slow the output is.
void replay(const Decoding& decoding, const Journal* journal, const FrameOutput& output, int64_t video, int64_t count) {
  RankHeartbeat heartbeat(decoding.ranks, kReplayHeartbeat);
  if (decoding.ranks.rank() != 0) return heartbeat.wait();
  const auto beat = [&] {
    heartbeat.beat();
    decoding.beat();
  };
  if (output.sink != nullptr) give_frames(decoding.stage, *journal, output, video, count, beat);
  heartbeat.done();
}

// Of one video on one rank, which has rows of every frame or all of them.
class VideoDecode {
 public:
  // `keeper`: null where it is not noted how far this is. `done`: frames that are decoded already. `tiled`: in tiles,
  // which no keeper can note.
  VideoDecode(const Decoding& decoding, const FrameOutput& output, DecodeJournal* keeper, int64_t done, bool tiled)
      : decoding_(decoding),
        stage_(decoding.stage),
        options_(stage_.options),
        part_(output.part),
        decoders_(decoding.ranks),
        scale_(stage_.model.vae_config.spatial_factor()),
        stream_(stage_.threads_of_each(decoders_.ranks_in_this_process()),
                {stage_.trace, decoders_.world_rank(decoders_.rank()), trace::kComputeLane}),
        gather_(decoders_, stage_.plan.latent[1], scale_),
        heartbeat_(decoders_, kOutputHeartbeat),
        waited_before_(decoders_.counters().wait_seconds),
        keeper_(keeper),
        tiled_(tiled),
        handed_over_(done) {
    if (output.sink == nullptr) return;
    const Shape frame{options_.height, options_.width, 3};
    const auto own = [this](const TensorView& all) {
      return all ? all.slice(0, part_.first + frames_of_output(part_, handed_over_), part_.first + part_.frames) : all;
    };
    const FrameQueue::Output to{*output.sink, own(output.floats), own(output.bytes)};
    const auto tick = [this] {
      stop_if_cancelled(stage_.callbacks.cancelled, kWhileDecoding);
      if (others_wait_) heartbeat_.beat();
      decoding_.beat();
    };
    queue_.emplace(to, frame, tick, trace::Lane{stage_.trace, 0, kOutputLane});
  }

  void run(wan::VaeDecoder& decoder, const TensorView& latents /* of the VAE */, int64_t video) {
    tell(handed_over_);
    const wan::FrameCallback sink = [this](int64_t first, const TensorView& frames) { take(first, frames); };
    if (tiled_) {
      // The clip is complete with its last tile; until then progress is the share of tiles.
      const auto tick = [&](int64_t done, int64_t total) {
        stop_if_cancelled(stage_.callbacks.cancelled, kWhileDecoding);
        if (queue_) decoding_.beat();
        tell((part_.left_out + part_.frames) * done / total);
      };
      wan::decode_tiled(stream_, decoder, stage_.model.vae_config, latents, sink, tick);
    } else {
      HaloRanks halo(decoders_);
      const IndexRange rows = rows_of_part(stage_.plan.latent[1], decoders_.size(), decoders_.rank());
      const kernels::RowSplit split{decoders_.size() > 1 ? &halo : nullptr, rows};
      if (keeper_ == nullptr) {
        decoder.decode(stream_, latents, sink, {}, split);
      } else {
        decoder.decode(stream_, latents, handed_over_, sink, split, stops(video));
      }
    }
    hand_over();
    gather_.wait();
  }

  // Until the output has every frame; notes seconds.
  void finish(trace::Clock::time_point begin) {
    if (!queue_) {
      if (!part_.last) heartbeat_.wait();
      return;
    }
    others_wait_ = !part_.last;
    queue_->finish();
    if (!part_.last) heartbeat_.done();
    const double ranks = decoders_.counters().wait_seconds - waited_before_, output = queue_->waited_seconds();
    stage_.timing.add(phases::kDecodeCompute, trace::seconds_since(begin) - output - ranks);
    if (decoders_.size() > 1) stage_.timing.add(phases::kDecodeRanks, ranks);
    stage_.timing.add(phases::kDecodeOutput, output);
    stage_.timing.add(phases::kDecodeMeanwhile, queue_->busy_seconds());
  }

 private:
  // The journal's, as the decoder takes them.
  wan::DecodeStops stops(int64_t video) {
    wan::DecodeStops stops;
    stops.after = [this, video](int64_t done, const std::vector<wan::DecodeStops::Remembered>& frames) {
      hand_over();
      std::vector<RememberedRows> values;
      for (const auto& frame : frames) values.push_back({frame.values, frame.rows, frame.height});
      keeper_->after(video, done, handed_over_, values);
    };
    const RememberedFrames* from = keeper_->remembered();
    if (from == nullptr) return stops;
    stops.first = keeper_->latent_frames_done();
    stops.shape = [from](size_t index) { return from->shape(index); };
    stops.read = [from](size_t index, int64_t row, const TensorView& to) { from->read(index, row, to); };
    return stops;
  }

  void tell(int64_t decoded) {
    if (!queue_ || !stage_.callbacks.frames) return;
    const int64_t now = std::clamp<int64_t>(decoded - part_.left_out, 0, part_.frames);
    if (now == told_ && now > 0) return;  // more than the video has
    if (tiled_ && now < told_) return;    // the share of tiles was more
    told_ = now;
    stage_.callbacks.frames(part_.first + now, options_.num_frames);
  }

  // frames [n, own rows, W, 3]
  void take(int64_t first, const TensorView& frames) {
    stop_if_cancelled(stage_.callbacks.cancelled, kWhileDecoding);
    if (queue_) decoding_.beat();
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
    if (!unused_) unused_ = queue_->next();
    others_wait_ = false;
    heartbeat_.done();
    return unused_;
  }

  // The frame under way, when its rows are all here.
  void hand_over() {
    if (!posted_ || !queue_) return;
    gather_.wait();
    if (options_.check_finite) require_finite_frame();
    keep_for_next_segment();
    const int64_t place = handed_over_ - part_.left_out;
    if (place >= 0 && place < part_.frames) {
      if (Journal* const journal = decoding_.journal()) journal->add_frame(frame_);
      queue_->push();
      unused_ = {};
    }
    posted_ = false;
    ++handed_over_;
  }

  // Clamped, as the reference's decoder leaves them.
  void keep_for_next_segment() const {
    const auto clamped = [](float x) { return std::clamp(x, -1.0f, 1.0f); };
    const float* from = frame_.data<float>();
    const int64_t size = frame_.size(), first = stage_.plan.segments.frames - stage_.plan.segments.shared;
    if (part_.tail && handed_over_ >= first)
      std::transform(from, from + size, part_.tail.select(0, handed_over_ - first).data<float>(), clamped);
    if (!part_.decoded) return;
    for (int64_t c = 0; c < frame_.extent(2); ++c) {
      float* to = part_.decoded.select(0, 0).select(0, c).select(0, handed_over_).data<float>();
      for (int64_t i = c; i < size; i += frame_.extent(2)) *to++ = clamped(from[i]);
    }
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

  const Decoding& decoding_;
  const Stage& stage_;
  const GenerateOptions& options_;
  const DecodedPart& part_;
  comm::Communicator& decoders_;
  const int64_t scale_;
  Stream stream_;
  std::optional<FrameQueue> queue_;  // rank 0's
  FrameGather gather_;               // ends before the queue, into whose memory it receives
  RankHeartbeat heartbeat_;
  const double waited_before_;
  DecodeJournal* const keeper_;
  const bool tiled_;
  TensorView frame_;   // rank 0's, under way
  TensorView unused_;  // the queue's next, not pushed yet
  int64_t handed_over_;
  int64_t told_ = 0;
  bool posted_ = false;
  bool others_wait_ = false;
};

void decode_video(const Decoding& decoding, wan::VaeDecoder& decoder, const TensorView& latents,
                  const FrameOutput& output, bool last, int64_t video) {
  const Stage& stage = decoding.stage;
  comm::Communicator& decoders = decoding.ranks;
  const trace::Timing::Scope scope(stage.timing, phases::kDecode);
  const auto begin = trace::Clock::now();
  Tensor raw(DType::kF32, latents.shape());
  wan::denormalize_latents(stage.model.vae_config, latents, raw);
  // Tiles are decoded one after another over the whole clip: there is no frame at which to go on.
  const bool tiled = stage.options.vae_tiling && wan::decodes_in_tiles(stage.model.vae_config, latents.shape());
  std::optional<DecodeJournal> keeper;
  if (const JournaledDecode* const journaled = decoding.journaled; journaled != nullptr && !tiled) {
    const DecodeState* const from = journaled->from;
    // Animate's dump has every frame that a segment decodes.
    const bool whole = stage.model.kind.animation.taken && !stage.options.dump.empty();
    const bool goes_on = from != nullptr && from->video == video && from->latent_frames > 0 && !whole;
    DecodeJournal::Setup setup;
    setup.folder = journaled->folder;
    setup.journal = journaled->journal;
    setup.segment = journaled->segment;
    if (goes_on) {
      setup.from = from;
      setup.kept_frames = place_in_journal(stage, output.part, video) + frames_of_output(output.part, from->frames);
    }
    setup.frame = {stage.options.height, stage.options.width, 3};
    setup.dtype = stage.options.vae_dtype;
    setup.latent_rows = latents.extent(3);
    setup.latent_frames = latents.extent(2);
    setup.record = journaled->record;
    if (decoders.rank() == 0) setup.note = stage.callbacks.note;
    keeper.emplace(setup, decoders);
  }
  const int64_t done = keeper ? keeper->frames_done() : 0;
  Journal* const journal = decoding.journal();
  const int64_t kept = frames_of_output(output.part, done);
  if (journal != nullptr) journal->keep_frames(place_in_journal(stage, output.part, video) + kept);
  if (kept > 0) replay(decoding, journal, output, video, kept);
  VideoDecode decode(decoding, output, keeper ? &*keeper : nullptr, done, tiled);
  {
    const trace::Span phase({stage.trace, decoders.world_rank(decoders.rank()), trace::kComputeLane},
                            "phase: VAE decode");
    decode.run(decoder, raw, video);
  }
  if (last && stage.trace != nullptr) comm::gather_trace(decoders, *stage.trace);
  decode.finish(begin);
}

void decode_videos(const Decoding& decoding, SharedVae& shared, const TensorView& latents,
                   const std::vector<FrameOutput>& outputs) {
  const JournaledDecode* const journaled = decoding.journaled;
  const DecodeState* const from = journaled != nullptr ? journaled->from : nullptr;
  const auto weights =
      load_vae(decoding.stage, &decoding.ranks, shared, wan::VaeParts::kDecoder, [&] { decoding.beat(); });
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto video = static_cast<int64_t>(i);
    wan::VaeDecoder decoder(weights);
    const bool complete = from != nullptr && video < from->video;
    try {
      if (!complete) {
        decode_video(decoding, decoder, latents.slice(0, video, video + 1), outputs[i],
                     i + 1 == outputs.size() && outputs[i].part.last, video);
      } else {
        replay(decoding, journaled->journal, outputs[i], video, outputs[i].part.frames);
      }
    } catch (const Error& error) {
      if (outputs.size() == 1) throw;
      fail("video {} of the batch: {}", i + 1, error.what());
    }
    if (i + 1 == outputs.size()) break;
    if (outputs[i].finish) outputs[i].finish();
    if (complete || decoding.journal() == nullptr) continue;
    RunRecord next = journaled->record();
    DecodeState& place = next.decode.emplace();
    place.segment = journaled->segment;
    place.video = video + 1;
    journaled->journal->record(std::move(next));
  }
}

}  // namespace

void replay_frames(const Stage& stage, comm::Communicator& ranks, const Journal* journal,
                   const std::vector<FrameOutput>& outputs) {
  for (size_t v = 0; v < outputs.size(); ++v)
    replay({stage, ranks}, journal, outputs[v], static_cast<int64_t>(v), outputs[v].part.frames);
}

void decode_frames(const Stage& stage, comm::Communicator& world, SharedVae& shared, const TensorView& latents,
                   const std::vector<FrameOutput>& outputs, const JournaledDecode* journaled) {
  const int count = stage.layout.vae_ranks;
  const bool decodes = world.rank() < count;
  const auto decoders = world.split(decodes ? 0 : 1, world.rank());
  const bool last = outputs.front().part.last;
  Decoding decoding{.stage = stage, .ranks = *decoders, .journaled = journaled};
  if (count == world.size() || (last && stage.trace == nullptr)) {
    if (decodes) decode_videos(decoding, shared, latents, outputs);
    return;
  }
  // Rank 0 and those that decode nothing.
  const bool listens = world.rank() == 0 || !decodes;
  const auto others = world.split(listens ? 0 : 1, world.rank());
  if (last) {
    // They end here, so what they recorded is brought to rank 0 now.
    if (listens) comm::gather_trace(*others, *stage.trace);
    if (decodes) decode_videos(decoding, shared, latents, outputs);
    return;
  }
  RankHeartbeat heartbeat(*others, kDecodeHeartbeat);
  if (!decodes) return heartbeat.wait();
  if (world.rank() == 0) decoding.listeners = &heartbeat;
  decode_videos(decoding, shared, latents, outputs);
  if (world.rank() == 0) heartbeat.done();
}

struct Preview::Decoder {
  explicit Decoder(std::shared_ptr<const wan::VaeWeights> weights) : vae(std::move(weights)) {}
  wan::VaeDecoder vae;
};

Preview::Preview(const Stage& stage, const Conditions& conditions, comm::Communicator& world, SharedVae& decoder)
    : stage_(stage), conditions_(conditions), world_(world), shared_(decoder) {}

Preview::~Preview() = default;

void Preview::after(const Denoiser::StepDone& done, int64_t before) {
  const int64_t steps = before + done.step + 1;
  const std::optional<int64_t>& every = stage_.options.preview;
  if (!every || steps % *every != 0 || done.step + 1 == stage_.plan.steps()) return;
  RankHeartbeat heartbeat(world_, "heartbeat of a preview");
  if (world_.rank() != 0) {
    heartbeat.wait();
    return;
  }
  const trace::Timing::Scope scope(stage_.timing, phases::kPreview);
  if (stage_.callbacks.preview) show(done, steps, [&] { heartbeat.beat(); });
  heartbeat.done();
}

void Preview::show(const Denoiser::StepDone& done, int64_t steps, const std::function<void()>& tick) {
  const wan::VaeConfig& config = stage_.model.vae_config;
  if (!decoder_)
    decoder_ = std::make_unique<Decoder>(load_vae(stage_, nullptr, shared_, wan::VaeParts::kDecoder, tick));
  const auto of_first = [&](const TensorView& all) {
    return all.slice(0, 0, 1).slice(2, stage_.plan.references, all.extent(2));
  };
  const Tensor small = wan::preview_latents(config, of_first(done.latents), of_first(done.velocity), done.noise);
  if (const Tensor& given = conditions_.given_frames) {
    Conditions as_small;
    as_small.given_frames = wan::preview_latents(config, given, given, 0);
    put_given_frames(as_small, small);
  }
  wan::denormalize_latents(config, small, small);
  const int64_t count = small.shape()[2], factor = config.spatial_factor();
  const int64_t height = small.shape()[3] * factor, width = small.shape()[4] * factor;
  Tensor frames = Tensor::uninitialized(DType::kU8, {count, height, width, 3});
  Stream stream(stage_.threads_of_each(1), {stage_.trace, world_.world_rank(world_.rank()), trace::kComputeLane});
  std::vector<float> unit(static_cast<size_t>(height * width * 3));
  for (int64_t f = 0; f < count; ++f) {
    tick();
    stop_if_cancelled(stage_.callbacks.cancelled);
    decoder_->vae.decode(stream, small.view().slice(2, f, f + 1), [&](int64_t, const TensorView& frame) {
      const float* values = frame.data<float>();
      for (size_t i = 0; i < unit.size(); ++i) unit[i] = 0.5f * values[i] + 0.5f;
      io::to_u8(PixelRounding::kTruncate, unit, frames.view().select(0, f).data<uint8_t>());
    });
  }
  stage_.callbacks.preview(steps, frames);
}

}  // namespace zoetrope::pipeline
