// The UMT5 text encoder: token ids in, one embedding a token out (wan.md sections 5.1, 5.2). Ids come from the
// tokenizer, and what the pipeline does with the rows (zero padding to 512) is not done here.
//
// Weights are read from their source layer by layer and not kept: where the file has F32 or BF16 they are used in place
// and released after each half layer, else those of one matrix multiplication at a time are read into a buffer. So the
// 11 or 23 GB of UMT5-XXL never have to be in memory; the price is that a second encode() reads again: encode_batch()
// is for several prompts.
//
// Several ranks share the work: each has some of the heads and some columns of the feed-forward (uneven numbers, or
// none, are fine), reads those weights only, and a PartialSum adds up what the parts make.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "io/weights/weights.h"
#include "models/encoders/config.h"
#include "models/encoders/partial_sum.h"
#include "tensor/probe.h"

namespace zoetrope::encoders {

class TextEncoder {
 public:
  // `source`: io::checkpoint_source(io::Checkpoint::open(folder / "text_encoder", "model")). `dtype` F32 or BF16: of
  // matrices and residual stream; softmax and norms are float32 inside. Throws Error where a tensor is missing or has
  // another shape than the config says. `sum` of more than one part: every rank makes the same calls, and each
  // of them sums twice per layer. It must outlive the encoder.
  TextEncoder(std::shared_ptr<const io::WeightSource> source, const TextEncoderConfig& config, DType dtype,
              Stream& stream, PartialSum* sum = nullptr);
  ~TextEncoder();
  TextEncoder(TextEncoder&&) noexcept;

  const TextEncoderConfig& config() const;

  // One prompt: ids of its pieces with the closing </s>, no padding. out [L, d_model] F32 or BF16, contiguous. An id
  // outside the vocabulary is an Error.
  void encode(std::span<const int32_t> ids, const TensorView& out, const Probe& probe = {});

  // Several prompts in one pass over the weights: ids [B, L] I32, lengths [B] of the prompts, at least one each; ids
  // beyond the length are not read. out [B, L, d_model] F32 or BF16, contiguous, zero beyond a prompt's length.
  // Computes only real tokens: prompts share the matrix multiplications, and each attends to itself. The
  // probe sees "block.0", …, "last_hidden_state", laid out as out.
  // `tick` is called after every layer and may throw to stop.
  void encode_batch(const TensorView& ids, std::span<const int64_t> lengths, const TensorView& out,
                    const Probe& probe = {}, const std::function<void()>& tick = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zoetrope::encoders
