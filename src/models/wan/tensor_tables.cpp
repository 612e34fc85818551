#include "models/wan/tensor_tables.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {
namespace {

using io::NamingScheme;
using io::ShardAxis;
using io::TensorRole;
using io::TensorSpec;
using io::TensorTable;

// A component of a name, in the hub's folders and in the original code.
struct Name {
  Name(const char* both) : hub(both), original(both) {}
  Name(std::string both) : hub(both), original(std::move(both)) {}
  Name(std::string in_hub, std::string in_original) : hub(std::move(in_hub)), original(std::move(in_original)) {}
  std::string hub, original;
};

// Adds tensors below a prefix ("blocks.3.").
class Scope {
 public:
  explicit Scope(TensorTable& table) : table_(table), prefix_("") {}

  // A level that one of the two does not have is empty there.
  Scope in(const Name& name) const {
    Scope inner = *this;
    inner.prefix_.hub += name.hub + ".";
    if (!name.original.empty()) inner.prefix_.original += name.original + ".";
    return inner;
  }
  Scope in(const std::string& name, size_t index) const { return in(Name(fmt::format("{}.{}", name, index))); }
  Scope in_float32() const {
    Scope inner = *this;
    inner.keep_float32_ = true;
    return inner;
  }

  // For what the functions below do not say of it.
  TensorSpec& tensor(const Name& name, const Shape& shape, TensorRole role) const {
    TensorSpec spec{.name = prefix_.hub + name.hub, .shape = shape, .role = role, .keep_float32 = keep_float32_};
    std::string original = prefix_.original + name.original;
    if (original != spec.name) spec.aliases[static_cast<size_t>(NamingScheme::kOriginal)] = std::move(original);
    return table_.emplace_back(std::move(spec));
  }
  TensorSpec& weight(const Name& name, const Shape& shape, TensorRole role) const {
    return tensor({name.hub + ".weight", name.original + ".weight"}, shape, role);
  }
  TensorSpec& matrix(const Name& name, int64_t out, int64_t in_features) const {
    return weight(name, {out, in_features}, TensorRole::kMatrix);
  }
  void bias(const Name& name, int64_t size) const {
    tensor({name.hub + ".bias", name.original + ".bias"}, {size}, TensorRole::kBias);
  }
  void linear(const Name& name, int64_t out, int64_t in_features) const {
    matrix(name, out, in_features);
    bias(name, out);
  }
  void convolution(const Name& name, const Shape& shape) const {
    weight(name, shape, TensorRole::kConvolution);
    bias(name, shape[0]);
  }
  void rms_norm(const Name& name, int64_t size) const { weight(name, {size}, TensorRole::kNorm); }
  void layer_norm(const Name& name, int64_t size) const {
    rms_norm(name, size);
    bias(name, size);
  }
  // What is added to a timestep's modulation, of about its size.
  void modulation(const Name& name, int64_t vectors, int64_t size) const {
    in_float32().tensor(name, {1, vectors, size}, TensorRole::kModulation).variance = 1.0 / static_cast<double>(size);
  }

