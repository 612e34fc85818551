#include "models/wan/transformer/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "base/error.h"
#include "device/thread_team.h"
#include "io/weights/part_source.h"
#include "io/weights/weight_loader.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/motion_basis.h"
#include "tensor/dispatch.h"
#include "tensor/half.h"

namespace zoetrope::wan {

namespace {

// How the values of a weight are used that are not used as they are stored.
struct WeightLayout {
  bool taps_outside = false;  // [out, in, taps…] as [out, taps·in]
  bool equalised = false;     // times 1/√(inputs)
  std::string suffix() const { return fmt::format("{}{}", taps_outside ? ".taps" : "", equalised ? ".equalised" : ""); }
  explicit operator bool() const { return taps_outside || equalised; }
};

float as_float(double value) { return static_cast<float>(value); }
template <typename Value>
float as_float(Value value) {
  return to_float(value);
}

// A stored weight [out, in, taps…] in its layout, [out, inputs] F32; in the model's dtype values are rounded before
// they are multiplied, as the reference has them.
Tensor in_layout(const TensorView& stored, const WeightLayout& layout, DType dtype) {
  const int64_t out = stored.extent(0), in = stored.extent(1), inputs = stored.size() / out, taps = inputs / in;
  Tensor made = Tensor::uninitialized(DType::kF32, {out, inputs});
  const float factor = layout.equalised ? static_cast<float>(1 / std::sqrt(static_cast<double>(inputs))) : 1.0f;
  with_stored_type(stored.dtype(), "a weight", [&](auto tag) {
    using Value = typename decltype(tag)::type;
    const auto* from = static_cast<const std::byte*>(stored.raw());  // at any alignment
    for (int64_t n = 0; n < out; ++n) {
      float* row = made.data<float>() + n * inputs;
      for (int64_t i = 0; i < inputs; ++i, from += sizeof(Value)) {
        Value one;
        std::memcpy(&one, from, sizeof one);
        float x = as_float(one);
        if (dtype == DType::kBF16) x = to_float(to_bfloat16(x));
        row[layout.taps_outside ? i % taps * in + i / taps : i] = x * factor;
      }
    }
  });
  return made;
}

// Gets the table's tensors below a prefix; matrices are only announced to the loader.
class Reader {
 public:
  Reader(const io::TensorIndex& table, const io::Weights& source, io::WeightLoader& loader, DType dtype,
         const std::function<void()>& tick, std::string prefix = {})
      : table_(table), source_(source), loader_(loader), dtype_(dtype), tick_(tick), prefix_(std::move(prefix)) {}

  Reader in(const std::string& name) const { return {table_, source_, loader_, dtype_, tick_, prefix_ + name + "."}; }

  TensorView tensor(const std::string& name) const { return joined_tensors({&table_[prefix_ + name]}); }
  // NAME.weight, which may be a convolution that is a linear layer of its patches, and NAME.bias. `to` must not move
  // until the loader has run.
  void linear(LinearWeights& to, const char* name) const { joined(to, {name}); }
  // NAME.weight in a layout; `bias` empty: none.
  void laid_out(LinearWeights& to, const std::string& name, const WeightLayout& layout, const std::string& bias) const {
    matrix(to, {&table_[prefix_ + name + ".weight"]}, layout);
    if (!bias.empty()) to.bias = tensor(bias);
  }
  // Layers with the same input, joined to one with adjacent outputs.
  void joined(LinearWeights& to, std::initializer_list<const char*> names) const {
    std::vector<const io::TensorSpec*> weights, biases;
    for (const char* name : names) {
      weights.push_back(&table_[prefix_ + name + ".weight"]);
      biases.push_back(&table_[prefix_ + name + ".bias"]);
    }
    matrix(to, weights);
    to.bias = joined_tensors(biases);
  }

