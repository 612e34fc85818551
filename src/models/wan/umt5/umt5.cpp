#include "models/wan/umt5/umt5.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/tensor_list.h"
#include "models/wan/umt5/relative_bias.h"
#include "tensor/dispatch.h"
#include "trace/trace.h"

namespace zoetrope::wan {

namespace {

template <typename From, typename To>
void convert_row(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
}

// out[i] = table[ids[i]] in out's dtype.
template <typename To>
void gather_rows(const TensorView& table, std::span<const int32_t> ids, const TensorView& out) {
  const int64_t d = table.extent(1);
  const auto gather = [&](auto tag) {
    using From = typename decltype(tag)::type;
    for (size_t i = 0; i < ids.size(); ++i) {
      convert_row(table.data<From>() + ids[i] * d, out.data<To>() + static_cast<int64_t>(i) * d, d);
    }
  };
  if (table.dtype() == DType::kF16) return gather(TypeTag<Float16>{});
  with_compute_type(table.dtype(), kEmbedding, gather);
}

}  // namespace

// Rows are the real ones of all prompts, one prompt after the other, M together: padding is never computed. W stands
// for the compute dtype.
struct TextEncoder::State {
  // A prompt's part of the rows, and its attention, which sees nothing of the others.
  struct Prompt {
    int64_t first, length;
    kernels::FlashAttention attention;
  };

  // What one encode_batch() works in.
  struct Buffers {
    TensorView x;           // [M, d] W: the residual stream
    TensorView n;           // [M, d] W
    TensorView q, k, v, o;  // [M, H·d_kv] W
    TensorView gate, up;    // [M, d_ff] W
    TensorView bias;        // [H, L, L] F32, of the longest prompt: it knows distances only, so others take a corner
  };

  void check_tensors() const;
  void ask_ahead(int64_t layer) const;
  TensorView weight(const std::string& name, const Shape& shape);
  void embed(std::span<const int32_t> ids, const TensorView& out);
  void norm(const std::string& name, const TensorView& x, const TensorView& out);
  void project(const std::string& name, const TensorView& x, const TensorView& out);
  std::vector<Prompt> plan(std::span<const int64_t> lengths) const;
  Buffers allocate(int64_t rows, int64_t longest);
  void attend(const Buffers& b, std::span<const Prompt> prompts);
  void layer(int64_t index, const Buffers& b, std::span<const Prompt> prompts);

  std::shared_ptr<const io::WeightSource> source;
  TextEncoderConfig config;
  TensorList list;  // of the config
  DType dtype;
  Stream& stream;
  std::string embedding;  // the name this file has it under
  Tensor converted;       // the one weight in use that the file holds in another dtype
};

void TextEncoder::State::check_tensors() const {
  for (const TensorSpec& spec : list) {
    const std::string name = stored_name(*source, spec.name);
    const io::TensorInfo info = source->info(name);
    if (info.shape != spec.shape) {
      fail("{}: tensor '{}' has shape {}, but the config needs {}", source->where(name), name, info.shape.to_string(),
           spec.shape.to_string());
    }
  }
}

// The layer's part of the file is read while the one before computes.
void TextEncoder::State::ask_ahead(int64_t layer) const {
  const std::string prefix = fmt::format("encoder.block.{}.", layer);
  for (const TensorSpec& spec : list) {
    if (spec.name.starts_with(prefix)) source->will_need(spec.name);
  }
}

// Valid until the next call.
TensorView TextEncoder::State::weight(const std::string& name, const Shape& shape) {
  const TensorView mapped = source->mapped(name);
  if (mapped && mapped.dtype() == dtype) return mapped;
  if (converted.size() < shape.size()) {
    // Once, for the largest matrix: growing step by step would leave holes.
    const int64_t widest = std::max(config.d_ff, config.attention_dim());
    const int64_t needed = std::max(shape.size(), config.d_model * widest);
    converted = Tensor();
    converted = Tensor::uninitialized(dtype, {needed});
  }
  const TensorView out(converted.view().raw(), dtype, shape);
  if (mapped && (mapped.dtype() == DType::kF32 || mapped.dtype() == DType::kBF16)) {
    kernels::convert(stream, mapped, out);  // threaded; read() is not
  } else {
    source->read(name, out);
  }
  return out;
}

void TextEncoder::State::embed(std::span<const int32_t> ids, const TensorView& out) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      fail("token id {} is outside the text encoder's vocabulary of {}", id, config.vocab_size);
    }
  }
  Tensor whole;  // where the source cannot show the table in place; only the rows asked for are read otherwise
  TensorView table = source->mapped(embedding);
  if (!table || table.dtype() == DType::kF64) {
    whole = Tensor::uninitialized(dtype, {config.vocab_size, config.d_model});
    source->read(embedding, whole);
    table = whole;
  }
  with_compute_type(out.dtype(), "embedding",
                    [&](auto tag) { gather_rows<typename decltype(tag)::type>(table, ids, out); });
}

