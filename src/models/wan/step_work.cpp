#include "models/wan/step_work.h"

#include <algorithm>
#include <cmath>

#include "base/index_range.h"
#include "models/encoders/cost.h"
#include "models/wan/model_flops.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/face_encoder.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/transformer/workspace.h"
#include "models/wan/vae/vae_cost.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_tiling.h"

namespace zoetrope::wan {
namespace {

int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// All prompts; those of unknown length have the maximum.
double prompts_flop(const encoders::TextEncoderConfig& config, const RunSize& size) {
  std::vector<int64_t> lengths = size.prompt_tokens;
  lengths.resize(static_cast<size_t>(size.prompts), size.text_rows);
  double flop = 0;
  for (const int64_t length : lengths) flop += encoders::text_encoder_flop(config, length);
  return flop;
}

void add_decoding(planner::Work& work, const VaeConfig& config, const RunSize& size, int64_t frames) {
  const int64_t spatial = config.spatial_factor(), rows = size.height / spatial, columns = size.width / spatial;
  work.vae_element_bytes = size_of(size.vae);
  if (size.vae_tiling && decodes_in_tiles(config, {config.z_dim, frames, rows, columns})) {
    work.vae_flop = tiled_decode_flops(config, frames, rows, columns);
    work.vae_rows = 1;  // tiles follow one another on one rank
    return;
  }
  work.vae_flop = vae_decode_flops(config, frames, rows, columns);
  work.vae_rows = rows;
}

// Encoding before denoising. It uses tiles where decoding does, so rows are shared in the same way.
void add_conditions(planner::Work& work, const ModelConfigs& configs, const RunSize& size) {
  const bool tiled = size.vae_tiling && encodes_in_tiles({1, size.height, size.width, configs.vae.in_channels});
  for (const int64_t frames : encoded_clips(configs, size))
    work.condition_flop += (tiled ? tiled_encode_flops(configs.vae, frames, size.height, size.width)
                                  : vae_encode_flops(configs.vae, frames, size.height, size.width));
  if (const std::optional<FaceConfig>& face = configs.experts.front().face) {
    const int64_t d = configs.experts.front().inner_dim();
    work.condition_flop += static_cast<double>(size.segments) *
                           (static_cast<double>(size.frames) * motion_flop(*face) + face_flop(*face, d, size.frames));
  }
  if (!configs.image_encoder) return;
  const int64_t pictures = configs.experts.front().pos_embed_seq_len ? 2 : 1;
  work.image_flop = static_cast<double>(pictures) * encoders::image_encoder_flop(*configs.image_encoder);
}

bool streams(const RunSize& size) { return size.weight_memory > 0 || size.as_stored; }
bool repacks(const RunSize& size) { return streams(size) && !size.weight_cache; }

// Of each of `tensor` parts of every layer.
ForwardWeights weights_of_forward(const TransformerConfig& config, const ModelConfigs& configs, const RunSize& size,
                                  int tensor) {
  return streamed_forward(config, size.transformer, repacks(size) ? packed_from_bytes(configs) : 0,
                          size.as_stored ? 0 : size.weight_memory, tensor);
}

// Of the `stored` bytes of a transformer, those that are read before the first step: what is streamed, each step reads.
planner::Bytes read_at_first(const TransformerConfig& config, const ModelConfigs& configs, const RunSize& size,
                             planner::Bytes stored) {
  if (!streams(size)) return stored;
  const ForwardWeights forward = weights_of_forward(config, configs, size, 1);
  const auto parameters = static_cast<double>(io::totals(transformer_tensors(config)).parameters);
  const double streamed = forward.fetched * static_cast<double>(forward.elements) / parameters;
  return planner::Bytes(std::llround(static_cast<double>(stored.count()) * (1 - streamed)));
}

using Part = planner::Work::LayerWeights::Part;

// A quantised value takes no less to decode than one of bf16 to convert, whose pace was measured.
constexpr int64_t kBytesOfBf16 = 2;

// What a forward meets of packed weights, in layers that are all alike, of a part of each of `tensor` parts.
Part part_of_layer(const TransformerConfig& config, const ModelConfigs& configs, const RunSize& size, int tensor) {
  Part part;
  const ForwardWeights forward = weights_of_forward(config, configs, size, tensor);
  const int64_t layers = config.block_count();
  part.layer = planner::Bytes(ceil_div(forward.bytes, layers));
  if (!streams(size)) return part;
  part.fetched = std::llround(std::ceil(forward.fetched * static_cast<double>(layers)));
  part.read = part.layer;
  if (!repacks(size)) return part;
  // Files may hold less than the dtype that they are read as: quantised tensors.
  const auto parameters = static_cast<double>(io::totals(transformer_tensors(config)).parameters);
  const double of_element = configs.transformer_file_bytes > 0
                                ? static_cast<double>(configs.transformer_file_bytes) / parameters
                                : static_cast<double>(size_of(configs.stored.transformer));
  const double elements = static_cast<double>(forward.elements) / static_cast<double>(layers);
  part.read = planner::Bytes(std::llround(elements * of_element));
  part.packed = planner::Bytes(std::llround(elements * std::max<double>(kBytesOfBf16, of_element)));
  return part;
}

Part mean(const Part& first, const Part& second, double share_of_first) {
  const auto bytes = [&](planner::Bytes Part::*of) {
    const auto a = static_cast<double>((first.*of).count()), b = static_cast<double>((second.*of).count());
    return planner::Bytes(std::llround(std::lerp(b, a, share_of_first)));
  };
  const auto a = static_cast<double>(first.fetched), b = static_cast<double>(second.fetched);
  return {bytes(&Part::layer), std::llround(std::lerp(b, a, share_of_first)), bytes(&Part::read), bytes(&Part::packed)};
}

planner::Work::LayerWeights layer_weights(const ModelConfigs& configs, const RunSize& size) {
  const TransformerConfig& config = configs.experts.front();
  planner::Work::LayerWeights weights;
  for (int64_t tensor = 1; tensor <= config.num_attention_heads; ++tensor) {
    if (config.num_attention_heads % tensor != 0) continue;
    const auto of = static_cast<int>(tensor);
    weights.parts[of] = part_of_layer(config, configs, size, of);
    if (configs.experts.size() == 1) continue;
    weights.parts[of] =
        mean(weights.parts[of], part_of_layer(configs.experts[1], configs, size, of), size.share_of_first);
  }
  const Part& all = weights.parts[1];
  weights.layer = all.layer;
  weights.fetched = all.fetched;
  weights.read = all.read;
  weights.packed = all.packed;
  weights.in_memory = size.as_stored;
  return weights;
}

// Of the operations that `linear_flop` of every layer counts. All matrices that the table has in int8 are among them.
double int8_share(const TransformerConfig& config, DType dtype, double tokens, double linear_flop) {
  double elements = 0;
  for (const io::TensorSpec& spec : transformer_tensors(config))
    if (spec.packed_dtype(dtype) == DType::kI8) elements += static_cast<double>(spec.shape.size());
  return 2 * tokens * elements / (linear_flop * static_cast<double>(config.block_count()));
}

}  // namespace

planner::Work work(const ModelConfigs& configs, const RunSize& size) {
  // Both experts have the same sizes, and one works at a time: what is multiplied in int8, and so the size of weights,
  // is the mean of their steps.
  const TransformerConfig& config = configs.experts.front();
  const planner::Workload memory = workload(configs, size, {});
  planner::Work work;
  work.layers = config.block_count();
  work.tokens = memory.attention.tokens;
  work.heads = config.num_attention_heads;
  work.head_dim = config.attention_head_dim;
  work.width = config.inner_dim();
  work.element_bytes = size_of(size.transformer);
  work.kv_vector_bytes = memory.attention.kv_vector_bytes;
  work.int8_attention = size.int8_attention;
  work.text_rows = size.text_rows;
  const ForwardFlop flop = forward_flop(config, work.tokens, size.text_rows, image_rows(config, size));
  work.linear_flop = flop.linear;
  const auto share = [&](const TransformerConfig& expert) {
    return int8_share(expert, size.transformer, static_cast<double>(work.tokens), flop.linear);
  };
  work.int8_share = std::lerp(share(configs.experts.back()), share(config), size.share_of_first);
  work.cross_flop = flop.cross_attention;
  work.ends_flop = flop.ends;
  work.hidden_flop = flop.feed_forward;
  work.hidden_units = config.ffn_dim / hidden_unit(config.ffn_dim);
  work.sum_rows = kMostChunkRows;
  work.weights = layer_weights(configs, size);
  work.samples_apart = size.branches_apart;
  work.videos = size.videos;
  work.branches = static_cast<int>(size.prompts / size.videos);
  work.steps = 1;
  work.latent_bytes = work.tokens * config.patch_output_dim() * work.element_bytes;

  work.text_flop = prompts_flop(configs.text_encoder, size);
  work.text_element_bytes = size_of(size.text_encoder);
  const TextLayers layers = text_layers(configs);
  const int64_t weights = text_layer_weights(configs.text_encoder);
  work.text_weights = planner::Bytes(layers.decoded ? weights * work.text_element_bytes : layers.file_bytes);
  // A layer at a time, each where it is needed.
  const int64_t least = layers.decoded ? weights * kBytesOfBf16 : 0;
  if (configs.mapped) work.text_read = planner::Bytes(std::max(layers.file_bytes, least));
  for (size_t i = 0; i < configs.experts.size(); ++i)
    work.weights_read += read_at_first(configs.experts[i], configs, size, memory.experts[i].weights.stored);
  work.weights_read += memory.vae.weights.stored;
  add_decoding(work, configs.vae, size, configs.vae.latent_frames(size.frames));
  work.vae_flop *= static_cast<double>(size.videos * size.segments);
  add_conditions(work, configs, size);
  return work;
}

}  // namespace zoetrope::wan