 private:
  void matrix(LinearWeights& to, const std::vector<const io::TensorSpec*>& specs,
              const WeightLayout& layout = {}) const {
    const Shape& shape = specs[0]->shape;
    kernels::PackedMatrix packed;
    packed.dtype = specs[0]->packed_dtype(dtype_);
    packed.layout = kernels::packed_layout(packed.dtype);
    packed.n = shape[0] * static_cast<int64_t>(specs.size());
    packed.k = shape.size() / shape[0];
    const std::vector<float> scales = int8_scales(specs, packed);
    io::PackedWeight weight;
    for (const io::TensorSpec* spec : specs) {
      weight.names.push_back(spec->name);
      weight.shapes.push_back(spec->shape);
    }
    weight.layout = kernels::packed_layout_name(packed) + layout.suffix();
    weight.bytes = kernels::packed_bytes(packed);
    weight.row_step = kernels::packed_row_step(packed);
    weight.part_rows = kernels::packed_part_rows(packed);
    weight.begin = [packed](int64_t row) { return kernels::packed_begin(packed, row); };
    weight.pack = [packed, layout, scales](std::span<const TensorView> stored, int64_t first_row, std::byte* out) {
      std::vector<Tensor> made;
      std::vector<TensorView> matrices;
      for (const TensorView& one : stored) {
        if (layout) made.push_back(in_layout(one, layout, packed.dtype));
        matrices.push_back(layout ? made.back().view() : one.reshape({one.extent(0), packed.k}));
      }
      kernels::pack_rows(matrices, first_row, packed, out, scales);
    };
    loader_.add(std::move(weight), [&to, packed](const std::byte* at) {
      to.weight = packed;
      to.weight.data = at;
    });
  }
  // The scales of the rows of a matrix that its files have in int8 with ConvRot, and its rotation in `packed`; none
  // where it cannot be multiplied as it is there. Without a rotation activations would not be rotated either: with
  // outliers among their channels that costs more than rounding weights again does (docs/cpu.md).
  std::vector<float> int8_scales(const std::vector<const io::TensorSpec*>& specs, kernels::PackedMatrix& packed) const {
    std::vector<float> scales;
    std::optional<int64_t> rotation;
    if (packed.dtype != DType::kI8) return scales;
    for (const io::TensorSpec* spec : specs) {
      const std::optional<io::Int8Codes> codes = source_.int8_codes(spec->name);
      if (!codes || codes->rotation == 0 || rotation.value_or(codes->rotation) != codes->rotation) return {};
      rotation = codes->rotation;
      scales.insert(scales.end(), codes->scales.begin(), codes->scales.end());
    }
    if (!kernels::int8_rotation_possible(*rotation, packed.k)) return {};
    packed.rotation = static_cast<int>(*rotation);
    return scales;
  }
  TensorView joined_tensors(const std::vector<const io::TensorSpec*>& specs) const {
    std::vector<std::string> names;
    std::vector<Shape> shapes;
    for (const io::TensorSpec* spec : specs) {
      names.push_back(spec->name);
      shapes.push_back(spec->shape);
    }
    const DType dtype = specs[0]->dtype(dtype_);
    const TensorView view =
        specs.size() == 1 ? source_.get(names[0], shapes[0], dtype) : source_.get_fused(names, shapes, dtype);
    if (tick_) tick_();
    return view;
  }

