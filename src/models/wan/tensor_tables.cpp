#include "models/wan/tensor_tables.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "io/weights/table_scope.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_names.h"

namespace zoetrope::wan {
namespace {

using io::TableScope;
using io::TensorRole;
using io::TensorTable;

// ---- transformer ----

// Ranks divide heads. A norm is over all of them, and has a factor for each of its own.
void norm_of_heads(const TableScope& attention, const io::TensorName& name, const TransformerConfig& config) {
  attention.weight(name, {config.inner_dim()}, TensorRole::kNorm).shard_axis = {0, config.attention_head_dim};
}

// `keys`: the same scope, for keys and values.
void attention_tensors(const TableScope& attention, const TableScope& keys, const TransformerConfig& config) {
  const int64_t d = config.inner_dim(), head = config.attention_head_dim;
  attention.linear_by_outputs({"to_q", "q"}, d, d, head);
  keys.linear_by_outputs({"to_k", "k"}, d, d, head);
  keys.linear_by_outputs({"to_v", "v"}, d, d, head);
  attention.linear_by_inputs({"to_out.0", "o"}, d, d, head);
  norm_of_heads(attention, "norm_q", config);
  norm_of_heads(attention, "norm_k", config);
}

// `number`: as in TransformerConfig::int8_blocks. Keys and values of the context are made once per prompt: they stay as
// the model computes.
void block_tensors(const TableScope& block, const TransformerConfig& config, int64_t number) {
  const int64_t d = config.inner_dim();
  const bool int8 = std::binary_search(config.int8_blocks.begin(), config.int8_blocks.end(), number);
  block.modulation({"scale_shift_table", "modulation"}, 6, d);
  const TableScope self = block.in({"attn1", "self_attn"}).in_int8(int8), cross = block.in({"attn2", "cross_attn"});
  attention_tensors(self, self, config);
  attention_tensors(cross.in_int8(int8), cross, config);
  if (config.added_kv_proj_dim) {
    cross.linear_by_outputs({"add_k_proj", "k_img"}, d, *config.added_kv_proj_dim, config.attention_head_dim);
    cross.linear_by_outputs({"add_v_proj", "v_img"}, d, *config.added_kv_proj_dim, config.attention_head_dim);
    norm_of_heads(cross, {"norm_added_k", "norm_k_img"}, config);
  }
  if (config.cross_attn_norm)
    block.in_float32().layer_norm({"norm2", "norm3"}, d);  // of three, the one with parameters
  const int64_t unit = hidden_unit(config.ffn_dim);
  block.in_int8(int8).linear_by_outputs({"ffn.net.0.proj", "ffn.0"}, config.ffn_dim, d, unit);
  block.in_int8(int8).linear_by_inputs({"ffn.net.2", "ffn.2"}, d, config.ffn_dim, unit);
}

void image_embedder_tensors(const TableScope& embedder, const TransformerConfig& config) {
  const int64_t d = config.inner_dim(), rows = *config.image_dim;
  if (const auto length = config.pos_embed_seq_len)
    embedder.tensor({"pos_embed", "emb_pos"}, {1, *length, rows}, TensorRole::kTable);
  embedder.in_float32().layer_norm({"norm1", "proj.0"}, rows);
  embedder.linear({"ff.net.0.proj", "proj.1"}, rows, rows);
  embedder.linear({"ff.net.2", "proj.3"}, d, rows);
  embedder.in_float32().layer_norm({"norm2", "proj.4"}, d);
}

// The weights of the motion encoder are multiplied by 1/√(inputs) when they are used: stored ones have variance 1.
void equalised(const TableScope& scope, const io::TensorName& name, const Shape& shape, TensorRole role) {
  scope.weight(name, shape, role).variance = 1;
}

// Its original biases are [1, c, 1, 1].
void motion_encoder_tensors(const TableScope& encoder, const FaceConfig& face) {
  const auto convolution = [&](const std::string& hub, const std::string& original, int step, const Shape& shape,
                               bool bias) {
    const std::string at = "enc.net_app.convs." + original;
    equalised(encoder, {hub, fmt::format("{}.{}", at, step)}, shape, TensorRole::kConvolution);
    if (bias) encoder.bias({hub + ".act_fn", fmt::format("{}.{}", at, step + 1)}, shape[0]);
  };
  const std::vector<int64_t>& channels = face.motion_channels;
  convolution("conv_in", "0", 0, {channels.front(), 3, 1, 1}, true);
  for (size_t i = 0; i + 1 < channels.size(); ++i) {
    const std::string hub = fmt::format("res_blocks.{}", i), original = fmt::format("{}", i + 1);
    const int64_t c = channels[i], next = channels[i + 1];
    convolution(hub + ".conv1", original + ".conv1", 0, {c, c, 3, 3}, true);
    convolution(hub + ".conv2", original + ".conv2", 1, {next, c, 3, 3}, true);
    equalised(encoder, {hub + ".conv_skip", fmt::format("enc.net_app.convs.{}.skip.1", original)}, {next, c, 1, 1},
              TensorRole::kConvolution);
  }
  equalised(encoder, {"conv_out", fmt::format("enc.net_app.convs.{}", channels.size())},
            {face.style_dim, channels.back(), 4, 4}, TensorRole::kConvolution);
  constexpr int kLayers = 5;
  for (int i = 0; i < kLayers; ++i) {
    const io::TensorName name(fmt::format("motion_network.{}", i), fmt::format("enc.fc.{}", i));
    const int64_t out = i + 1 < kLayers ? face.style_dim : face.motion_dim;
    equalised(encoder, name, {out, face.style_dim}, TensorRole::kMatrix);
    encoder.bias(name, out);
  }
  encoder.in_float32().tensor({"motion_synthesis_weight", "dec.direction.weight"}, {face.vector_dim, face.motion_dim},
                              TensorRole::kTable);
}

void face_encoder_tensors(const TableScope& encoder, const FaceConfig& face, int64_t d) {
  constexpr int64_t kFrames = 3;
  const int64_t g = face.hidden_dim;
  encoder.convolution({"conv1_local", "conv1_local.conv"}, {face.heads * g, face.vector_dim, kFrames});
  encoder.convolution({"conv2", "conv2.conv"}, {g, g, kFrames});
  encoder.convolution({"conv3", "conv3.conv"}, {g, g, kFrames});
  encoder.linear("out_proj", d, g);
  encoder.tensor("padding_tokens", {1, 1, 1, d}, TensorRole::kTable);
}

void face_adapter_tensors(const TableScope& adapter, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  adapter.linear({"to_q", "linear1_q"}, d, d);
  // The original has keys and values in one matrix.
  const auto add = [&](io::TensorSpec& spec, int part) {
    spec.alias(io::NamingScheme::kOriginal).part = part;
    spec.alias(io::NamingScheme::kOriginal).parts = 2;
  };
  add(adapter.matrix({"to_k", "linear1_kv"}, d, d), 0);
  add(adapter.bias({"to_k", "linear1_kv"}, d), 0);
  add(adapter.matrix({"to_v", "linear1_kv"}, d, d), 1);
  add(adapter.bias({"to_v", "linear1_kv"}, d), 1);
  adapter.linear({"to_out", "linear2"}, d, d);
  adapter.rms_norm({"norm_q", "q_norm"}, config.attention_head_dim);
  adapter.rms_norm({"norm_k", "k_norm"}, config.attention_head_dim);
}

// ---- VAE ----

void add(const TableScope& root, const ConvLayout& conv) { root.convolution(conv.name, conv.weight_shape()); }

void add(const TableScope& root, const NormLayout& norm) {
  root.tensor(norm.name + ".gamma", norm.gamma_shape(), TensorRole::kNorm);
}

void add(const TableScope& root, const ResidualLayout& block) {
  add(root, block.norm1);
  add(root, block.conv1);
  add(root, block.norm2);
  add(root, block.conv2);
  if (block.shortcut) add(root, *block.shortcut);
}

void add_stages(const TableScope& root, const CoderLayout& layout) {
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) add(root, block);
    if (!stage.resample) continue;
    add(root, stage.resample->spatial);
    if (stage.resample->time) add(root, *stage.resample->time);
  }
}

