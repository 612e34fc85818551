#include "models/wan/tensor_list.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace zoetrope::wan {

namespace {

// Collects tensors below a prefix ("blocks.3.").
class Scope {
 public:
  Scope(TensorList& list, std::string prefix) : list_(list), prefix_(std::move(prefix)) {}

  Scope in(const std::string& name) const { return {list_, prefix_ + name + "."}; }
  Scope in(const std::string& name, size_t index) const { return in(fmt::format("{}.{}", name, index)); }

  void tensor(const std::string& name, const Shape& shape) const { list_.push_back({prefix_ + name, shape}); }
  void linear(const std::string& name, int64_t out, int64_t in_features) const {
    tensor(name + ".weight", {out, in_features});
    tensor(name + ".bias", {out});
  }
  void layer_norm(const std::string& name, int64_t size) const {
    tensor(name + ".weight", {size});
    tensor(name + ".bias", {size});
  }
  void conv2d(const std::string& name, int64_t out, int64_t in_channels, int64_t kernel) const {
    tensor(name + ".weight", {out, in_channels, kernel, kernel});
    tensor(name + ".bias", {out});
  }
  void conv3d(const std::string& name, int64_t out, int64_t in_channels, int64_t frames, int64_t height,
              int64_t width) const {
    tensor(name + ".weight", {out, in_channels, frames, height, width});
    tensor(name + ".bias", {out});
  }

 private:
  TensorList& list_;
  std::string prefix_;
};

// ---- transformer ----

void attention_tensors(const Scope& scope, int64_t d) {
  for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) scope.linear(name, d, d);
  scope.tensor("norm_q.weight", {d});
  scope.tensor("norm_k.weight", {d});
}

void block_tensors(const Scope& block, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  block.tensor("scale_shift_table", {1, 6, d});
  attention_tensors(block.in("attn1"), d);
  const Scope cross = block.in("attn2");
  attention_tensors(cross, d);
  if (config.added_kv_proj_dim) {
    cross.linear("add_k_proj", d, *config.added_kv_proj_dim);
    cross.linear("add_v_proj", d, *config.added_kv_proj_dim);
    cross.tensor("norm_added_k.weight", {d});
  }
  if (config.cross_attn_norm) block.layer_norm("norm2", d);
  block.linear("ffn.net.0.proj", config.ffn_dim, d);
  block.linear("ffn.net.2", d, config.ffn_dim);
}

void image_embedder_tensors(const Scope& embedder, const TransformerConfig& config) {
  const int64_t rows = *config.image_dim;
  if (config.pos_embed_seq_len) embedder.tensor("pos_embed", {1, *config.pos_embed_seq_len, rows});
  embedder.layer_norm("norm1", rows);
  embedder.linear("ff.net.0.proj", rows, rows);
  embedder.linear("ff.net.2", config.inner_dim(), rows);
  embedder.layer_norm("norm2", config.inner_dim());
}

// ---- VAE ----

void residual_tensors(const Scope& block, int64_t in, int64_t out) {
  block.tensor("norm1.gamma", {in, 1, 1, 1});
  block.conv3d("conv1", out, in, 3, 3, 3);
  block.tensor("norm2.gamma", {out, 1, 1, 1});
  block.conv3d("conv2", out, out, 3, 3, 3);
  if (in != out) block.conv3d("conv_shortcut", out, in, 1, 1, 1);
}

void mid_tensors(const Scope& mid, int64_t channels) {
  residual_tensors(mid.in("resnets.0"), channels, channels);
  const Scope attention = mid.in("attentions.0");
  attention.tensor("norm.gamma", {channels, 1, 1});
  attention.conv2d("to_qkv", 3 * channels, channels, 1);
  attention.conv2d("proj", channels, channels, 1);
  residual_tensors(mid.in("resnets.1"), channels, channels);
}

