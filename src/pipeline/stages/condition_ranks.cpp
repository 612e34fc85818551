#include "pipeline/stages/condition_ranks.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "comm/launcher.h"
#include "models/encoders/clip_vision.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_tiling.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/ranks/halo_ranks.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/ranks/row_segments.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"
#include "pipeline/stages/finite.h"
#include "pipeline/stages/phases.h"
#include "tensor/copy_of.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kHeartbeat = "heartbeat of encoding";
constexpr const char* kImageHeartbeat = "heartbeat of the image encoder";
constexpr const char* kGather = "gather conditions";
constexpr const char* kWhileEncoding = "while encoding pictures";
constexpr int64_t kColours = 3;

Shape video_shape(const GenerateOptions& o, int64_t frames) { return {frames, o.height, o.width, kColours}; }

// The VAE's encoder over the first ranks of a job; the others learn the result.
class RankEncoder {
 public:
  RankEncoder(const Stage& stage, comm::Communicator& world, SharedVae& shared)
      : stage_(stage),
        world_(world),
        tiled_(stage.options.vae_tiling && wan::encodes_in_tiles(video_shape(stage.options, 1))),
        count_(tiled_ ? 1 : stage.layout.vae_ranks),
        encodes_(world.rank() < count_),
        encoders_(world.split(encodes_ ? 0 : 1, world.rank())),
        waiting_(world.rank() == 0 || !encodes_),
        listeners_(world.split(waiting_ ? 0 : 1, world.rank())),
        heartbeat_(*listeners_, kHeartbeat),
        stream_(stage.threads_of_each(std::min(count_, world.ranks_in_this_process())),
                {stage.trace, world.rank(), trace::kComputeLane}) {
    if (!encodes_) return;
    const auto tick = [this] {
      if (waiting_) heartbeat_.beat();
    };
    encoder_.emplace(load_vae(stage, encoders_.get(), shared, wan::VaeParts::kEncoder, tick));
  }

  // The normalised mean [z, T, h, w] of a clip, on every rank. Collective.
  Tensor encode(const wan::FrameSource& video) {
    const int64_t rows = stage_.plan.latent[1], columns = stage_.plan.latent[2];
    const int64_t z = stage_.model.vae_config.z_dim;
    const int64_t frames = stage_.model.vae_config.latent_frames(video.shape[0]);
    // Rows outermost: what a rank makes is contiguous.
    const Tensor whole = Tensor::uninitialized(DType::kF32, {rows, z, frames, columns});
    if (encodes_) {
      const IndexRange own = rows_of_part(rows, count_, world_.rank());
      encode_rows(video, own, whole.view().slice(0, own.begin, own.end).permute({1, 2, 0, 3}));
      if (waiting_) heartbeat_.done();
    } else {
      heartbeat_.wait();
    }
    gather(whole);
    Tensor latents = Tensor::uninitialized(DType::kF32, {z, frames, rows, columns});
    copy(stream_, latents, whole.view().permute({1, 2, 0, 3}));
    return latents;
  }

 private:
  void encode_rows(const wan::FrameSource& video, IndexRange own, const TensorView& latents /* [z, T, own, w] */) {
    const wan::VaeConfig& config = stage_.model.vae_config;
    const wan::FrameSource watched{video.shape, [&](int64_t frame) {
                                     stop_if_cancelled(stage_.callbacks.cancelled, kWhileEncoding);
                                     if (waiting_) heartbeat_.beat();
                                     return video.frame(frame);
                                   }};
    const Tensor moments =
        Tensor::uninitialized(DType::kF32, {2 * config.z_dim, latents.extent(1), own.size(), latents.extent(3)});
    if (tiled_) {
      wan::encode_tiled(stream_, *encoder_, config, watched, moments);
    } else {
      HaloRanks halo(*encoders_);
      encoder_->encode(stream_, watched, moments, {}, {count_ > 1 ? &halo : nullptr, own});
    }
    wan::normalize_latents(config, wan::mode(moments), latents);
  }