  const io::TensorIndex& table_;
  const io::Weights& source_;
  io::WeightLoader& loader_;
  DType dtype_;
  const std::function<void()>& tick_;
  std::string prefix_;
};

void read_block(TransformerBlockWeights& weights, const Reader& block, const TransformerConfig& config) {
  const int64_t d = config.inner_dim();
  weights.modulation = block.tensor("scale_shift_table").reshape({6, d});
  const Reader self = block.in("attn1");
  self.joined(weights.self_qkv, {"to_q", "to_k", "to_v"});
  weights.self_norm_q = self.tensor("norm_q.weight");
  weights.self_norm_k = self.tensor("norm_k.weight");
  self.linear(weights.self_out, "to_out.0");
  if (config.cross_attn_norm) {
    weights.cross_norm_weight = block.tensor("norm2.weight");
    weights.cross_norm_bias = block.tensor("norm2.bias");
  }
  const Reader cross = block.in("attn2");
  cross.linear(weights.cross_q, "to_q");
  weights.cross_norm_q = cross.tensor("norm_q.weight");
  cross.linear(weights.cross_out, "to_out.0");
  struct Names {
    const char *k, *v, *norm;
  };
  constexpr Names kNames[] = {{"to_k", "to_v", "norm_k.weight"}, {"add_k_proj", "add_v_proj", "norm_added_k.weight"}};
  weights.keys.resize(config.added_kv_proj_dim ? 2 : 1);
  for (size_t source = 0; source < weights.keys.size(); ++source) {
    KeyWeights& keys = weights.keys[source];
    cross.linear(keys.k, kNames[source].k);
    cross.linear(keys.v, kNames[source].v);
    keys.norm = cross.tensor(kNames[source].norm);
  }
  block.linear(weights.ffn_in, "ffn.net.0.proj");
  block.linear(weights.ffn_out, "ffn.net.2");
}

// Partial results that are added up over the parts.
void leave_biases_to_first(std::vector<TransformerBlockWeights>& blocks) {
  for (TransformerBlockWeights& block : blocks) block.self_out.bias = block.cross_out.bias = block.ffn_out.bias = {};
}

void read_image_embedder(ImageEmbedderWeights& weights, const Reader& embedder, const TransformerConfig& config) {
  if (const auto length = config.pos_embed_seq_len)
    weights.positions = embedder.tensor("pos_embed").reshape({*length, *config.image_dim});
  weights.in_norm = embedder.tensor("norm1.weight");
  weights.in_norm_bias = embedder.tensor("norm1.bias");
  embedder.linear(weights.hidden, "ff.net.0.proj");
  embedder.linear(weights.out, "ff.net.2");
  weights.out_norm = embedder.tensor("norm2.weight");
  weights.out_norm_bias = embedder.tensor("norm2.bias");
}

void read_motion_encoder(FaceWeights& weights, const Reader& encoder, const FaceConfig& face) {
  constexpr WeightLayout kConvolution{.taps_outside = true, .equalised = true};
  const auto convolution = [&](LinearWeights& to, const std::string& name, bool activated) {
    encoder.laid_out(to, name, kConvolution, activated ? name + ".act_fn.bias" : "");
  };
  convolution(weights.motion_in, "conv_in", true);
  weights.motion_blocks.resize(face.motion_channels.size() - 1);
  for (size_t i = 0; i < weights.motion_blocks.size(); ++i) {
    MotionBlockWeights& block = weights.motion_blocks[i];
    const std::string name = fmt::format("res_blocks.{}.", i);
    convolution(block.conv1, name + "conv1", true);
    convolution(block.conv2, name + "conv2", true);
    convolution(block.skip, name + "conv_skip", false);
  }
  convolution(weights.motion_out, "conv_out", false);
  constexpr size_t kLayers = 5;
  weights.motion_network.resize(kLayers);
  for (size_t i = 0; i < kLayers; ++i) {
    const std::string name = fmt::format("motion_network.{}", i);
    encoder.laid_out(weights.motion_network[i], name, {.equalised = true}, name + ".bias");
  }
  weights.motion_basis = motion_basis(encoder.tensor("motion_synthesis_weight"));
}

void read_face(FaceWeights& weights, const Reader& root, const TransformerConfig& config) {
  root.linear(weights.pose_patch_embedding, "pose_patch_embedding");
  read_motion_encoder(weights, root.in("motion_encoder"), *config.face);
  const Reader encoder = root.in("face_encoder");
  constexpr WeightLayout kOverTime{.taps_outside = true};
  encoder.laid_out(weights.conv1_local, "conv1_local", kOverTime, "conv1_local.bias");
  encoder.laid_out(weights.conv2, "conv2", kOverTime, "conv2.bias");
  encoder.laid_out(weights.conv3, "conv3", kOverTime, "conv3.bias");
  encoder.linear(weights.out, "out_proj");
  weights.padding = encoder.tensor("padding_tokens").reshape({config.inner_dim()});
  weights.adapters.resize(static_cast<size_t>(config.face_adapters()));
  for (size_t j = 0; j < weights.adapters.size(); ++j) {
    FaceAdapterWeights& adapter = weights.adapters[j];
    const Reader from = root.in(fmt::format("face_adapter.{}", j));
    from.linear(adapter.q, "to_q");
    from.linear(adapter.k, "to_k");
    from.linear(adapter.v, "to_v");
    from.linear(adapter.out, "to_out");
    adapter.norm_q = from.tensor("norm_q.weight");
    adapter.norm_k = from.tensor("norm_k.weight");
  }
}

// Blocks, then their keys, then adapters. Keys are computed with once for a prompt.
std::vector<io::WeightStream::Part> stream_parts(const TransformerWeights& weights) {
  std::vector<io::WeightStream::Part> parts;
  const auto add = [&](std::initializer_list<const LinearWeights*> layers, bool may_stay) {
    io::WeightStream::Part part{{}, may_stay};
    for (const LinearWeights* layer : layers)
      part.ranges.push_back({static_cast<const std::byte*>(layer->weight.data), kernels::packed_bytes(layer->weight)});
    parts.push_back(std::move(part));
  };
  for (const TransformerBlockWeights& b : weights.blocks)
    add({&b.self_qkv, &b.self_out, &b.cross_q, &b.cross_out, &b.ffn_in, &b.ffn_out}, true);
  for (const TransformerBlockWeights& b : weights.blocks) {
    if (b.keys.size() == 1) add({&b.keys[0].k, &b.keys[0].v}, false);
    else add({&b.keys[0].k, &b.keys[0].v, &b.keys[1].k, &b.keys[1].v}, false);
  }
  for (const FaceAdapterWeights& a : weights.face.adapters) add({&a.q, &a.k, &a.v, &a.out}, true);
  return parts;
}

}  // namespace

std::shared_ptr<const TransformerWeights> TransformerWeights::load(const TransformerConfig& config,
                                                                   std::shared_ptr<const io::Weights> source,
                                                                   DType dtype, const std::function<void()>& tick,
                                                                   int threads, TensorPart share) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  require_supported(config, "transformer/config.json");
  const std::shared_ptr<TransformerWeights> weights(new TransformerWeights());
  weights->config = config;
  weights->dtype = dtype;
  weights->part = share;
  ZT_CHECK(config.num_attention_heads % share.parts == 0, "{} heads over {}", config.num_attention_heads, share.parts);
  io::WeightLoader loader(source);
  const io::TensorTable table = io::part_of(transformer_tensors(config), share.parts, share.part);
  const io::TensorIndex index(table);
  const Reader root(index, *source, loader, dtype, tick);
  root.linear(weights->patch_embedding, "patch_embedding");
  const Reader embedder = root.in("condition_embedder");
  embedder.linear(weights->time_in, "time_embedder.linear_1");
  embedder.linear(weights->time_out, "time_embedder.linear_2");
  embedder.linear(weights->time_proj, "time_proj");
  embedder.linear(weights->text_in, "text_embedder.linear_1");
  embedder.linear(weights->text_out, "text_embedder.linear_2");
  if (config.image_dim) read_image_embedder(weights->image, embedder.in("image_embedder"), config);
  weights->head_modulation = root.tensor("scale_shift_table").reshape({2, config.inner_dim()});
  root.linear(weights->proj_out, "proj_out");
  const auto layers = static_cast<size_t>(config.num_layers);
  weights->blocks.resize(static_cast<size_t>(config.block_count()));
  for (size_t i = 0; i < layers; ++i) read_block(weights->blocks[i], root.in(fmt::format("blocks.{}", i)), config);
  if (config.vace()) root.linear(weights->control.patch_embedding, "vace_patch_embedding");
  weights->control.hints.resize(weights->blocks.size() - layers);
  for (size_t j = 0; j < weights->control.hints.size(); ++j) {
    const Reader block = root.in(fmt::format("vace_blocks.{}", j));
    if (j == 0) block.linear(weights->control.in, "proj_in");
    read_block(weights->blocks[layers + j], block, config);
    block.linear(weights->control.hints[j], "proj_out");
  }
  if (config.animate()) read_face(weights->face, root, config);
  loader.run(threads > 0 ? threads : available_threads(), [&](int64_t, int64_t) {
    if (tick) tick();
  });
  if (share.part > 0) leave_biases_to_first(weights->blocks);
  weights->stream_ = source->stream(stream_parts(*weights));
  weights->source_ = std::move(source);
  return weights;
}