void encoder_tensors(const Scope& encoder, const VaeConfig& config) {
  const size_t stages = config.dim_mult.size();
  int64_t channels = config.base_dim;
  encoder.conv3d("conv_in", channels, config.in_channels, 3, 3, 3);
  size_t flat = 0;  // 2.1 numbers residual blocks and down-samplers in one list
  for (size_t stage = 0; stage < stages; ++stage) {
    const int64_t out = config.base_dim * config.dim_mult[stage];
    const bool down = stage + 1 < stages;
    const Scope grouped = encoder.in("down_blocks", stage);
    for (size_t i = 0; i < static_cast<size_t>(config.num_res_blocks); ++i, channels = out) {
      residual_tensors(config.is_residual ? grouped.in("resnets", i) : encoder.in("down_blocks", flat++), channels,
                       out);
    }
    if (!down) continue;
    const Scope sampler = config.is_residual ? grouped.in("downsampler") : encoder.in("down_blocks", flat++);
    sampler.conv2d("resample.1", out, out, 3);
    if (config.temporal_downsample[stage]) sampler.conv3d("time_conv", out, out, 3, 1, 1);
  }
  mid_tensors(encoder.in("mid_block"), channels);
  encoder.tensor("norm_out.gamma", {channels, 1, 1, 1});
  encoder.conv3d("conv_out", 2 * config.z_dim, channels, 3, 3, 3);
}

void decoder_tensors(const Scope& decoder, const VaeConfig& config) {
  const size_t stages = config.dim_mult.size();
  int64_t channels = config.decoder_base_dim * config.dim_mult.back();
  decoder.conv3d("conv_in", channels, config.z_dim, 3, 3, 3);
  mid_tensors(decoder.in("mid_block"), channels);
  for (size_t stage = 0; stage < stages; ++stage) {
    const int64_t out = config.decoder_base_dim * config.dim_mult[stages - 1 - stage];
    const Scope block = decoder.in("up_blocks", stage);
    for (size_t i = 0; i <= static_cast<size_t>(config.num_res_blocks); ++i, channels = out) {
      residual_tensors(block.in("resnets", i), channels, out);
    }
    if (stage + 1 == stages) break;
    const Scope sampler = block.in(config.is_residual ? "upsampler" : "upsamplers.0");
    const int64_t halved = config.is_residual ? out : out / 2;  // 2.1 halves the channels on the way up
    sampler.conv2d("resample.1", halved, out, 3);
    if (config.temporal_downsample[stages - 2 - stage]) sampler.conv3d("time_conv", 2 * out, out, 3, 1, 1);
    channels = halved;
  }
  decoder.tensor("norm_out.gamma", {channels, 1, 1, 1});
  decoder.conv3d("conv_out", config.out_channels, channels, 3, 3, 3);
}

bool has_component(std::string_view name, std::string_view component) {
  while (!name.empty()) {
    const size_t dot = name.find('.');
    if (name.substr(0, dot) == component) return true;
    name = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
  }
  return false;
}

}  // namespace

TensorList transformer_tensors(const TransformerConfig& config) {
  TensorList list;
  const Scope root(list, "");
  const int64_t d = config.inner_dim();
  const auto& patch = config.patch_size;
  root.conv3d("patch_embedding", d, config.in_channels, patch[0], patch[1], patch[2]);
  if (config.vace()) root.conv3d("vace_patch_embedding", d, config.vace_in_channels, patch[0], patch[1], patch[2]);
  const Scope embedder = root.in("condition_embedder");
  embedder.linear("time_embedder.linear_1", d, config.freq_dim);
  embedder.linear("time_embedder.linear_2", d, d);
  embedder.linear("time_proj", 6 * d, d);
  embedder.linear("text_embedder.linear_1", d, config.text_dim);
  embedder.linear("text_embedder.linear_2", d, d);
  if (config.image_dim) image_embedder_tensors(embedder.in("image_embedder"), config);
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) block_tensors(root.in("blocks", i), config);
  for (size_t j = 0; j < config.vace_layers.size(); ++j) {
    const Scope block = root.in("vace_blocks", j);
    if (j == 0) block.linear("proj_in", d, d);
    block_tensors(block, config);
    block.linear("proj_out", d, d);
  }
  root.tensor("scale_shift_table", {1, 2, d});
  root.linear("proj_out", config.patch_output_dim(), d);
  return list;
}

