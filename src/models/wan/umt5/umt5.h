// The UMT5 text encoder: token ids in, one embedding a token out (wan.md sections 5.1, 5.2). Runs on one rank; ids come
// from the tokenizer, and what the pipeline does with the rows (zero padding to 512) is not done here.
//
// Weights are read from their source layer by layer and not kept: where the file holds them in the dtype computed with
// they are used in place, else one tensor at a time is converted into a buffer that the next one reuses. So the 22.7 GB
// of UMT5-XXL never have to be in memory; the price is that a second encode() converts again: encode_batch() is for
// several prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "io/weights.h"
#include "models/wan/config.h"
#include "models/wan/probe.h"

namespace zoetrope::wan {

class TextEncoder {
 public:
  // `source`: io::checkpoint_source(io::Checkpoint::open(folder / "text_encoder", "model")). `dtype` F32 or BF16: of
  // matrices and residual stream; softmax and norms are float32 inside. Throws Error where a tensor is missing or has
  // another shape than the config says.
  TextEncoder(std::shared_ptr<const io::WeightSource> source, const TextEncoderConfig& config, DType dtype,
              Stream& stream);
  ~TextEncoder();
  TextEncoder(TextEncoder&&) noexcept;

  const TextEncoderConfig& config() const;

  // One prompt: ids of its pieces with the closing </s>, no padding. out [L, d_model] F32 or BF16, contiguous. An id
  // outside the vocabulary is an Error.
  void encode(std::span<const int32_t> ids, const TensorView& out, const Probe& probe = {});

  // Several prompts in one pass over the weights: ids [B, L] I32, lengths [B] ids that are a prompt's own, at least one
  // each; what stands beyond is not read. out [B, L, d_model] F32 or BF16, contiguous, zero beyond a prompt's length.
  // Costs as many rows as there are ids of their own: prompts share the matrix products and attend each to itself. The
  // probe sees "block.0", …, "last_hidden_state", laid out as out.
  void encode_batch(const TensorView& ids, std::span<const int64_t> lengths, const TensorView& out,
                    const Probe& probe = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zoetrope::wan
