#include "models/encoders/clip_vision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/encoders/cost.h"
#include "models/encoders/encoder_block.h"
#include "models/encoders/part_weights.h"
#include "models/encoders/tensor_tables.h"
#include "tensor/dispatch.h"
#include "tensor/half.h"
#include "trace/trace.h"

namespace zoetrope::encoders {

// Rows are the tokens of all pictures, M together, T of each. W: the compute dtype.
struct ClipVision::State {
  std::shared_ptr<const io::WeightSource> source;
  ClipVisionConfig config;
  io::TensorTable table;  // what is used of the files
  DType dtype;
};

namespace {

constexpr const char* kEmbeddings = "vision_model.embeddings.";
constexpr const char* kBeforeLayers = "vision_model.pre_layrnorm";  // as the files spell it

std::string layer_prefix(int64_t layer) { return fmt::format("vision_model.encoder.layers.{}.", layer); }

// The state of one encode() call.
class Pass {
 public:
  Pass(const ClipVisionConfig& config, PartWeights weights, DType dtype, Stream& stream, int64_t pictures)
      : config_(config),
        weights_(std::move(weights)),
        dtype_(dtype),
        stream_(stream),
        pictures_(pictures),
        attention_(problem()),
        b_(weights_, stream, nullptr, sizes()) {
    const int64_t pixels = config_.num_channels * config_.patch_size * config_.patch_size;
    patches_ = stream_.scratch().tensor(dtype_, {pictures_ * config_.patches(), pixels});
  }

  void embed(const TensorView& pixels);
  void layer(int64_t index);
  const TensorView& x() const { return b_.x; }

 private:
  EncoderBlock::Sizes sizes() const {
    return {pictures_ * config_.tokens(),
            config_.hidden_size,
            config_.hidden_size,
            config_.intermediate_size,
            clip_workspace_bytes(config_, pictures_, dtype_, stream_.team().size()),
            clip_buffer_bytes(config_, dtype_)};
  }
  kernels::FlashProblem problem() const {
    kernels::FlashProblem problem;
    problem.batch = pictures_;
    problem.query_tokens = problem.key_tokens = config_.tokens();
    problem.heads = config_.num_attention_heads;
    problem.head_dim = config_.head_dim();
    problem.dtype = dtype_;
    problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim())));
    return problem;
  }

  template <typename Value>
  void gather_patches(const TensorView& pixels);
  template <typename Value>
  void add_positions(const TensorView& class_token, const TensorView& positions);
  void norm(const std::string& name, const TensorView& from, const TensorView& to);
  kernels::ThinProduct linear(const std::string& name, const TensorView& out,
                              kernels::Activation activation = kernels::Activation::kNone);
  void attend();
  void attention(const std::string& prefix);
  void feed_forward(const std::string& prefix);

  const ClipVisionConfig& config_;
  PartWeights weights_;
  DType dtype_;
  Stream& stream_;
  int64_t pictures_;
  kernels::FlashAttention attention_;
  EncoderBlock b_;
  TensorView patches_;  // [pictures · P, pixels of a patch] W
};

// Patches row by row; in a patch channel by channel, like the convolution's weights.
template <typename Value>
void Pass::gather_patches(const TensorView& pixels) {
  const int64_t size = config_.patch_size, across = config_.image_size / size, row = config_.image_size;
  const int64_t plane = row * row, channels = config_.num_channels;
  stream_.team().parallel_for(patches_.extent(0), 16, [&](IndexRange mine, int) {
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t picture = i / config_.patches(), patch = i % config_.patches();
      const float* from =
          pixels.data<float>() + picture * channels * plane + patch / across * size * row + patch % across * size;
      Value* to = patches_.data<Value>() + i * patches_.stride(0);
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t y = 0; y < size; ++y)
          for (int64_t x = 0; x < size; ++x) *to++ = from_float<Value>(from[c * plane + y * row + x]);
    }
  });
}

// x = (class token, patches) + positions, for each picture; the patch embeddings are in b_.sums.
template <typename Value>
void Pass::add_positions(const TensorView& class_token, const TensorView& positions) {
  const int64_t d = config_.hidden_size, tokens = config_.tokens(), patches = config_.patches();
  for (int64_t row = 0; row < b_.x.extent(0); ++row) {
    const int64_t picture = row / tokens, token = row % tokens;
    const float* from =
        token == 0 ? class_token.data<float>() : b_.sums.data<float>() + (picture * patches + token - 1) * d;
    const float* position = positions.data<float>() + token * d;
    Value* to = b_.x.data<Value>() + row * d;
    for (int64_t i = 0; i < d; ++i) to[i] = from_float<Value>(from[i] + position[i]);
  }
}

void Pass::embed(const TensorView& pixels) {
  const trace::Span span(stream_.lane(), "patch embedding");
  const std::string prefix = kEmbeddings;
  with_compute_type(dtype_, "image encoder", [&](auto type) {
    using Value = typename decltype(type)::type;
    gather_patches<Value>(pixels);
    const kernels::ThinProduct product{
        weights_.matrix(prefix + "patch_embedding.weight"), {}, b_.sums.slice(0, 0, patches_.extent(0))};
    b_.multiply(patches_, {&product, 1});
    const Arena::Scope scope(stream_.scratch());
    add_positions<Value>(weights_.small(prefix + "class_embedding", DType::kF32),
                         weights_.small(prefix + "position_embedding.weight", DType::kF32));
  });
  weights_.release(prefix);
  norm(kBeforeLayers, b_.x, b_.n);
  std::swap(b_.x, b_.n);
}

