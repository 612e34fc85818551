#include "models/wan/transformer/weights.h"

#include <string>

#include "base/error.h"
#include "device/thread_team.h"
#include "io/weight_loader.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::wan {

namespace {

// Fetches tensors below a prefix, each in the dtype its name calls for; matrices by the loader, when it runs.
class Reader {
 public:
  Reader(const io::Weights& source, io::WeightLoader& loader, DType dtype, const std::function<void()>& tick,
         std::string prefix = {})
      : source_(source), loader_(loader), dtype_(dtype), tick_(tick), prefix_(std::move(prefix)) {}

  Reader in(const std::string& name) const { return {source_, loader_, dtype_, tick_, prefix_ + name + "."}; }

  TensorView tensor(const std::string& name, const Shape& shape) const {
    const std::string full = prefix_ + name;
    return read([&] { return source_.get(full, shape, dtype_of(full)); });
  }
  // `to` must stay where it is until the loader has run.
  void linear(LinearWeights& to, const std::string& name, int64_t out, int64_t in_features) const {
    linear(to, name, Shape{out, in_features});
  }
  // A convolution that is a linear layer of its patches: [out, ...].
  void linear(LinearWeights& to, const std::string& name, const Shape& shape) const {
    matrix(to, {prefix_ + name + ".weight"}, shape);
    to.bias = tensor(name + ".bias", {shape[0]});
  }
  // Layers that read the same input, as one with the outputs side by side.
  void joined(LinearWeights& to, std::initializer_list<const char*> names, int64_t out, int64_t in_features) const {
    std::vector<std::string> weights, biases;
    for (const char* name : names) {
      weights.push_back(prefix_ + name + ".weight");
      biases.push_back(prefix_ + name + ".bias");
    }
    matrix(to, weights, {out, in_features});
    const std::vector<Shape> rows(names.size(), {out});
    to.bias = read([&] { return source_.get_fused(biases, rows, dtype_of(biases[0])); });
  }

 private:
  DType dtype_of(const std::string& full) const { return is_float32_island(full) ? DType::kF32 : dtype_; }

  void matrix(LinearWeights& to, const std::vector<std::string>& names, const Shape& shape) const {
    kernels::PackedMatrix packed;
    packed.dtype = dtype_of(names[0]);
    packed.layout = kernels::packed_layout(packed.dtype);
    packed.n = shape[0] * static_cast<int64_t>(names.size());
    packed.k = shape.size() / shape[0];
    io::DerivedForm form;
    form.names = names;
    form.shapes.assign(names.size(), shape);
    form.form = kernels::packed_form(packed);
    form.bytes = kernels::packed_bytes(packed);
    form.make = [packed](std::span<const TensorView> stored, std::byte* out) {
      std::vector<TensorView> matrices;
      for (const TensorView& one : stored) matrices.push_back(one.reshape({one.extent(0), packed.k}));
      kernels::pack(matrices, packed, out);
    };
    loader_.add(std::move(form), [&to, packed](const std::byte* at) {
      to.weight = packed;
      to.weight.data = at;
    });
  }
  template <typename Get>
  TensorView read(const Get& get) const {
    const TensorView tensor = get();
    if (tick_) tick_();
    return tensor;
  }

  const io::Weights& source_;
  io::WeightLoader& loader_;
  DType dtype_;
  const std::function<void()>& tick_;
  std::string prefix_;
};

void read_block(TransformerBlockWeights& weights, const Reader& block, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  weights.modulation = block.tensor("scale_shift_table", {1, 6, d}).reshape({6, d});
  const Reader self = block.in("attn1");
  self.joined(weights.self_qkv, {"to_q", "to_k", "to_v"}, d, d);
  weights.self_norm_q = self.tensor("norm_q.weight", {d});
  weights.self_norm_k = self.tensor("norm_k.weight", {d});
  self.linear(weights.self_out, "to_out.0", d, d);
  if (config.cross_attn_norm) {
    weights.cross_norm_weight = block.tensor("norm2.weight", {d});
    weights.cross_norm_bias = block.tensor("norm2.bias", {d});
  }
  const Reader cross = block.in("attn2");
  cross.linear(weights.cross_q, "to_q", d, d);
  weights.cross_norm_q = cross.tensor("norm_q.weight", {d});
  cross.linear(weights.cross_out, "to_out.0", d, d);
  struct Names {
    const char *k, *v, *norm;
  };
  constexpr Names kNames[] = {{"to_k", "to_v", "norm_k.weight"}, {"add_k_proj", "add_v_proj", "norm_added_k.weight"}};
  weights.keys.resize(config.added_kv_proj_dim ? 2 : 1);
  for (size_t source = 0; source < weights.keys.size(); ++source) {
    KeyWeights& keys = weights.keys[source];
    cross.linear(keys.k, kNames[source].k, d, d);
    cross.linear(keys.v, kNames[source].v, d, d);
    keys.norm = cross.tensor(kNames[source].norm, {d});
  }
  block.linear(weights.ffn_in, "ffn.net.0.proj", config.ffn_dim, d);
  block.linear(weights.ffn_out, "ffn.net.2", d, config.ffn_dim);
}

void read_image_embedder(ImageEmbedderWeights& weights, const Reader& embedder, const TransformerConfig& config) {
  const int64_t d = config.inner_dim(), rows = *config.image_dim;
  if (const auto length = config.pos_embed_seq_len)
    weights.positions = embedder.tensor("pos_embed", {1, *length, rows}).reshape({*length, rows});
  weights.in_norm = embedder.tensor("norm1.weight", {rows});
  weights.in_norm_bias = embedder.tensor("norm1.bias", {rows});
  embedder.linear(weights.hidden, "ff.net.0.proj", rows, rows);
  embedder.linear(weights.out, "ff.net.2", d, rows);
  weights.out_norm = embedder.tensor("norm2.weight", {d});
  weights.out_norm_bias = embedder.tensor("norm2.bias", {d});
}

}  // namespace