std::shared_ptr<const io::WeightSource> TransformerWeights::source_of(std::shared_ptr<const io::WeightSource> whole,
                                                                      const TransformerConfig& config,
                                                                      TensorPart share) {
  if (share.parts == 1) return whole;
  return io::part_source(std::move(whole), transformer_tensors(config), share.parts, share.part);
}

void TransformerWeights::settle() const {
  if (stream_ != nullptr) stream_->settle();
}

io::WeightStream::Use TransformerWeights::use(size_t streamed) const {
  return stream_ == nullptr ? io::WeightStream::Use() : stream_->use(streamed);
}
io::WeightStream::Use TransformerWeights::use_block(size_t block) const { return use(block); }
io::WeightStream::Use TransformerWeights::use_keys(size_t block) const { return use(blocks.size() + block); }
io::WeightStream::Use TransformerWeights::use_adapter(size_t index) const { return use(2 * blocks.size() + index); }

namespace {

bool is_packed(const io::TensorSpec& spec) {
  return spec.role == io::TensorRole::kMatrix || spec.role == io::TensorRole::kConvolution;
}

int64_t bytes_of(const io::TensorSpec& spec, DType dtype) {
  if (!is_packed(spec)) return spec.shape.size() * static_cast<int64_t>(dtype_size(spec.dtype(dtype)));
  const DType packed = spec.packed_dtype(dtype);
  return static_cast<int64_t>(kernels::packed_bytes(
      {nullptr, spec.shape[0], spec.shape.size() / spec.shape[0], packed, kernels::packed_layout(packed)}));
}

constexpr const char* kKeys = ".keys";

// The part that stream_parts() puts a matrix into, by name; empty: none.
std::string stream_part(const std::string& name) {
  const size_t number = name.find('.'), end = name.find('.', number + 1);
  if (end == std::string::npos) return {};
  const std::string module = name.substr(0, number), part = name.substr(0, end), rest = name.substr(end + 1);
  if (module == "face_adapter") return part;
  if (module != "blocks" && module != "vace_blocks") return {};
  for (const char* keys : {"attn2.to_k.", "attn2.to_v.", "attn2.add_k_proj.", "attn2.add_v_proj."})
    if (rest.starts_with(keys)) return part + kKeys;
  const bool in_block = rest.starts_with("attn1.") || rest.starts_with("attn2.") || rest.starts_with("ffn.");
  return in_block ? part : std::string();
}

}  // namespace

