// The Wan diffusion transformer on one rank: latents, timesteps and text in, velocity of the rank's tokens out
// (wan.md section 2). Weights and the text's keys and values are shared by all ranks of a process; everything else
// belongs to one rank. Knows no ranks and no messages: which tokens are its own and how attention reaches the others'
// keys is behind attention::ContextAttention.
//
// Order of calls:
//   auto weights = TransformerWeights::load(config, std::make_shared<io::Weights>(checkpoint), DType::kBF16);
//   Transformer transformer(weights, stream);             // a rank
//   transformer.prepare({F, H, W}, batch, attention);     // a resolution: the workspace is booked here
//   transformer.set_context(context);                     // a prompt
//   transformer.forward(latents, timesteps, velocity);    // a denoising step: allocates nothing
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/wan/config.h"
#include "models/wan/probe.h"
#include "models/wan/transformer/text_context.h"
#include "models/wan/transformer/weights.h"

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

class Transformer {
 public:
  Transformer(std::shared_ptr<const TransformerWeights> weights, Stream& stream);
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  const TransformerConfig& config() const;
  DType dtype() const;  // of the residual stream, and of what forward() writes

  // For `batch` samples of latent size {F, H, W}. `attention` was planned for this batch, F·H·W/patch tokens, the
  // config's heads and head_dim and dtype(); it must outlive the next prepare(). Books all memory that forward() uses.
  void prepare(const Shape& latent, int64_t batch, attention::ContextAttention& attention);
  IndexRange local_tokens() const;  // attention's

  // The prompt. Every rank of the process that shares the context calls this; they divide the blocks' projections
  // among themselves (see TextContext). Exact: keys and values depend on nothing but the prompt.
  void set_context(std::shared_ptr<TextContext> context, const Probe& probe = {});
  // For a rank on its own: text [B, L, text_dim] F32 or BF16. `key_lengths` [B] or empty: valid rows.
  void set_context(const TensorView& text, std::span<const int64_t> key_lengths = {}, const Probe& probe = {});

  // latents [B, C_in, F, H, W] F32, whole, the same on each rank; timesteps [B], the scheduler's value per sample;
  // velocity_tokens [B, S_local, pt·ph·pw·C_out] of dtype(), channel fastest; see unpatchify(). The probe sees the
  // local tokens: "patch_embedding", "temb", "timestep_proj", "block.0", …, "proj_out".
  void forward(const TensorView& latents, std::span<const float> timesteps, const TensorView& velocity_tokens,
               const Probe& probe = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zoetrope::wan