void TextEncoder::State::norm(const std::string& name, const TensorView& x, const TensorView& out) {
  kernels::rms_norm(stream, {.x = x,
                             .weight = weight(name, {config.d_model}),
                             .eps = static_cast<float>(config.layer_norm_epsilon),
                             .out = out,
                             .implementation = {}});
}

void TextEncoder::State::project(const std::string& name, const TensorView& x, const TensorView& out) {
  kernels::gemm(stream, {.x = x,
                         .w = weight(name, {out.extent(1), x.extent(1)}),
                         .bias = {},
                         .activation = kernels::Activation::kNone,
                         .out = out,
                         .implementation = {}});
}

std::vector<TextEncoder::State::Prompt> TextEncoder::State::plan(std::span<const int64_t> lengths) const {
  std::vector<Prompt> prompts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    kernels::FlashProblem problem;
    problem.batch = 1;
    problem.query_tokens = problem.key_tokens = length;
    problem.heads = config.num_heads;
    problem.head_dim = config.d_kv;
    problem.dtype = dtype;
    problem.scale = 1.0f;
    problem.bias = true;
    prompts.push_back({first, length, kernels::FlashAttention(problem)});
    first += length;
  }
  return prompts;
}

TextEncoder::State::Buffers TextEncoder::State::allocate(int64_t rows, int64_t longest) {
  const auto matrix = [&](int64_t columns) { return stream.scratch().tensor(dtype, {rows, columns}); };
  Buffers b{};
  b.x = matrix(config.d_model);
  b.n = matrix(config.d_model);
  for (TensorView* view : {&b.q, &b.k, &b.v, &b.o}) *view = matrix(config.attention_dim());
  for (TensorView* view : {&b.gate, &b.up}) *view = matrix(config.d_ff);
  b.bias = stream.scratch().tensor(DType::kF32, {config.num_heads, longest, longest});
  return b;
}

void TextEncoder::State::attend(const Buffers& b, std::span<const Prompt> prompts) {
  for (const Prompt& prompt : prompts) {
    const int64_t length = prompt.length;
    const auto heads = [&](const TensorView& rows) {
      return rows.slice(0, prompt.first, prompt.first + length).reshape({1, length, config.num_heads, config.d_kv});
    };
    kernels::KeyBlock block;
    block.k = heads(b.k);
    block.v = heads(b.v);
    block.bias = b.bias.slice(1, 0, length).slice(2, 0, length);
    prompt.attention.attend(stream, heads(b.q), block, heads(b.o));
  }
}

void TextEncoder::State::layer(int64_t index, const Buffers& b, std::span<const Prompt> prompts) {
  const auto add_to_x = [&](const TensorView& branch) {
    const Shape shape{1, b.x.extent(0), b.x.extent(1)};
    kernels::gated_add(stream, b.x.reshape(shape), branch.reshape(shape), {}, b.x.reshape(shape));
  };
  const std::string self = fmt::format("encoder.block.{}.layer.0.", index);
  norm(self + "layer_norm.weight", b.x, b.n);
  for (const auto& [name, out] : {std::pair("q", b.q), std::pair("k", b.k), std::pair("v", b.v)}) {
    project(fmt::format("{}SelfAttention.{}.weight", self, name), b.n, out);
  }
  fill_relative_bias(stream,
                     weight(self + "SelfAttention.relative_attention_bias.weight",
                            {config.relative_attention_num_buckets, config.num_heads}),
                     config.relative_attention_max_distance, b.bias);
  attend(b, prompts);
  project(self + "SelfAttention.o.weight", b.o, b.n);
  add_to_x(b.n);

  const std::string feed_forward = fmt::format("encoder.block.{}.layer.1.", index);
  norm(feed_forward + "layer_norm.weight", b.x, b.n);
  project(feed_forward + "DenseReluDense.wi_0.weight", b.n, b.gate);
  project(feed_forward + "DenseReluDense.wi_1.weight", b.n, b.up);
  kernels::gelu_tanh_mul(stream, b.gate, b.up, b.up);
  project(feed_forward + "DenseReluDense.wo.weight", b.up, b.n);
  add_to_x(b.n);
}

