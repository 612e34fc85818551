#include "models/encoders/umt5.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/encoders/cost.h"
#include "models/encoders/encoder_block.h"
#include "models/encoders/part_weights.h"
#include "models/encoders/relative_bias.h"
#include "models/encoders/tensor_tables.h"
#include "trace/trace.h"

namespace zoetrope::encoders {
namespace {

constexpr const char* kEmbedding = "shared.weight";

std::string layer_prefix(int64_t layer) { return fmt::format("encoder.block.{}.", layer); }

}  // namespace

// Rows are the real tokens of all prompts, one prompt after the other, M together: padding is never computed. W: the
// compute dtype.
struct TextEncoder::State {
  // A prompt's rows, and its attention, which is limited to them.
  struct Prompt {
    int64_t first, length;
    std::optional<kernels::FlashAttention> attention;  // none where this rank has no heads
  };

  // The buffers of one encode_batch().
  struct Buffers : EncoderBlock {
    TensorView distances;  // [heads, 2L − 1] F32, L of the longest prompt: others take a window of it
  };

  void embed(std::span<const int32_t> ids, const TensorView& out);
  void norm(const std::string& name, const TensorView& x, const TensorView& out);
  std::vector<Prompt> plan(std::span<const int64_t> lengths) const;
  Buffers allocate(int64_t rows, int64_t longest);
  void attend(const Buffers& b, std::span<const Prompt> prompts);
  void attention(int64_t index, Buffers& b, std::span<const Prompt> prompts);
  void feed_forward(int64_t index, Buffers& b);
  void layer(int64_t index, Buffers& b, std::span<const Prompt> prompts);

  TextEncoderConfig config;
  DType dtype;
  Stream& stream;
  PartialSum* sum;
  PartWeights weights;
  IndexRange heads, columns;  // this rank's, of the attention and of the feed-forward
};

void TextEncoder::State::embed(std::span<const int32_t> ids, const TensorView& out) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      fail("token id {} is outside the text encoder's vocabulary of {}", id, config.vocab_size);
    }
  }
  weights.gather_rows(kEmbedding, ids, out);
}

