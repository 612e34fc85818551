#include "models/wan/workload.h"

#include <algorithm>
#include <array>

#include "base/index_range.h"
#include "models/wan/tensor_list.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {
namespace {

using planner::Bytes;
using planner::WeightBytes;

constexpr int64_t kFloat = 4;

int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

WeightBytes weights_of(const TensorList& list, DType stored) {
  WeightBytes weights;
  for (const TensorSpec& spec : list) weights.parameters += spec.shape.size();
  weights.stored = Bytes(weights.parameters) * size_of(stored);
  return weights;
}

// ---- transformer ----

Bytes held_by_transformer(const TensorList& list, DType dtype) {
  Bytes bytes;
  for (const TensorSpec& spec : list)
    bytes += Bytes(spec.shape.size()) * (is_float32_island(spec.name) ? kFloat : size_of(dtype));
  return bytes;
}

// Tensors whose forms so many threads make at once: the modulation of all blocks, which there is once, and the widest
// of the blocks'.
int64_t widest_forms(const TransformerConfig& config, int threads) {
  const int64_t d = config.inner_dim();
  return 6 * d * d + (threads - 1) * std::max(3 * d * d, config.ffn_dim * d);
}

planner::Workload::Expert expert_of(const TransformerConfig& config, const ModelConfigs& configs, const RunSize& size,
                                    int64_t branches, int64_t tokens) {
  planner::Workload::Expert expert;
  const TensorList list = transformer_tensors(config);
  const int64_t d = config.inner_dim(), element = size_of(size.transformer);
  expert.weights = weights_of(list, configs.stored_transformer);
  expert.weights.held = held_by_transformer(list, size.transformer);
  expert.weights.in_flight = Bytes(widest_forms(config, size.threads)) * size_of(configs.stored_transformer);
  const int64_t rows = branches * size.text_rows;
  expert.context = Bytes(config.num_layers * 2) * rows * d * element + Bytes(rows * config.text_dim * kFloat);
  expert.context_making = Bytes(rows) * (3 * d + config.text_dim) * element;
  const int64_t widest = std::max({3 * d, config.ffn_dim, config.patch_input_dim()});
  expert.workspace = Bytes(branches * tokens) * (2 * d + widest) * element;
  return expert;
}

// ---- VAE ----

// Frames that the causal convolutions of the decoder remember, and those in work at the largest stage.
Bytes decoder_workspace(const VaeConfig& config, int64_t height, int64_t width, DType dtype) {
  const CoderLayout layout = decoder_layout(config);
  int64_t h = height, w = width;  // of the stage
  Bytes bytes, largest;
  const auto past = [&](const ConvLayout& conv) {
    const Bytes frame = Bytes(conv.in) * h * w * size_of(dtype);
    if (conv.kernel[0] > 1) bytes += frame * (conv.kernel[0] - 1);
    largest = std::max(largest, Bytes(std::max(conv.in, conv.out)) * h * w * size_of(dtype));
  };
  const auto residual = [&](const ResidualLayout& block) {
    past(block.conv1);
    past(block.conv2);
  };
  past(layout.in);
  residual(layout.middle_first);
  residual(layout.middle_last);
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) residual(block);
    if (!stage.resample) continue;
    if (stage.resample->time) past(*stage.resample->time);
    h *= 2;
    w *= 2;
    past(stage.resample->spatial);
  }
  past(layout.out);
  constexpr int64_t kInWork = 4;
  return bytes + largest * kInWork;
}

