#include "models/wan/transformer/weights.h"

#include <string>

#include "base/error.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::wan {

namespace {

// Fetches tensors below a prefix, each in the dtype its name calls for.
class Reader {
 public:
  Reader(const io::Weights& source, DType dtype, const std::function<void()>& tick, std::string prefix = {})
      : source_(source), dtype_(dtype), tick_(tick), prefix_(std::move(prefix)) {}

  Reader in(const std::string& name) const { return {source_, dtype_, tick_, prefix_ + name + "."}; }

  TensorView tensor(const std::string& name, const Shape& shape) const {
    const std::string full = prefix_ + name;
    return read([&] { return source_.get(full, shape, is_float32_island(full) ? DType::kF32 : dtype_); });
  }
  LinearWeights linear(const std::string& name, int64_t out, int64_t in_features) const {
    return {tensor(name + ".weight", {out, in_features}), tensor(name + ".bias", {out})};
  }
  // Layers that read the same input, as one with the outputs side by side.
  LinearWeights joined(std::initializer_list<const char*> names, int64_t out, int64_t in_features) const {
    std::vector<std::string> weights, biases;
    for (const char* name : names) {
      weights.push_back(prefix_ + name + ".weight");
      biases.push_back(prefix_ + name + ".bias");
    }
    const std::vector<Shape> matrices(names.size(), {out, in_features}), rows(names.size(), {out});
    return {read([&] { return source_.get_fused(weights, matrices, dtype_); }),
            read([&] { return source_.get_fused(biases, rows, dtype_); })};
  }

 private:
  template <typename Get>
  TensorView read(const Get& get) const {
    const TensorView tensor = get();
    if (tick_) tick_();
    return tensor;
  }

  const io::Weights& source_;
  DType dtype_;
  const std::function<void()>& tick_;
  std::string prefix_;
};

TransformerBlockWeights read_block(const Reader& block, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  TransformerBlockWeights weights;
  weights.modulation = block.tensor("scale_shift_table", {1, 6, d}).reshape({6, d});
  const Reader self = block.in("attn1");
  weights.self_qkv = self.joined({"to_q", "to_k", "to_v"}, d, d);
  weights.self_norm_q = self.tensor("norm_q.weight", {d});
  weights.self_norm_k = self.tensor("norm_k.weight", {d});
  weights.self_out = self.linear("to_out.0", d, d);
  if (config.cross_attn_norm) {
    weights.cross_norm_weight = block.tensor("norm2.weight", {d});
    weights.cross_norm_bias = block.tensor("norm2.bias", {d});
  }
  const Reader cross = block.in("attn2");
  weights.cross_q = cross.linear("to_q", d, d);
  weights.cross_k = cross.linear("to_k", d, d);
  weights.cross_v = cross.linear("to_v", d, d);
  weights.cross_norm_q = cross.tensor("norm_q.weight", {d});
  weights.cross_norm_k = cross.tensor("norm_k.weight", {d});
  weights.cross_out = cross.linear("to_out.0", d, d);
  weights.ffn_in = block.linear("ffn.net.0.proj", config.ffn_dim, d);
  weights.ffn_out = block.linear("ffn.net.2", d, config.ffn_dim);
  return weights;
}

}  // namespace

std::shared_ptr<const TransformerWeights> TransformerWeights::load(const TransformerConfig& config,
                                                                   std::shared_ptr<const io::Weights> source,
                                                                   DType dtype, const std::function<void()>& tick) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  require_supported(config, "transformer/config.json");
  const std::shared_ptr<TransformerWeights> weights(new TransformerWeights());
  weights->config = config;
  weights->dtype = dtype;
  const Reader root(*source, dtype, tick);
  // A block's file is read while the one before is converted. What is used in place is left to its first use.
  const TensorList list = transformer_tensors(config);
  const auto ask_ahead = [&](int64_t block) {
    const std::string prefix = fmt::format("blocks.{}.", block);
    for (const TensorSpec& spec : list) {
      const bool wanted = spec.name.starts_with(prefix) && source->contains(spec.name);
      if (wanted && source->info(spec.name).dtype != dtype) source->will_need(spec.name);
    }
  };
  ask_ahead(0);
  const int64_t d = config.inner_dim();
  const auto& patch = config.patch_size;
  weights->patch_embedding = {
      root.tensor("patch_embedding.weight", {d, config.in_channels, patch[0], patch[1], patch[2]})
          .reshape({d, config.patch_input_dim()}),
      root.tensor("patch_embedding.bias", {d})};
  const Reader embedder = root.in("condition_embedder");
  weights->time_in = embedder.linear("time_embedder.linear_1", d, config.freq_dim);
  weights->time_out = embedder.linear("time_embedder.linear_2", d, d);
  weights->time_proj = embedder.linear("time_proj", 6 * d, d);
  weights->text_in = embedder.linear("text_embedder.linear_1", d, config.text_dim);
  weights->text_out = embedder.linear("text_embedder.linear_2", d, d);
  weights->head_modulation = root.tensor("scale_shift_table", {1, 2, d}).reshape({2, d});
  weights->proj_out = root.linear("proj_out", config.patch_output_dim(), d);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    ask_ahead(i + 1);
    weights->blocks.push_back(read_block(root.in(fmt::format("blocks.{}", i)), config));
  }
  weights->source_ = std::move(source);
  return weights;
}

}  // namespace zoetrope::wan
