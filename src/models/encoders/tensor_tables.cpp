#include "models/encoders/tensor_tables.h"

#include "io/table_scope.h"

namespace zoetrope::encoders {

using io::TableScope;
using io::TensorRole;
using io::TensorTable;

TensorTable text_encoder_tensors(const TextEncoderConfig& config) {
  TensorTable table;
  const TableScope root(table);
  const int64_t d = config.d_model, width = config.attention_dim();
  io::TensorSpec& embedding = root.weight("shared", {config.vocab_size, d}, TensorRole::kTable);
  embedding.aliases[static_cast<size_t>(io::NamingScheme::kTied)] = "encoder.embed_tokens.weight";
  embedding.variance = 1;
  // Ranks divide a layer by heads and by columns of the feed-forward.
  const io::ShardAxis heads{0, config.d_kv}, heads_in{1, config.d_kv}, columns{0, 1}, columns_in{1, 1};
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    const TableScope attention = root.in("encoder.block", i).in("layer.0"), self = attention.in("SelfAttention");
    attention.rms_norm("layer_norm", d);
    io::TensorSpec& q = self.matrix("q", width, d);
    q.shard_axis = heads;
    // q·k is not divided by √d_kv; trained q weights are that much smaller (and begin so).
    q.variance = 1.0 / static_cast<double>(d) * (static_cast<double>(config.num_heads) / static_cast<double>(width));
    self.matrix("k", width, d).shard_axis = heads;
    self.matrix("v", width, d).shard_axis = heads;
    self.matrix("o", d, width).shard_axis = heads_in;
    self.weight("relative_attention_bias", {config.relative_attention_num_buckets, config.num_heads},
                TensorRole::kTable)
        .variance = 1;
    const TableScope feed_forward = root.in("encoder.block", i).in("layer.1");
    feed_forward.rms_norm("layer_norm", d);
    const TableScope dense = feed_forward.in("DenseReluDense");
    dense.matrix("wi_0", config.d_ff, d).shard_axis = columns;
    dense.matrix("wi_1", config.d_ff, d).shard_axis = columns;
    dense.matrix("wo", d, config.d_ff).shard_axis = columns_in;
  }
  root.rms_norm("encoder.final_layer_norm", d);
  return table;
}

TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which) {
  TensorTable table;
  const TableScope root(table);
  const int64_t d = config.hidden_size;
  const TableScope vision = root.in("vision_model"), embeddings = vision.in("embeddings");
  embeddings.tensor("class_embedding", {d}, TensorRole::kTable);
  embeddings.weight("patch_embedding", {d, config.num_channels, config.patch_size, config.patch_size},
                    TensorRole::kConvolution);
  embeddings.weight("position_embedding", {config.tokens(), d}, TensorRole::kTable).variance =
      1.0 / static_cast<double>(d);
  vision.layer_norm("pre_layrnorm", d);  // as the files spell it
  const int64_t layers = which == ClipTensors::kUsed ? config.layers_used() : config.num_hidden_layers;
  for (size_t i = 0; i < static_cast<size_t>(layers); ++i) {
    const TableScope layer = vision.in("encoder.layers", i);
    layer.layer_norm("layer_norm1", d);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) layer.in("self_attn").linear(name, d, d);
    layer.layer_norm("layer_norm2", d);
    layer.linear("mlp.fc1", config.intermediate_size, d);
    layer.linear("mlp.fc2", d, config.intermediate_size);
  }
  if (which != ClipTensors::kUsed) vision.layer_norm("post_layernorm", d);
  // A CLIPVisionModel saved by transformers 5 has its names without the prefix.
  constexpr std::string_view kPrefix = "vision_model.";
  for (io::TensorSpec& spec : table)
    spec.aliases[static_cast<size_t>(io::NamingScheme::kTied)] = spec.name.substr(kPrefix.size());
  if (which == ClipTensors::kAll) root.matrix("visual_projection", config.projection_dim, d);
  return table;
}

bool is_ignored_tensor(const std::string& name) {
  return name == "vision_model.embeddings.position_ids" || name == "logit_scale" || name.starts_with("text_model.") ||
         name.starts_with("text_projection.");
}

}  // namespace zoetrope::encoders