void TextEncoder::State::norm(const std::string& name, const TensorView& x, const TensorView& out) {
  const Arena::Scope scope(stream.scratch());
  kernels::rms_norm(stream, {.x = x,
                             .weight = weights.small(name),
                             .eps = static_cast<float>(config.layer_norm_epsilon),
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
    problem.heads = heads.size();
    problem.head_dim = config.d_kv;
    problem.dtype = dtype;
    problem.scale = 1.0f;
    problem.bias = true;
    prompts.push_back({first, length, std::nullopt});
    if (!heads.empty()) prompts.back().attention.emplace(problem);
    first += length;
  }
  return prompts;
}

TextEncoder::State::Buffers TextEncoder::State::allocate(int64_t rows, int64_t longest) {
  const int parts = sum != nullptr ? sum->parts() : 1;
  const TextEncoderUse use{rows, longest, dtype, parts, stream.team().size()};
  const EncoderBlock::Sizes sizes{rows,
                                  config.d_model,
                                  heads.size() * config.d_kv,
                                  columns.size(),
                                  text_encoder_workspace_bytes(config, use),
                                  text_encoder_buffer_bytes(config, dtype, parts)};
  Buffers b{{weights, stream, sum, sizes}, {}};
  b.distances = stream.scratch().tensor(DType::kF32, {heads.size(), 2 * longest - 1});
  return b;
}

void TextEncoder::State::attend(const Buffers& b, std::span<const Prompt> prompts) {
  const trace::Span span(stream.lane(), "attention core");
  for (const Prompt& prompt : prompts) {
    const int64_t length = prompt.length;
    const auto rows_of = [&](const TensorView& rows) {
      return rows.slice(0, prompt.first, prompt.first + length).reshape({1, length, heads.size(), config.d_kv});
    };
    kernels::KeyBlock block;
    block.k = rows_of(b.k);
    block.v = rows_of(b.v);
    block.bias = as_relative_bias(b.distances, length);
    prompt.attention->attend(stream, rows_of(b.q), block, rows_of(b.o));
  }
}

void TextEncoder::State::attention(int64_t index, Buffers& b, std::span<const Prompt> prompts) {
  const trace::Span span(stream.lane(), "self-attention");
  const std::string prefix = layer_prefix(index) + "layer.0.", self = prefix + "SelfAttention.";
  norm(prefix + "layer_norm.weight", b.x, b.n);
  if (heads.empty()) {
    std::memset(b.sums.raw(), 0, b.sums.bytes());
  } else {
    {
      const trace::Span products(stream.lane(), "q, k, v");
      const kernels::ThinProduct qkv[] = {{weights.matrix(self + "q.weight"), {}, b.q},
                                          {weights.matrix(self + "k.weight"), {}, b.k},
                                          {weights.matrix(self + "v.weight"), {}, b.v}};
      b.multiply(b.n, qkv);
    }
    {
      const Arena::Scope scope(stream.scratch());
      fill_relative_values(weights.small(self + "relative_attention_bias.weight"), heads,
                           config.relative_attention_max_distance, b.distances);
    }
    attend(b, prompts);
    const trace::Span product(stream.lane(), "o");
    const kernels::ThinProduct o{weights.matrix(self + "o.weight"), {}, b.sums};
    b.multiply(b.o, {&o, 1});
  }
  b.add_sums();
  weights.release(prefix);
}

void TextEncoder::State::feed_forward(int64_t index, Buffers& b) {
  const trace::Span span(stream.lane(), "feed-forward");
  const std::string prefix = layer_prefix(index) + "layer.1.", dense = prefix + "DenseReluDense.";
  norm(prefix + "layer_norm.weight", b.x, b.n);
  if (columns.empty()) {
    std::memset(b.sums.raw(), 0, b.sums.bytes());
  } else {
    {
      const trace::Span products(stream.lane(), "wi");
      const kernels::ThinProduct gated{weights.matrix(dense + "wi_1.weight"), weights.matrix(dense + "wi_0.weight"),
                                       b.hidden};
      b.multiply(b.n, {&gated, 1});
    }
    const trace::Span product(stream.lane(), "wo");
    const kernels::ThinProduct wo{weights.matrix(dense + "wo.weight"), {}, b.sums};
    b.multiply(b.hidden, {&wo, 1});
  }
  b.add_sums();
  weights.release(prefix);
}

// The next layer's part of the file is read while this one computes.
void TextEncoder::State::layer(int64_t index, Buffers& b, std::span<const Prompt> prompts) {
  const std::string label = fmt::format("layer {}", index);
  const trace::Span span(stream.lane(), label.c_str());
  weights.prefetch(layer_prefix(index + 1));
  attention(index, b, prompts);
  feed_forward(index, b);
}

TextEncoder::TextEncoder(std::shared_ptr<const io::WeightSource> source, const TextEncoderConfig& config, DType dtype,
                         Stream& stream, PartialSum* sum) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  const int parts = sum != nullptr ? sum->parts() : 1, part = sum != nullptr ? sum->part() : 0;
  const io::TensorTable table = text_encoder_tensors(config);
  io::require_tensors(*source, table);
  state_.reset(new State{config, dtype, stream, sum, PartWeights(std::move(source), table, dtype, stream, parts, part),
                         split_range(config.num_heads, parts, part), split_range(config.d_ff, parts, part)});
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
                               const Probe& probe, const std::function<void()>& tick) {
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
  // [M, d] to [B, L, d], zeros for padding.
  const auto scatter = [&](const TensorView& packed, const TensorView& to) {
    std::memset(to.raw(), 0, to.bytes());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const TensorView from = packed.slice(0, prompts[i].first, prompts[i].first + prompts[i].length);
      std::memcpy(to.select(0, static_cast<int64_t>(i)).raw(), from.raw(), from.bytes());
    }
  };

  const Arena::Scope scope(s.stream.scratch());
  State::Buffers b = s.allocate(rows, *std::max_element(lengths.begin(), lengths.end()));
  const TensorView seen = probe ? s.stream.scratch().tensor(s.dtype, out.shape()) : TensorView();
  s.weights.prefetch(layer_prefix(0));
  s.embed(real, b.x);
  for (int64_t i = 0; i < s.config.num_layers; ++i) {
    s.layer(i, b, prompts);
    if (tick) tick();
    if (!probe) continue;
    scatter(b.x, seen);
    probe(fmt::format("block.{}", i), seen);
  }
  s.norm("encoder.final_layer_norm.weight", b.x, b.n);
  TensorView last = b.n;
  if (out.dtype() != s.dtype) {
    last = TensorView(b.sums.raw(), out.dtype(), b.n.shape());
    kernels::convert(s.stream, b.n, last);
  }
  scatter(last, out);
  observe(probe, "last_hidden_state", out);
}

}  // namespace zoetrope::encoders