void add_middle(const TableScope& root, const CoderLayout& layout) {
  add(root, layout.middle_first);
  add(root, layout.middle_attention.norm);
  add(root, layout.middle_attention.to_qkv);
  add(root, layout.middle_attention.proj);
  add(root, layout.middle_last);
}

void add_end(const TableScope& root, const CoderLayout& layout) {
  add(root, layout.norm_out);
  add(root, layout.out);
}

}  // namespace

TensorTable transformer_tensors(const TransformerConfig& config) {
  TensorTable table;
  const TableScope root(table);
  const int64_t d = config.inner_dim();
  const auto& patch = config.patch_size;
  const auto patches = [&](int64_t channels) { return Shape{d, channels, patch[0], patch[1], patch[2]}; };
  root.convolution("patch_embedding", patches(config.in_channels));
  if (config.vace()) root.convolution("vace_patch_embedding", patches(config.vace_in_channels));
  if (config.animate()) root.convolution("pose_patch_embedding", patches(config.out_channels));
  const TableScope embedder = root.in({"condition_embedder", ""});
  embedder.in_float32().linear({"time_embedder.linear_1", "time_embedding.0"}, d, config.freq_dim);
  embedder.in_float32().linear({"time_embedder.linear_2", "time_embedding.2"}, d, d);
  embedder.linear({"time_proj", "time_projection.1"}, 6 * d, d);
  embedder.linear({"text_embedder.linear_1", "text_embedding.0"}, d, config.text_dim);
  embedder.linear({"text_embedder.linear_2", "text_embedding.2"}, d, d);
  if (config.image_dim) image_embedder_tensors(embedder.in({"image_embedder", "img_emb"}), config);
  for (int64_t i = 0; i < config.num_layers; ++i) block_tensors(root.in("blocks", static_cast<size_t>(i)), config, i);
  for (size_t j = 0; j < config.vace_layers.size(); ++j) {
    const TableScope block = root.in("vace_blocks", j);
    if (j == 0) block.linear({"proj_in", "before_proj"}, d, d);
    block_tensors(block, config, config.num_layers + static_cast<int64_t>(j));
    block.linear({"proj_out", "after_proj"}, d, d);
  }
  if (config.face) {
    motion_encoder_tensors(root.in("motion_encoder"), *config.face);
    face_encoder_tensors(root.in("face_encoder"), *config.face, d);
    for (int64_t j = 0; j < config.face_adapters(); ++j) {
      const std::string hub = fmt::format("face_adapter.{}", j);
      face_adapter_tensors(root.in({hub, fmt::format("face_adapter.fuser_blocks.{}", j)}), config);
    }
  }
  root.modulation({"scale_shift_table", "head.modulation"}, 2, d);
  root.linear({"proj_out", "head.head"}, config.patch_output_dim(), d);
  return table;
}

