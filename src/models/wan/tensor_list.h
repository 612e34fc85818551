// The complete list of tensors of a model, from its config alone: what a checkpoint must hold (wan.md sections 2–5) and
// what `inspect` compares a folder with. Names and shapes only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

struct TensorSpec {
  std::string name;
  Shape shape;
};

using TensorList = std::vector<TensorSpec>;

TensorList transformer_tensors(const TransformerConfig& config);   // T2V, I2V, FLF2V, TI2V, VACE
TensorList text_encoder_tensors(const TextEncoderConfig& config);  // the embedding as "shared.weight"
TensorList vae_tensors(const VaeConfig& config);                   // 2.1 and 2.2, encoder and decoder
TensorList clip_vision_tensors(const ClipVisionConfig& config);    // with the last layer and what follows it
inline constexpr const char* kVisualProjection = "visual_projection.weight";
TensorList clip_vision_tensors_used(const ClipVisionConfig& config);  // without: what has to be there

// The name under which `holder` (anything with contains(name)) has a tensor of these lists: files name UMT5's embedding
// by either of the two that are tied. `listed` itself where it has neither.
inline constexpr const char* kEmbedding = "shared.weight";
inline constexpr const char* kTiedEmbedding = "encoder.embed_tokens.weight";
template <typename Holder>
std::string stored_name(const Holder& holder, const std::string& listed) {
  const bool tied = listed == kEmbedding && !holder.contains(listed) && holder.contains(kTiedEmbedding);
  return tied ? kTiedEmbedding : listed;
}

struct TensorTotals {
  int64_t tensors = 0;
  int64_t parameters = 0;
  uint64_t bytes(DType dtype) const { return static_cast<uint64_t>(parameters) * dtype_size(dtype); }
};
TensorTotals totals(const TensorList& list);

// A name that a checkpoint may hold although the list does not: the tied copy of the embedding, normalisations that old
// conversions left behind, what a file of a whole CLIP model has beside the vision tower. Such tensors are ignored.
bool is_ignored_tensor(const std::string& name);

// True for tensors that stay float32 when the transformer runs in bf16 (wan.md section 2.9): those with a dotted
// component "time_embedder", "scale_shift_table", "norm1", "norm2" or "norm3".
bool is_float32_island(const std::string& name);

}  // namespace zoetrope::wan