std::shared_ptr<const TransformerWeights> TransformerWeights::load(const TransformerConfig& config,
                                                                   std::shared_ptr<const io::Weights> source,
                                                                   DType dtype, const std::function<void()>& tick,
                                                                   int threads) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  require_supported(config, "transformer/config.json");
  const std::shared_ptr<TransformerWeights> weights(new TransformerWeights());
  weights->config = config;
  weights->dtype = dtype;
  io::WeightLoader loader(source);
  const Reader root(*source, loader, dtype, tick);
  const int64_t d = config.inner_dim();
  const auto& patch = config.patch_size;
  const auto patches = [&](int64_t channels) { return Shape{d, channels, patch[0], patch[1], patch[2]}; };
  root.linear(weights->patch_embedding, "patch_embedding", patches(config.in_channels));
  const Reader embedder = root.in("condition_embedder");
  embedder.linear(weights->time_in, "time_embedder.linear_1", d, config.freq_dim);
  embedder.linear(weights->time_out, "time_embedder.linear_2", d, d);
  embedder.linear(weights->time_proj, "time_proj", 6 * d, d);
  embedder.linear(weights->text_in, "text_embedder.linear_1", d, config.text_dim);
  embedder.linear(weights->text_out, "text_embedder.linear_2", d, d);
  if (config.image_dim) read_image_embedder(weights->image, embedder.in("image_embedder"), config);
  weights->head_modulation = root.tensor("scale_shift_table", {1, 2, d}).reshape({2, d});
  root.linear(weights->proj_out, "proj_out", config.patch_output_dim(), d);
  const auto layers = static_cast<size_t>(config.num_layers);
  weights->blocks.resize(static_cast<size_t>(config.block_count()));
  for (size_t i = 0; i < layers; ++i) read_block(weights->blocks[i], root.in(fmt::format("blocks.{}", i)), config);
  if (config.vace())
    root.linear(weights->control.patch_embedding, "vace_patch_embedding", patches(config.vace_in_channels));
  weights->control.hints.resize(weights->blocks.size() - layers);
  for (size_t j = 0; j < weights->control.hints.size(); ++j) {
    const Reader block = root.in(fmt::format("vace_blocks.{}", j));
    if (j == 0) block.linear(weights->control.in, "proj_in", d, d);
    read_block(weights->blocks[layers + j], block, config);
    block.linear(weights->control.hints[j], "proj_out", d, d);
  }
  loader.run(threads > 0 ? threads : available_threads(), [&](int64_t, int64_t) {
    if (tick) tick();
  });
  weights->source_ = std::move(source);
  return weights;
}

int64_t transformer_weight_bytes(const TransformerConfig& config, DType dtype) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : transformer_tensors(config)) {
    const DType held = is_float32_island(spec.name) ? DType::kF32 : dtype;
    const bool matrix = spec.name.ends_with(".weight") && spec.shape.rank() > 1;
    if (!matrix) {
      bytes += spec.shape.size() * static_cast<int64_t>(dtype_size(held));
      continue;
    }
    const kernels::PackedMatrix packed{nullptr, spec.shape[0], spec.shape.size() / spec.shape[0], held,
                                       kernels::packed_layout(held)};
    bytes += static_cast<int64_t>(kernels::packed_bytes(packed));
  }
  return bytes;
}

}  // namespace zoetrope::wan