// Whole panels of packed weights, where that leaves enough units to divide.
int64_t hidden_unit(int64_t ffn_dim) {
  constexpr int64_t kPanel = 64, kFewest = 64;
  int64_t unit = std::gcd(ffn_dim, kPanel);
  while (unit > 1 && ffn_dim / unit < kFewest) unit /= 2;
  return unit;
}

TensorTable vae_encoder_tensors(const VaeConfig& config) {
  TensorTable table;
  const TableScope root(table);
  const CoderLayout layout = encoder_layout(config);
  add(root, layout.in);
  add_stages(root, layout);
  add_middle(root, layout);
  add_end(root, layout);
  add(root, layout.quant);
  return table;
}

TensorTable vae_decoder_tensors(const VaeConfig& config) {
  TensorTable table;
  const TableScope root(table);
  const CoderLayout layout = decoder_layout(config);
  add(root, layout.quant);
  add(root, layout.in);
  add_middle(root, layout);
  add_stages(root, layout);
  add_end(root, layout);
  return table;
}

TensorTable vae_tensors(const VaeConfig& config) {
  TensorTable table = vae_encoder_tensors(config);
  TensorTable decoder = vae_decoder_tensors(config);
  std::move(decoder.begin(), decoder.end(), std::back_inserter(table));
  for (io::TensorSpec& spec : table)
    spec.alias(io::NamingScheme::kOriginal).name = original_vae_name(config, spec.name);
  return table;
}

io::FileRules transformer_files() {
  return {{"model.diffusion_model.", "diffusion_model.", "model."},
          [](const std::string& name) { return ("." + name + ".").find(".norm_added_q.") != std::string::npos; }};
}

io::FileRules vae_files() { return {{"first_stage_model.", "vae.", "model."}, nullptr}; }

double share_of(const TransformerConfig& part, const TransformerConfig& whole) {
  const auto parameters = [](const TransformerConfig& config) {
    return static_cast<double>(io::totals(transformer_tensors(config)).parameters);
  };
  return parameters(part) / parameters(whole);
}

}  // namespace zoetrope::wan
