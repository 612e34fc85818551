// The Wan diffusion transformer on one rank: latents, timesteps and text in, velocity of the rank's tokens out
// (wan.md section 2). Weights and the text's keys and values are shared by all ranks of a process; everything else
// belongs to one rank. Knows no ranks and no messages: which tokens are its own and how attention reaches the others'
// keys is behind attention::ContextAttention, the sum over ranks that share its layers behind encoders::PartialSum.
//
// Order of calls:
//   auto weights = TransformerWeights::load(config, std::make_shared<io::Weights>(source), DType::kBF16);
//   Transformer transformer(weights, stream);             // per rank
//   transformer.prepare({F, H, W}, batch, attention);     // per resolution: books the workspace
//   transformer.set_context(context);                     // per prompt, with its image for models that take one
//   transformer.forward(latents, timesteps, velocity);    // per denoising step: allocates nothing
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/encoders/partial_sum.h"
#include "models/wan/config.h"
#include "models/wan/transformer/text_context.h"
#include "models/wan/transformer/weights.h"
#include "tensor/probe.h"

namespace zoetrope::attention {
class ContextAttention;
}

namespace zoetrope::wan {

// Latent cells of one sample, and the tokens they make.
struct TokenGrid {
  int64_t frames = 0, height = 0, width = 0;  // in tokens
  int64_t tokens() const { return frames * height * width; }
};
// `latent` is {F, H, W} in latent cells; sizes that the patch does not divide are refused.
TokenGrid token_grid(const TransformerConfig& config, const Shape& latent);

// The noise levels of a forward: a few values, one set of modulations per value, and an index from samples or tokens to
// values. Tokens of one sample may differ (TI2V: the first frame is clean and has 0, all others the step's value).
struct Timesteps {
  std::span<const float> values;  // the scheduler's
  // Into `values`: [B] per sample, [B, N] per token (all tokens, not the rank's own), or empty: sample b has values[b].
  // Consecutive tokens of one value are computed together, so long runs cost nothing.
  std::span<const int32_t> index;

  Timesteps(std::span<const float> all, std::span<const int32_t> of = {}) : values(all), index(of) {}
  Timesteps(const std::vector<float>& all, std::span<const int32_t> of = {}) : values(all), index(of) {}
};

// What a forward does for one sample between embedding and head. x is the rank's part of the residual stream.
enum class Blocks : uint8_t {
  kCompute,
  kComputeAndKeep,  // and stores x after − x before
  kReuse,           // x += the difference stored last, instead of all blocks: no compute, no communication
  kLeaveOut,        // nothing: the sample's output is undefined
};

// What a run needs beyond the simplest case; memory is booked only for what is set.
struct TransformerExtras {
  int64_t timesteps = 0;        // most values of a forward; 0: one per sample
  bool keeps_residual = false;  // for Blocks other than kCompute: [B, S_local, d] of dtype()
};

class Transformer {
 public:
  // `sum`: over the ranks that share the layers of weights that are a part of them, which make the same calls; null for
  // whole ones. It must outlive the transformer.
  Transformer(std::shared_ptr<const TransformerWeights> weights, Stream& stream, encoders::PartialSum* sum = nullptr);
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  const TransformerConfig& config() const;
  DType dtype() const;  // of the residual stream, and of what forward() writes
  // In all forwards, for weights that are read, gathered or converted as they are used.
  double weights_wait_seconds() const;

  // For `batch` samples of latent size {F, H, W}. `attention` was planned for F·H·W/patch tokens, the heads of the
  // weights, the config's head_dim, dtype(), and a batch that divides this one: the samples go through the blocks in
  // groups of that size. It must outlive the next prepare(). Books all memory that forward() uses.
  void prepare(const Shape& latent, int64_t batch, attention::ContextAttention& attention,
               const TransformerExtras& extras = {});

  // The prompt. Every rank of the process that shares the context calls this; they share the blocks' projections (see
  // TextContext). Exact, because keys and values depend on the prompt alone.
  void set_context(std::shared_ptr<TextContext> context, const Probe& probe = {});
  // For a rank on its own; arguments as of TextContext.
  void set_context(const TensorView& text, std::span<const int64_t> key_lengths = {}, const Probe& probe = {},
                   const TensorView& image = {});

  // VACE, before forward() and again after prepare(): latents [B, vace_in_channels, Fc, H, W] F32, the same on each
  // rank, Fc ≤ F; control tokens of missing frames are zero. scales [len(vace_layers)]: the weight of each hint. Both
  // views must stay valid while forward() is called.
  void set_control(const TensorView& latents, std::span<const float> scales);

  // Animate, before forward() and again after prepare(). pose [B, C, F − 1, H, W] F32, or [1, …] for all samples:
  // latents of the pose video, the same on each rank; the view must stay valid while forward() is called. face
  // [B, F − 1, heads + 1, d] of dtype(): tokens of encode_face(). Their keys and values are computed here.
  void set_animation(const TensorView& pose, const TensorView& face);

  // latents [B, C_in, F, H, W] F32, whole, the same on each rank; velocity_tokens [B, S_local, pt·ph·pw·C_out] of
  // dtype(), channel fastest; see unpatchify(). `blocks` [B], or empty: kCompute; samples of one attention group
  // must have the same, on all ranks. The probe sees the local tokens, of one group of samples at a time between
  // embedding and head: "patch_embedding", "temb", "timestep_proj" (both a row for each of the timesteps' values),
  // "block.0.self_attention" (of the rank's heads, before the projection), "block.0.cross_attention" (the stream behind
  // it, some rows at a time), "block.0", …, "proj_out"; of VACE "vace_patch_embedding", "vace.0.control" (in stages as
  // a block), "vace.0.hint", …; of Animate "pose_patch_embedding" (rows of tokens from the second frame on),
  // "face_adapter.0", …. The forward goes on with what a probe makes of these, but of hints and faces, which are added
  // before.
  void forward(const TensorView& latents, const Timesteps& timesteps, const TensorView& velocity_tokens,
               const Probe& probe = {}, std::span<const Blocks> blocks = {});

  // The time embedding alone, for the decisions of step caches: float32 whatever dtype() is, because the caches' curves
  // were fitted to it and it moves by less than bf16 rounds between steps. Valid until the next call.
  struct TimeEmbedding {
    TensorView temb;           // [V, d] F32, V the timesteps' values
    TensorView timestep_proj;  // [V, 6d] F32
  };
  TimeEmbedding embed_time(const Timesteps& timesteps);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zoetrope::wan