void Pass::norm(const std::string& name, const TensorView& from, const TensorView& to) {
  const Arena::Scope scope(stream_.scratch());
  const Shape shape{1, from.extent(0), from.extent(1)};
  kernels::LayerNorm call;
  call.x = from.reshape(shape);
  call.weight = weights_.small(name + ".weight", DType::kF32);
  call.bias = weights_.small(name + ".bias", DType::kF32);
  call.eps = static_cast<float>(config_.layer_norm_eps);
  call.out = to.reshape(shape);
  kernels::layer_norm(stream_, call);
}

kernels::ThinProduct Pass::linear(const std::string& name, const TensorView& out, kernels::Activation activation) {
  return {weights_.matrix(name + ".weight"), {}, out, weights_.small(name + ".bias", DType::kF32), activation};
}

void Pass::attend() {
  const trace::Span span(stream_.lane(), "attention core");
  const Shape heads{pictures_, config_.tokens(), config_.num_attention_heads, config_.head_dim()};
  kernels::KeyBlock block;
  block.k = b_.k.reshape(heads);
  block.v = b_.v.reshape(heads);
  attention_.attend(stream_, b_.q.reshape(heads), block, b_.o.reshape(heads));
}

void Pass::attention(const std::string& prefix) {
  const trace::Span span(stream_.lane(), "self-attention");
  const std::string self = prefix + "self_attn.";
  norm(prefix + "layer_norm1", b_.x, b_.n);
  {
    const Arena::Scope scope(stream_.scratch());
    const kernels::ThinProduct qkv[] = {linear(self + "q_proj", b_.q), linear(self + "k_proj", b_.k),
                                        linear(self + "v_proj", b_.v)};
    b_.multiply(b_.n, qkv);
  }
  attend();
  const Arena::Scope scope(stream_.scratch());
  const kernels::ThinProduct out = linear(self + "out_proj", b_.sums);
  b_.multiply(b_.o, {&out, 1});
  b_.add_sums();
  weights_.release(prefix + "layer_norm1");
  weights_.release(self);
}

void Pass::feed_forward(const std::string& prefix) {
  const trace::Span span(stream_.lane(), "feed-forward");
  norm(prefix + "layer_norm2", b_.x, b_.n);
  const Arena::Scope scope(stream_.scratch());
  const kernels::ThinProduct wide = linear(prefix + "mlp.fc1", b_.hidden, kernels::Activation::kGeluErf);
  b_.multiply(b_.n, {&wide, 1});
  const kernels::ThinProduct narrow = linear(prefix + "mlp.fc2", b_.sums);
  b_.multiply(b_.hidden, {&narrow, 1});
  b_.add_sums();
  weights_.release(prefix + "layer_norm2");
  weights_.release(prefix + "mlp.");
}

// The next layer's part of the file is read while this one computes.
void Pass::layer(int64_t index) {
  const std::string label = fmt::format("layer {}", index);
  const trace::Span span(stream_.lane(), label.c_str());
  weights_.prefetch(layer_prefix(index + 1));
  const std::string prefix = layer_prefix(index);
  attention(prefix);
  feed_forward(prefix);
}

}  // namespace

ClipVision::ClipVision(std::shared_ptr<const io::WeightSource> source, const ClipVisionConfig& config, DType dtype)
    : state_(new State{std::move(source), config, clip_vision_tensors(config, ClipTensors::kUsed), dtype}) {
  ZT_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  io::require_tensors(*state_->source, state_->table);
}
ClipVision::~ClipVision() = default;
ClipVision::ClipVision(ClipVision&&) noexcept = default;

const ClipVisionConfig& ClipVision::config() const { return state_->config; }

void ClipVision::encode(Stream& stream, const TensorView& pixels, const TensorView& out, const Probe& probe,
                        const std::function<void()>& tick) const {
  const State& s = *state_;
  const trace::Span span(stream.lane(), "image encoder");
  const ClipVisionConfig& c = s.config;
  const int64_t pictures = pixels.extent(0);
  ZT_CHECK(pixels.dtype() == DType::kF32 && pixels.contiguous() && pictures > 0);
  ZT_CHECK(pixels.shape() == Shape({pictures, c.num_channels, c.image_size, c.image_size}), "{}",
           pixels.shape().to_string());
  ZT_CHECK(out.shape() == Shape({pictures, c.tokens(), c.hidden_size}) && out.contiguous(), "{}",
           out.shape().to_string());
  const Arena::Scope scope(stream.scratch());
  PartWeights weights(s.source, s.table, s.dtype, stream);
  weights.prefetch(layer_prefix(0));
  Pass pass(c, std::move(weights), s.dtype, stream, pictures);
  pass.embed(pixels);
  observe(probe, "embeddings", pass.x().reshape(out.shape()));
  for (int64_t i = 0; i < c.layers_used(); ++i) {
    pass.layer(i);
    if (tick) tick();
    if (probe) probe(fmt::format("layer.{}", i), pass.x().reshape(out.shape()));
  }
  const TensorView last = pass.x().reshape(out.shape());
  if (out.dtype() == s.dtype) {
    std::memcpy(out.raw(), last.raw(), out.bytes());
  } else {
    kernels::convert(stream, last, out);
  }
}

}  // namespace zoetrope::encoders