 private:
  TensorTable& table_;
  Name prefix_;
  bool keep_float32_ = false;
};

// ---- transformer ----

void attention_tensors(const Scope& attention, int64_t d) {
  attention.linear({"to_q", "q"}, d, d);
  attention.linear({"to_k", "k"}, d, d);
  attention.linear({"to_v", "v"}, d, d);
  attention.linear({"to_out.0", "o"}, d, d);
  attention.rms_norm("norm_q", d);
  attention.rms_norm("norm_k", d);
}

void block_tensors(const Scope& block, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  block.modulation({"scale_shift_table", "modulation"}, 6, d);
  attention_tensors(block.in({"attn1", "self_attn"}), d);
  const Scope cross = block.in({"attn2", "cross_attn"});
  attention_tensors(cross, d);
  if (config.added_kv_proj_dim) {
    cross.linear({"add_k_proj", "k_img"}, d, *config.added_kv_proj_dim);
    cross.linear({"add_v_proj", "v_img"}, d, *config.added_kv_proj_dim);
    cross.rms_norm({"norm_added_k", "norm_k_img"}, d);
  }
  if (config.cross_attn_norm)
    block.in_float32().layer_norm({"norm2", "norm3"}, d);  // of three, the one with parameters
  block.linear({"ffn.net.0.proj", "ffn.0"}, config.ffn_dim, d);
  block.linear({"ffn.net.2", "ffn.2"}, d, config.ffn_dim);
}

void image_embedder_tensors(const Scope& embedder, const TransformerConfig& config) {
  const int64_t d = config.inner_dim(), rows = *config.image_dim;
  if (const auto length = config.pos_embed_seq_len)
    embedder.tensor({"pos_embed", "emb_pos"}, {1, *length, rows}, TensorRole::kTable);
  embedder.in_float32().layer_norm({"norm1", "proj.0"}, rows);
  embedder.linear({"ff.net.0.proj", "proj.1"}, rows, rows);
  embedder.linear({"ff.net.2", "proj.3"}, d, rows);
  embedder.in_float32().layer_norm({"norm2", "proj.4"}, d);
}

// ---- VAE ----

void add(const Scope& root, const ConvLayout& conv) { root.convolution(conv.name, conv.weight_shape()); }

void add(const Scope& root, const NormLayout& norm) {
  root.tensor(norm.name + ".gamma", norm.gamma_shape(), TensorRole::kNorm);
}

void add(const Scope& root, const ResidualLayout& block) {
  add(root, block.norm1);
  add(root, block.conv1);
  add(root, block.norm2);
  add(root, block.conv2);
  if (block.shortcut) add(root, *block.shortcut);
}

void add_stages(const Scope& root, const CoderLayout& layout) {
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) add(root, block);
    if (!stage.resample) continue;
    add(root, stage.resample->spatial);
    if (stage.resample->time) add(root, *stage.resample->time);
  }
}

void add_middle(const Scope& root, const CoderLayout& layout) {
  add(root, layout.middle_first);
  add(root, layout.middle_attention.norm);
  add(root, layout.middle_attention.to_qkv);
  add(root, layout.middle_attention.proj);
  add(root, layout.middle_last);
}

void add_end(const Scope& root, const CoderLayout& layout) {
  add(root, layout.norm_out);
  add(root, layout.out);
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

TensorTable transformer_tensors(const TransformerConfig& config) {
  TensorTable table;
  const Scope root(table);
  const int64_t d = config.inner_dim();
  const auto& patch = config.patch_size;
  const auto patches = [&](int64_t channels) { return Shape{d, channels, patch[0], patch[1], patch[2]}; };
  root.convolution("patch_embedding", patches(config.in_channels));
  if (config.vace()) root.convolution("vace_patch_embedding", patches(config.vace_in_channels));
  const Scope embedder = root.in({"condition_embedder", ""});
  embedder.in_float32().linear({"time_embedder.linear_1", "time_embedding.0"}, d, config.freq_dim);
  embedder.in_float32().linear({"time_embedder.linear_2", "time_embedding.2"}, d, d);
  embedder.linear({"time_proj", "time_projection.1"}, 6 * d, d);
  embedder.linear({"text_embedder.linear_1", "text_embedding.0"}, d, config.text_dim);
  embedder.linear({"text_embedder.linear_2", "text_embedding.2"}, d, d);
  if (config.image_dim) image_embedder_tensors(embedder.in({"image_embedder", "img_emb"}), config);
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) block_tensors(root.in("blocks", i), config);
  for (size_t j = 0; j < config.vace_layers.size(); ++j) {
    const Scope block = root.in("vace_blocks", j);
    if (j == 0) block.linear({"proj_in", "before_proj"}, d, d);
    block_tensors(block, config);
    block.linear({"proj_out", "after_proj"}, d, d);
  }
  root.modulation({"scale_shift_table", "head.modulation"}, 2, d);
  root.linear({"proj_out", "head.head"}, config.patch_output_dim(), d);
  return table;
}