planner::Workload::Vae vae_of(const ModelConfigs& configs, const RunSize& size, const planner::RankUse& ranks) {
  const VaeConfig& config = configs.vae;
  planner::Workload::Vae vae;
  const int64_t spatial = spatial_factor(config);
  vae.weights = weights_of(vae_tensors(config), configs.stored_vae);
  TensorList decoder = coder_tensors(decoder_layout(config));
  for (const TensorSpec& spec : decoder) vae.weights.held += Bytes(spec.shape.size()) * size_of(size.vae);
  int64_t rows = size.height / spatial, columns = size.width / spatial;
  if (size.vae_tiling) {
    constexpr int64_t kTile = 256;
    rows = std::min(rows, kTile / spatial);
    columns = std::min(columns, kTile / spatial);
  }
  rows = ceil_div(rows, std::max(1, ranks.vae));
  vae.workspace = decoder_workspace(config, rows, columns, size.vae);
  const Bytes frame = Bytes(size.height * size.width * config.out_channels) * kFloat;
  constexpr int64_t kWaiting = 5;
  vae.output = frame * kWaiting;
  if (size.vae_tiling) vae.output += frame * size.frames;
  if (size.keeps_frames) vae.kept = (frame + frame / kFloat) * size.frames;
  return vae;
}

// ---- text encoder ----

planner::Workload::TextEncoder text_encoder_of(const ModelConfigs& configs, const RunSize& size) {
  const TextEncoderConfig& config = configs.text_encoder;
  planner::Workload::TextEncoder text;
  text.weights = weights_of(text_encoder_tensors(config), configs.stored_text_encoder);
  const int64_t layer = 4 * config.d_model * config.attention_dim() + 3 * config.d_model * config.d_ff;
  text.weights.in_flight = Bytes(layer * 2) * size_of(configs.stored_text_encoder);
  std::vector<int64_t> lengths = size.prompt_tokens;
  lengths.resize(static_cast<size_t>(size.prompts), size.text_rows);
  int64_t rows = 0, longest = 0;
  for (const int64_t length : lengths) {
    rows += length;
    longest = std::max(longest, length);
  }
  text.workspace =
      Bytes(rows) * (2 * config.d_model + 4 * config.attention_dim() + 2 * config.d_ff) * size_of(size.text_encoder) +
      Bytes(config.num_heads) * longest * longest * kFloat;
  return text;
}

}  // namespace

planner::Workload workload(const ModelConfigs& configs, const RunSize& size, const planner::RankUse& ranks) {
  planner::Workload w;
  const TransformerConfig& config = configs.experts.front();
  const int64_t spatial = spatial_factor(configs.vae);
  const int64_t cells = latent_frames(configs.vae, size.frames) * (size.height / spatial) * (size.width / spatial);
  const int64_t tokens = cells / config.patch_volume();
  const int64_t branches = std::max<int64_t>(1, size.prompts / ranks.data);
  const int64_t shard = ranks.sharded ? ceil_div(tokens, ranks.context.ranks()) : tokens;
  const int64_t element = size_of(size.transformer);

  w.ranks = ranks;
  w.program = Bytes(80'000'000);
  // Latents, their noise, what UniPC remembers of two steps, the velocity; the rows of the prompts.
  constexpr int64_t kLatents = 8;
  w.per_rank = Bytes(cells) * (configs.vae.z_dim * kFloat * kLatents) +
               Bytes(size.prompts * size.text_rows) * configs.text_encoder.d_model * kFloat;
  w.text = text_encoder_of(configs, size);
  for (const TransformerConfig& expert : configs.experts) {
    w.experts.push_back(expert_of(expert, configs, size, branches, shard));
    w.experts.back().name = w.experts.size() == 1 ? "transformer" : "transformer_2";
  }
  w.attention = {branches, ranks.sharded ? tokens : shard, config.num_attention_heads, config.attention_head_dim,
                 element};
  // A head's keys and values, packed; tiles of the threads.
  constexpr int64_t kTileBytes = int64_t{1} << 20;
  w.kernel_scratch = Bytes(tokens) * (2 * config.attention_head_dim * kFloat) +
                     Bytes(kTileBytes) * ceil_div(size.threads, std::max(1, ranks.here));
  w.step = Bytes(branches * shard + size.prompts * tokens) * (config.patch_output_dim() * element) +
           Bytes(size.prompts + 1) * cells * (config.out_channels * kFloat);
  w.vae = vae_of(configs, size, ranks);
  return w;
}

}  // namespace zoetrope::wan
