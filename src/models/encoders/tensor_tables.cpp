#include "models/encoders/tensor_tables.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "io/weights/table_scope.h"

namespace zoetrope::encoders {

using io::TableScope;
using io::TensorName;
using io::TensorRole;
using io::TensorTable;

namespace {

constexpr io::NamingScheme kElsewhere[] = {io::NamingScheme::kOriginal, io::NamingScheme::kOther};

bool starts_with_any(const std::string& name, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view it) { return name.starts_with(it); });
}

// Elsewhere one matrix and one bias.
void add_qkv(const TableScope& layer, int64_t d) {
  const char* names[] = {"q_proj", "k_proj", "v_proj"};
  for (int i = 0; i < 3; ++i) {
    const auto add = [&](const char* ending, const Shape& shape, TensorRole role) {
      io::TensorSpec& spec =
          layer.tensor({fmt::format("self_attn.{}.{}", names[i], ending), fmt::format("attn.to_qkv.{}", ending),
                        fmt::format("attn.in_proj_{}", ending)},
                       shape, role);
      for (const auto scheme : kElsewhere) {
        spec.alias(scheme).part = i;
        spec.alias(scheme).parts = 3;
      }
    };
    add("weight", {d, d}, TensorRole::kMatrix);
    add("bias", {d}, TensorRole::kBias);
  }
}

}  // namespace

TensorTable text_encoder_tensors(const TextEncoderConfig& config) {
  TensorTable table;
  const TableScope root(table);
  const int64_t d = config.d_model, width = config.attention_dim();
  // The names in the hub's folders, in the original code, and in files of llama.cpp.
  io::TensorSpec& embedding =
      root.weight({"shared", "token_embedding", "token_embd"}, {config.vocab_size, d}, TensorRole::kTable);
  embedding.alias(io::NamingScheme::kTied).name = "encoder.embed_tokens.weight";
  embedding.variance = 1;
  // Ranks divide a layer by heads and by columns of the feed-forward.
  const io::ShardAxis heads{0, config.d_kv}, heads_in{1, config.d_kv}, columns{0, 1}, columns_in{1, 1};
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    const TableScope block = root.in({"encoder.block", "blocks", "enc.blk"}, i);
    const TableScope attention = block.in({"layer.0", "", ""}), self = attention.in({"SelfAttention", "attn", ""});
    attention.rms_norm({"layer_norm", "norm1", "attn_norm"}, d);
    io::TensorSpec& q = self.matrix({"q", "q", "attn_q"}, width, d);
    q.shard_axis = heads;
    // q·k is not divided by √d_kv; trained q weights are that much smaller (and begin so).
    q.variance = 1.0 / static_cast<double>(d) * (static_cast<double>(config.num_heads) / static_cast<double>(width));
    self.matrix({"k", "k", "attn_k"}, width, d).shard_axis = heads;
    self.matrix({"v", "v", "attn_v"}, width, d).shard_axis = heads;
    self.matrix({"o", "o", "attn_o"}, d, width).shard_axis = heads_in;
    const TensorName bias = {"SelfAttention.relative_attention_bias", "pos_embedding.embedding", "attn_rel_b"};
    attention.weight(bias, {config.relative_attention_num_buckets, config.num_heads}, TensorRole::kTable).variance = 1;
    const TableScope feed_forward = block.in({"layer.1", "", ""});
    feed_forward.rms_norm({"layer_norm", "norm2", "ffn_norm"}, d);
    const TableScope dense = feed_forward.in({"DenseReluDense", "ffn", ""});
    dense.matrix({"wi_0", "gate.0", "ffn_gate"}, config.d_ff, d).shard_axis = columns;
    dense.matrix({"wi_1", "fc1", "ffn_up"}, config.d_ff, d).shard_axis = columns;
    dense.matrix({"wo", "fc2", "ffn_down"}, d, config.d_ff).shard_axis = columns_in;
  }
  root.rms_norm({"encoder.final_layer_norm", "norm", "enc.output_norm"}, d);
  return table;
}

TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which) {
  TensorTable table;
  const TableScope root(table);
  const int64_t d = config.hidden_size;
  // The names in the hub's folders, in the original code, and in OpenCLIP.
  const TableScope vision = root.in({"vision_model", "visual", "visual"}),
                   embeddings = vision.in({"embeddings", "", ""});
  embeddings.tensor({"class_embedding", "cls_embedding", "class_embedding"}, {d}, TensorRole::kTable);
  embeddings.weight({"patch_embedding", "patch_embedding", "conv1"},
                    {d, config.num_channels, config.patch_size, config.patch_size}, TensorRole::kConvolution);
  embeddings
      .tensor({"position_embedding.weight", "pos_embedding", "positional_embedding"}, {config.tokens(), d},
              TensorRole::kTable)
      .variance = 1.0 / static_cast<double>(d);
  vision.layer_norm({"pre_layrnorm", "pre_norm", "ln_pre"}, d);  // as the files of the hub spell it
  const int64_t layers = which == ClipTensors::kUsed ? config.layers_used() : config.num_hidden_layers;
  for (size_t i = 0; i < static_cast<size_t>(layers); ++i) {
    const TableScope layer = vision.in({"encoder.layers", "transformer", "transformer.resblocks"}, i);
    layer.layer_norm({"layer_norm1", "norm1", "ln_1"}, d);
    add_qkv(layer, d);
    layer.linear({"self_attn.out_proj", "attn.proj", "attn.out_proj"}, d, d);
    layer.layer_norm({"layer_norm2", "norm2", "ln_2"}, d);
    layer.linear({"mlp.fc1", "mlp.0", "mlp.c_fc"}, config.intermediate_size, d);
    layer.linear({"mlp.fc2", "mlp.2", "mlp.c_proj"}, d, config.intermediate_size);
  }
  if (which != ClipTensors::kUsed) vision.layer_norm({"post_layernorm", "post_norm", "ln_post"}, d);
  // A CLIPVisionModel saved by transformers 5 has its names without the prefix.
  constexpr std::string_view kPrefix = "vision_model.";
  for (io::TensorSpec& spec : table) spec.alias(io::NamingScheme::kTied).name = spec.name.substr(kPrefix.size());
  if (which == ClipTensors::kAll) {
    io::TensorSpec& projection = root.tensor({"visual_projection.weight", "visual.head", "visual.proj"},
                                             {config.projection_dim, d}, TensorRole::kMatrix);
    for (const auto scheme : kElsewhere) projection.alias(scheme).transposed = true;
  }
  return table;
}

io::FileRules text_encoder_files() {
  return {{"text_encoders.umt5xxl.transformer.", "text_encoders.t5xxl.transformer."}, [](const std::string& name) {
            return name == kTokenizerTensor || starts_with_any(name, {"decoder.", "dec.", "lm_head."});
          }};
}

io::FileRules clip_vision_files() {
  return {{"clip_vision."}, [](const std::string& name) {
            return name == "vision_model.embeddings.position_ids" || name == "logit_scale" || name == "log_scale" ||
                   starts_with_any(name, {"text_model.", "text_projection.", "textual."});
          }};
}

}  // namespace zoetrope::encoders