int64_t transformer_weight_bytes(const io::TensorTable& table, DType dtype) {
  int64_t bytes = 0;
  for (const io::TensorSpec& spec : table) bytes += bytes_of(spec, dtype);
  return bytes;
}

namespace {

// Bytes of packed matrices.
struct PackedParts {
  int64_t blocks = 0, largest = 0, others = 0;  // of all blocks, the largest of them, what is in none
  std::vector<size_t> may_stay;                 // parts that a forward uses, in order
  ForwardWeights forward;
};
PackedParts packed_parts(const TransformerConfig& config, DType dtype, int tensor) {
  std::map<std::string, size_t> places;  // of parts
  std::vector<std::pair<std::string, int64_t>> parts;
  PackedParts sums;
  for (const io::TensorSpec& spec : io::part_of(transformer_tensors(config), tensor, tensor - 1)) {
    if (!is_packed(spec)) continue;
    const std::string name = stream_part(spec.name);
    const int64_t bytes = bytes_of(spec, dtype);
    (name.empty() ? sums.others : sums.blocks) += bytes;
    if (name.empty()) continue;
    const auto [place, added] = places.try_emplace(name, parts.size());
    if (added) parts.emplace_back(name, 0);
    sums.largest = std::max(sums.largest, parts[place->second].second += bytes);
    if (name.ends_with(kKeys)) continue;
    sums.forward.bytes += bytes;
    sums.forward.elements += spec.shape.size();
  }
  for (const auto& [name, bytes] : parts)
    if (!name.ends_with(kKeys)) sums.may_stay.push_back(static_cast<size_t>(bytes));
  return sums;
}

// Of a stream, apart from its parts: what is in none, and two weights of a block, which threads pack at the same time.
int64_t bytes_in_no_part(const PackedParts& parts, const TransformerConfig& config, int64_t packed_from) {
  const int64_t d = config.inner_dim();
  return parts.others + 2 * std::max(3 * d * d, config.ffn_dim * d) * packed_from;
}

}  // namespace

StreamedBytes streamed_bytes(const TransformerConfig& config, DType dtype, int64_t packed_from, int tensor) {
  const PackedParts parts = packed_parts(config, dtype, tensor);
  const int64_t others = bytes_in_no_part(parts, config, packed_from);
  return {others + 2 * parts.largest, others + 3 * parts.largest};
}

// As io::WeightStream divides its memory.
ForwardWeights streamed_forward(const TransformerConfig& config, DType dtype, int64_t packed_from, int64_t memory,
                                int tensor) {
  const PackedParts parts = packed_parts(config, dtype, tensor);
  ForwardWeights forward = parts.forward;
  if (parts.largest == 0 || parts.may_stay.empty()) return forward;
  const int64_t room = memory > 0 ? memory - bytes_in_no_part(parts, config, packed_from) : 3 * parts.largest;
  const std::vector<bool> stays =
      io::WeightStream::staying(parts.may_stay, static_cast<size_t>(parts.blocks - forward.bytes),
                                static_cast<size_t>(parts.largest), static_cast<size_t>(std::max<int64_t>(0, room)));
  forward.fetched =
      static_cast<double>(std::count(stays.begin(), stays.end(), false)) / static_cast<double>(parts.may_stay.size());
  return forward;
}

int64_t sharded_weight_bytes(const TransformerConfig& config, DType dtype, int shards, int tensor) {
  const PackedParts parts = packed_parts(config, dtype, tensor);
  const int64_t all = transformer_weight_bytes(io::part_of(transformer_tensors(config), tensor, tensor - 1), dtype);
  return all - parts.blocks + (parts.blocks + parts.others) / shards + 2 * parts.largest;
}

}  // namespace zoetrope::wan