  void gather(const TensorView& whole /* [h, …] */) {
    if (world_.size() == 1) return;
    const auto rows_of = [&](int rank) {
      return rank < count_ ? rows_of_part(whole.extent(0), count_, rank) : IndexRange{0, 0};
    };
    world_.all_gather_in_place(row_segments(whole, world_.size(), rows_of), kGather);
  }

  const Stage& stage_;
  comm::Communicator& world_;
  const bool tiled_;
  const int count_;
  const bool encodes_;
  const std::unique_ptr<comm::Communicator> encoders_;
  const bool waiting_;  // rank 0, and the ranks that have no rows
  const std::unique_ptr<comm::Communicator> listeners_;
  RankHeartbeat heartbeat_;  // ranks without rows receive a message per weight, and per frame of a long clip
  Stream stream_;
  std::optional<wan::VaeEncoder> encoder_;
};

// [1, …] of a tensor.
TensorView batch_of_one(const TensorView& x) {
  return x.reshape({1, x.extent(0), x.extent(1), x.extent(2), x.extent(3)});
}

// Rank 0 computes them with all threads of its process while the others wait for its heartbeat; then every rank has
// them.
Tensor image_rows(const Stage& stage, const Inputs& inputs, comm::Communicator& world, const Dumps& dumps) {
  const ImageEncoder& tower = *stage.model.image_encoder;
  Tensor rows(DType::kF32, {inputs.pixels.extent(0), tower.config.tokens(), tower.config.hidden_size});
  RankHeartbeat heartbeat(world, kImageHeartbeat);
  if (world.rank() == 0) {
    const int threads = comm::process_threads(stage.options.threads);
    Stream stream(threads, {stage.trace, 0, trace::kComputeLane});
    dumps.add("clip_pixel_values", inputs.pixels);
    const encoders::ClipVision vision(tower.weights.source(threads), tower.config, DType::kF32);
    vision.encode(stream, inputs.pixels, rows, {}, [&] {
      stop_if_cancelled(stage.callbacks.cancelled, kWhileEncoding);
      heartbeat.beat();
    });
    if (const io::Checkpoint* files = tower.weights.checkpoint()) files->require_unchanged();
    dumps.add("image_embeds", rows);
    heartbeat.done();
  } else {
    heartbeat.wait();
  }
  if (world.size() > 1) world.broadcast(0, rows.data<void>(), rows.view().bytes(), "image rows");
  return rows;
}

// A clip of pictures at its ends and mid-grey between them, or of the first alone.
Tensor encode_ends(RankEncoder& encoder, const GenerateOptions& o, const Inputs& inputs, int64_t frames) {
  const Tensor frame = Tensor::uninitialized(DType::kF32, {o.height, o.width, kColours});
  return encoder.encode({video_shape(o, frames), [&](int64_t index) -> TensorView {
                           if (index == 0) {
                             to_signed_unit(inputs.ends.front(), frame);
                           } else if (index == frames - 1 && inputs.ends.size() > 1) {
                             to_signed_unit(inputs.ends.back(), frame);
                           } else {
                             std::memset(frame.view().raw(), 0, frame.view().bytes());
                           }
                           return frame;
                         }});
}

void add_image_channels(const Stage& stage, const Inputs& inputs, RankEncoder& encoder, Conditions& conditions,
                        const Dumps& dumps) {
  const Tensor latents = encode_ends(encoder, stage.options, inputs, stage.options.num_frames);
  const Tensor mask = frame_mask(stage.plan.latent, stage.model.vae_config.scale_factor_temporal,
                                 inputs.ends.size() > 1 ? GivenEnds::kFirstAndLast : GivenEnds::kFirst);
  conditions.channels = joined_channels(mask, latents);
  dumps.add("condition", conditions.channels);
}

void add_first_frame(const Stage& stage, const Inputs& inputs, RankEncoder& encoder, Conditions& conditions,
                     const Dumps& dumps) {
  const Tensor latents = encode_ends(encoder, stage.options, inputs, 1);
  conditions.given_frames = copy_of(batch_of_one(latents));
  dumps.add("condition", conditions.given_frames);
  if (!dumps.on()) return;
  const Shape& latent = stage.plan.latent;
  Tensor mask(DType::kF32, {1, 1, latent[0], latent[1], latent[2]});
  const int64_t given = conditions.clean_frames() * latent[1] * latent[2];
  std::fill(mask.data<float>() + given, mask.data<float>() + mask.size(), 1.0f);
  dumps.add("first_frame_mask", mask);
}