TensorTable text_encoder_tensors(const TextEncoderConfig& config) {
  TensorTable table;
  const Scope root(table);
  const int64_t d = config.d_model, width = config.attention_dim();
  TensorSpec& embedding = root.weight("shared", {config.vocab_size, d}, TensorRole::kTable);
  embedding.aliases[static_cast<size_t>(NamingScheme::kTied)] = "encoder.embed_tokens.weight";
  embedding.variance = 1;
  // Ranks divide a layer by heads and by columns of the feed-forward.
  const ShardAxis heads{0, config.d_kv}, heads_in{1, config.d_kv}, columns{0, 1}, columns_in{1, 1};
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    const Scope attention = root.in("encoder.block", i).in("layer.0"), self = attention.in("SelfAttention");
    attention.rms_norm("layer_norm", d);
    TensorSpec& q = self.matrix("q", width, d);
    q.shard_axis = heads;
    // q·k is not divided by √d_kv; trained q weights are that much smaller (and begin so).
    q.variance = 1.0 / static_cast<double>(d) * (static_cast<double>(config.num_heads) / static_cast<double>(width));
    self.matrix("k", width, d).shard_axis = heads;
    self.matrix("v", width, d).shard_axis = heads;
    self.matrix("o", d, width).shard_axis = heads_in;
    self.weight("relative_attention_bias", {config.relative_attention_num_buckets, config.num_heads},
                TensorRole::kTable)
        .variance = 1;
    const Scope feed_forward = root.in("encoder.block", i).in("layer.1");
    feed_forward.rms_norm("layer_norm", d);
    const Scope dense = feed_forward.in("DenseReluDense");
    dense.matrix("wi_0", config.d_ff, d).shard_axis = columns;
    dense.matrix("wi_1", config.d_ff, d).shard_axis = columns;
    dense.matrix("wo", d, config.d_ff).shard_axis = columns_in;
  }
  root.rms_norm("encoder.final_layer_norm", d);
  return table;
}

TensorTable vae_encoder_tensors(const VaeConfig& config) {
  TensorTable table;
  const Scope root(table);
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
  const Scope root(table);
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
  return table;
}

TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which) {
  TensorTable table;
  const Scope root(table);
  const int64_t d = config.hidden_size;
  const Scope vision = root.in("vision_model"), embeddings = vision.in("embeddings");
  embeddings.tensor("class_embedding", {d}, TensorRole::kTable);
  embeddings.weight("patch_embedding", {d, config.num_channels, config.patch_size, config.patch_size},
                    TensorRole::kConvolution);
  embeddings.weight("position_embedding", {config.tokens(), d}, TensorRole::kTable).variance =
      1.0 / static_cast<double>(d);
  vision.layer_norm("pre_layrnorm", d);  // as the files spell it
  const int64_t layers = which == ClipTensors::kUsed ? config.layers_used() : config.num_hidden_layers;
  for (size_t i = 0; i < static_cast<size_t>(layers); ++i) {
    const Scope layer = vision.in("encoder.layers", i);
    layer.layer_norm("layer_norm1", d);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) layer.in("self_attn").linear(name, d, d);
    layer.layer_norm("layer_norm2", d);
    layer.linear("mlp.fc1", config.intermediate_size, d);
    layer.linear("mlp.fc2", d, config.intermediate_size);
  }
  if (which != ClipTensors::kUsed) vision.layer_norm("post_layernorm", d);
  if (which == ClipTensors::kAll) root.matrix("visual_projection", config.projection_dim, d);
  return table;
}

bool is_ignored_tensor(const std::string& name) {
  const bool of_clip = name == "vision_model.embeddings.position_ids" || name == "logit_scale" ||
                       name.starts_with("text_model.") || name.starts_with("text_projection.");
  return has_component(name, "norm_added_q") || of_clip;
}

}  // namespace zoetrope::wan