TextEncoder::TextEncoder(std::shared_ptr<const io::WeightSource> source, const TextEncoderConfig& config, DType dtype,
                         Stream& stream)
    : state_(new State{std::move(source), config, text_encoder_tensors(config), dtype, stream, {}, {}}) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  state_->embedding = stored_name(*state_->source, kEmbedding);
  state_->check_tensors();
}
TextEncoder::~TextEncoder() = default;
TextEncoder::TextEncoder(TextEncoder&&) noexcept = default;

const TextEncoderConfig& TextEncoder::config() const { return state_->config; }

void TextEncoder::encode(std::span<const int32_t> ids, const TensorView& out, const Probe& probe) {
  const auto length = static_cast<int64_t>(ids.size());
  ZT_CHECK(out.rank() == 2);
  // A view of ids for reading only.
  const TensorView row(const_cast<int32_t*>(ids.data()), DType::kI32, {1, length});
  encode_batch(row, {&length, 1}, out.reshape({1, out.extent(0), out.extent(1)}), probe);
}

void TextEncoder::encode_batch(const TensorView& ids, std::span<const int64_t> lengths, const TensorView& out,
                               const Probe& probe) {
  State& s = *state_;
  const trace::Span span(s.stream.lane(), "text encoder");
  const int64_t batch = ids.extent(0), padded = ids.extent(1), d = s.config.d_model;
  ZT_CHECK(ids.dtype() == DType::kI32 && ids.contiguous());
  ZT_CHECK(batch > 0 && static_cast<int64_t>(lengths.size()) == batch);
  ZT_CHECK(out.shape() == Shape({batch, padded, d}) && out.contiguous());
  std::vector<int32_t> real;  // ids of all prompts
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    ZT_CHECK(length > 0 && length <= padded, "{} of {}", length, padded);
    const int32_t* row = ids.data<int32_t>() + i * padded;
    real.insert(real.end(), row, row + length);
  }
  const auto rows = static_cast<int64_t>(real.size());
  const std::vector<State::Prompt> prompts = s.plan(lengths);
  // [M, d] to [B, L, d], zeros where nothing real belongs.
  const auto scatter = [&](const TensorView& packed, const TensorView& to) {
    std::memset(to.raw(), 0, to.bytes());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const TensorView from = packed.slice(0, prompts[i].first, prompts[i].first + prompts[i].length);
      std::memcpy(to.select(0, static_cast<int64_t>(i)).raw(), from.raw(), from.bytes());
    }
  };

  const Arena::Scope scope(s.stream.scratch());
  const State::Buffers b = s.allocate(rows, *std::max_element(lengths.begin(), lengths.end()));
  const TensorView seen = probe ? s.stream.scratch().tensor(s.dtype, out.shape()) : TensorView();
  s.ask_ahead(0);
  s.embed(real, b.x);
  for (int64_t i = 0; i < s.config.num_layers; ++i) {
    s.ask_ahead(i + 1);
    s.layer(i, b, prompts);
    if (!probe) continue;
    scatter(b.x, seen);
    probe(fmt::format("block.{}", i), seen);
  }
  s.norm("encoder.final_layer_norm.weight", b.x, b.n);
  TensorView last = b.n;
  if (out.dtype() != s.dtype) {
    last = s.stream.scratch().tensor(out.dtype(), b.n.shape());
    kernels::convert(s.stream, b.n, last);
  }
  scatter(last, out);
  observe(probe, "last_hidden_state", out);
}

}  // namespace zoetrope::wan