// What VACE follows: the halves of the video as latents, the pictures before them in time, the mask behind both.
class ControlEncoding {
 public:
  ControlEncoding(const Stage& stage, const Inputs& inputs, RankEncoder& encoder, const Dumps& dumps)
      : stage_(stage),
        o_(stage.options),
        inputs_(inputs),
        encoder_(encoder),
        dumps_(dumps),
        mask_(inputs.mask_frames(o_.num_frames)),
        frame_(Tensor::uninitialized(DType::kF32, {o_.height, o_.width, kColours})) {}

  Tensor run() {
    const int64_t z = stage_.model.vae_config.z_dim, n = stage_.plan.references;
    const Shape& latent = stage_.plan.latent;
    const Tensor latents(DType::kF32, {2 * z, latent[0], latent[1], latent[2]});
    const TensorView halves = latents.view().slice(1, n, latent[0]);
    put(encode_half(MaskHalf::kInactive), halves.slice(0, 0, z));
    // Without a video both are mid-grey.
    if (inputs_.control_video) put(encode_half(MaskHalf::kReactive), halves.slice(0, z, 2 * z));
    else copy(stream_, halves.slice(0, z, 2 * z), halves.slice(0, 0, z));
    for (int64_t i = 0; i < n; ++i) {
      // Each goes before the one before it.
      const int64_t at = n - 1 - i;
      put(encode_reference(i), latents.view().slice(1, at, at + 1).slice(0, 0, z));
    }
    dumps_.add("control.latents", batch_of_one(latents));
    const Shape video{latent[0] - n, latent[1], latent[2]};
    if (dumps_.on() && mask_) dumps_.add("control.video_mask", first_channel(mask_));
    const Tensor mask = mask_channels(mask_, o_.num_frames, video, stage_.model.vae_config.scale_factor_spatial, n);
    dumps_.add("control.mask", batch_of_one(mask));
    return joined_channels(latents, mask);
  }

 private:
  void put(const Tensor& from, const TensorView& to) { copy(stream_, to, from); }

  Tensor encode_half(MaskHalf half) {
    return encoder_.encode({video_shape(o_, o_.num_frames), [this, half](int64_t index) -> TensorView {
                              const TensorView video =
                                  inputs_.control_video ? inputs_.control_video.view().select(0, index) : TensorView();
                              masked_frame(video, mask_ ? mask_.select(0, index) : TensorView(), half, frame_);
                              return frame_;
                            }});
  }

  Tensor encode_reference(int64_t index) {
    const Tensor& canvas = inputs_.references[static_cast<size_t>(index)];
    if (dumps_.on()) {
      const Tensor planes = Tensor::uninitialized(DType::kF32, {kColours, o_.height, o_.width});
      copy(stream_, planes, canvas.view().permute({2, 0, 1}));
      dumps_.add(fmt::format("control.reference.{}", index), planes);
    }
    return encoder_.encode({video_shape(o_, 1), [&canvas](int64_t) -> TensorView { return canvas; }});
  }

  const Stage& stage_;
  const GenerateOptions& o_;
  const Inputs& inputs_;
  RankEncoder& encoder_;
  const Dumps& dumps_;
  const TensorView mask_;  // [F, H, W, 3] or null
  const Tensor frame_;
  Stream stream_{1};
};

// One segment of Animate.
class SegmentEncoding {
 public:
  SegmentEncoding(const Stage& stage, const Inputs& inputs, RankEncoder& encoder, int64_t segment)
      : o_(stage.options),
        inputs_(inputs),
        segments_(stage.plan.segments),
        latent_{stage.plan.latent[0] - stage.plan.references, stage.plan.latent[1], stage.plan.latent[2]},
        cell_(stage.model.vae_config.scale_factor_spatial),
        first_(segments_.begin(segment)),
        prefix_(fmt::format("segment.{}.", segment)),
        encoder_(encoder),
        frame_(Tensor::uninitialized(DType::kF32, {o_.height, o_.width, kColours})) {}