TensorList text_encoder_tensors(const TextEncoderConfig& config) {
  TensorList list;
  const Scope root(list, "");
  const int64_t d = config.d_model;
  root.tensor(kEmbedding, {config.vocab_size, d});
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    const Scope attention = root.in("encoder.block", i).in("layer.0");
    attention.tensor("layer_norm.weight", {d});
    for (const char* name : {"q", "k", "v"}) {
      attention.tensor(fmt::format("SelfAttention.{}.weight", name), {config.attention_dim(), d});
    }
    attention.tensor("SelfAttention.o.weight", {d, config.attention_dim()});
    attention.tensor("SelfAttention.relative_attention_bias.weight",
                     {config.relative_attention_num_buckets, config.num_heads});
    const Scope feed_forward = root.in("encoder.block", i).in("layer.1");
    feed_forward.tensor("layer_norm.weight", {d});
    feed_forward.tensor("DenseReluDense.wi_0.weight", {config.d_ff, d});
    feed_forward.tensor("DenseReluDense.wi_1.weight", {config.d_ff, d});
    feed_forward.tensor("DenseReluDense.wo.weight", {d, config.d_ff});
  }
  root.tensor("encoder.final_layer_norm.weight", {d});
  return list;
}

TensorList vae_tensors(const VaeConfig& config) {
  TensorList list;
  const Scope root(list, "");
  encoder_tensors(root.in("encoder"), config);
  root.conv3d("quant_conv", 2 * config.z_dim, 2 * config.z_dim, 1, 1, 1);
  root.conv3d("post_quant_conv", config.z_dim, config.z_dim, 1, 1, 1);
  decoder_tensors(root.in("decoder"), config);
  return list;
}

TensorList clip_vision_tensors(const ClipVisionConfig& config) {
  TensorList list;
  const Scope root(list, "");
  const int64_t d = config.hidden_size;
  const Scope vision = root.in("vision_model"), embeddings = vision.in("embeddings");
  embeddings.tensor("class_embedding", {d});
  embeddings.tensor("patch_embedding.weight", {d, config.num_channels, config.patch_size, config.patch_size});
  embeddings.tensor("position_embedding.weight", {config.tokens(), d});
  vision.layer_norm("pre_layrnorm", d);
  for (size_t i = 0; i < static_cast<size_t>(config.num_hidden_layers); ++i) {
    const Scope layer = vision.in("encoder.layers", i);
    layer.layer_norm("layer_norm1", d);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) layer.in("self_attn").linear(name, d, d);
    layer.layer_norm("layer_norm2", d);
    layer.linear("mlp.fc1", config.intermediate_size, d);
    layer.linear("mlp.fc2", d, config.intermediate_size);
  }
  vision.layer_norm("post_layernorm", d);
  root.tensor(kVisualProjection, {config.projection_dim, d});
  return list;
}

TensorList clip_vision_tensors_used(const ClipVisionConfig& config) {
  ClipVisionConfig used = config;
  used.num_hidden_layers = config.layers_used();
  TensorList list = clip_vision_tensors(used);
  std::erase_if(list, [](const TensorSpec& spec) {
    return spec.name.starts_with("vision_model.post_layernorm") || spec.name == kVisualProjection;
  });
  return list;
}

TensorTotals totals(const TensorList& list) {
  TensorTotals sum;
  for (const TensorSpec& spec : list) sum.parameters += spec.shape.size();
  sum.tensors = static_cast<int64_t>(list.size());
  return sum;
}

bool is_ignored_tensor(const std::string& name) {
  const bool of_clip = name == "vision_model.embeddings.position_ids" || name == "logit_scale" ||
                       name.starts_with("text_model.") || name.starts_with("text_projection.");
  return name == kTiedEmbedding || has_component(name, "norm_added_q") || of_clip;
}

bool is_float32_island(const std::string& name) {
  for (const char* component : {"time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"}) {
    if (has_component(name, component)) return true;
  }
  return false;
}

}  // namespace zoetrope::wan