  Tensor pose(const Dumps& dumps) {
    Tensor latents = encode([&](int64_t frame) { put(driving_frame(inputs_.pose, first_ + frame)); });
    dumps.add(prefix_ + "pose_latents", batch_of_one(latents));
    return copy_of(batch_of_one(latents));
  }

  // Of a video, whose segment before ended with the frames `before`, or null → channels [C', 1 + T, h, w].
  void channels(const TensorView& reference, const TensorView& before, const Dumps& dumps, const TensorView& channels) {
    const bool replaces = o_.mode == AnimateMode::kReplace;
    const auto shared = [&](int64_t frame) { return before && frame < segments_.shared; };
    const Tensor latents = encode([&](int64_t frame) {
      if (shared(frame)) std::memcpy(frame_.view().raw(), before.select(0, frame).raw(), frame_.view().bytes());
      else if (replaces) put(driving_frame(inputs_.background, first_ + frame));
      else std::memset(frame_.view().raw(), 0, frame_.view().bytes());
    });
    const Tensor mask = segment_mask(latent_, [&](int64_t frame, int64_t y, int64_t x) {
      if (shared(frame)) return 1.0f;
      if (!replaces) return 0.0f;
      const uint8_t* pixels = driving_frame(inputs_.mask, first_ + frame).data<uint8_t>();
      return 1.0f - static_cast<float>(pixels[y * cell_ * o_.width + x * cell_]) / 255.0f;
    });
    const Tensor condition = joined_channels(mask, latents);
    dumps.add(prefix_ + "condition", condition);
    const Tensor all = joined_frames(reference, condition.view().select(0, 0));
    std::memcpy(channels.raw(), all.view().raw(), channels.bytes());
  }

  // Valid as long as the inputs.
  FaceFrames face() const {
    return {segments_.frames, inputs_.face.extent(1),
            [&video = inputs_.face, first = first_](int64_t frame, const TensorView& pixels) {
              const TensorView bytes = driving_frame(video, first + frame);
              const Tensor last = Tensor::uninitialized(DType::kF32, bytes.shape());
              to_signed_unit(bytes, last);
              Stream stream(1);
              copy(stream, pixels, last.view().permute({2, 0, 1}));
            }};
  }

 private:
  void put(const TensorView& bytes) const { to_signed_unit(bytes, frame_); }
  template <typename Fill>
  Tensor encode(Fill&& fill) {
    return encoder_.encode({video_shape(o_, segments_.frames), [&](int64_t frame) -> TensorView {
                              fill(frame);
                              return frame_;
                            }});
  }

  const GenerateOptions& o_;
  const Inputs& inputs_;
  const Segments& segments_;
  const Shape latent_;  // of the segment's video
  const int64_t cell_, first_;
  const std::string prefix_;
  RankEncoder& encoder_;
  const Tensor frame_;
};

// The picture, with a mask that says it is given.
Tensor encode_reference(const Stage& stage, const Inputs& inputs, RankEncoder& encoder) {
  const Tensor latents = encode_ends(encoder, stage.options, inputs, 1);
  const Tensor mask =
      segment_mask({1, stage.plan.latent[1], stage.plan.latent[2]}, [](int64_t, int64_t, int64_t) { return 1.0f; });
  return copy_of(joined_channels(mask, latents).view().select(0, 0));
}

// The driving videos as they are used, all frames of all segments.
void dump_animation(const Stage& stage, const Inputs& inputs, const Dumps& dumps) {
  if (!dumps.on()) return;
  dumps.add("image_u8", inputs.ends.front());
  const int64_t frames = stage.plan.segments.all_frames();
  for (const auto& [name, video] :
       {std::pair("pose_u8", &inputs.pose), std::pair("face_u8", &inputs.face),
        std::pair("background_u8", &inputs.background), std::pair("mask_u8", &inputs.mask)}) {
    if (!*video) continue;
    Shape shape = video->view().shape();
    shape[0] = frames;
    const Tensor all = Tensor::uninitialized(DType::kU8, shape);
    for (int64_t f = 0; f < frames; ++f) {
      const TensorView frame = all.view().select(0, f);
      std::memcpy(frame.raw(), driving_frame(*video, f).raw(), frame.bytes());
    }
    dumps.add(name, all);
  }
}

// All ranks have the same.
void require_finite_conditions(const Conditions& conditions) {
  for (const auto& [name, tensor] :
       {std::pair("condition", &conditions.channels), std::pair("condition", &conditions.given_frames),
        std::pair("image_embeds", &conditions.image_rows), std::pair("control", &conditions.control),
        std::pair("pose", &conditions.pose)}) {
    require_finite(*tensor, fmt::format("before the first step, every rank: {} of the pictures", name));
  }
}

}  // namespace

bool has_conditions(const Stage& stage, const Inputs& inputs) {
  return !inputs.ends.empty() || stage.model.kind.conditioning == wan::Conditioning::kControl;
}

Conditions encode_segment(const Stage& stage, const Inputs& inputs, comm::Communicator& world, SharedVae& shared,
                          const Dumps& dumps, int64_t segment, const TensorView& before, Character& character) {
  Conditions conditions;
  world.set_step(fmt::format("the encoding of segment {}", segment + 1));
  if (!character.image_rows) {
    dump_animation(stage, inputs, dumps);
    const trace::Timing::Scope scope(stage.timing, phases::kImageEncoder);
    character.image_rows = image_rows(stage, inputs, world, dumps);
  }
  conditions.image_rows = copy_of(character.image_rows);
  RankEncoder encoder(stage, world, shared);  // what it loads is another phase's
  const trace::Timing::Scope scope(stage.timing, phases::kVaeEncode);
  if (!character.reference) {
    character.reference = encode_reference(stage, inputs, encoder);
    dumps.add("reference_condition", batch_of_one(character.reference));
  }
  SegmentEncoding encoding(stage, inputs, encoder, segment);
  conditions.pose = encoding.pose(dumps);
  const int64_t own = before ? stage.plan.videos : 1, frames = stage.plan.segments.shared;
  const Shape& latent = stage.plan.latent;
  conditions.channels =
      Tensor::uninitialized(DType::kF32, {own, character.reference.extent(0), latent[0], latent[1], latent[2]});
  for (int64_t v = 0; v < own; ++v) {
    encoding.channels(character.reference, before ? before.slice(0, v * frames, (v + 1) * frames) : TensorView(),
                      before ? dumps.of(static_cast<size_t>(v)) : dumps, conditions.channels.view().select(0, v));
  }
  conditions.face = encoding.face();
  if (stage.options.check_finite) require_finite_conditions(conditions);
  return conditions;
}

Conditions encode_conditions(const Stage& stage, const Inputs& inputs, comm::Communicator& world, SharedVae& shared,
                             const Dumps& dumps) {
  Conditions conditions;
  const wan::Conditioning kind = stage.model.kind.conditioning;
  const bool controlled = kind == wan::Conditioning::kControl;
  if (!has_conditions(stage, inputs)) return conditions;
  world.set_step("the pictures' encoding");
  if (inputs.pixels) {
    const trace::Timing::Scope scope(stage.timing, phases::kImageEncoder);
    conditions.image_rows = image_rows(stage, inputs, world, dumps);
  }
  RankEncoder encoder(stage, world, shared);  // what it loads is another phase's
  const trace::Timing::Scope scope(stage.timing, phases::kVaeEncode);
  if (controlled) {
    conditions.control = ControlEncoding(stage, inputs, encoder, dumps).run();
    conditions.control_scale = conditioning_scales(stage.options, stage.model.experts[0].config.vace_layers.size());
  } else if (kind == wan::Conditioning::kChannels) {
    add_image_channels(stage, inputs, encoder, conditions, dumps);
  } else {
    add_first_frame(stage, inputs, encoder, conditions, dumps);
  }
  if (stage.options.check_finite) require_finite_conditions(conditions);
  return conditions;
}

}  // namespace zoetrope::pipeline
