#include "models/wan/transformer/face_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/linear.h"
#include "tensor/half.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kColours = 3, kBlurTaps = 4, kTaps = 3;
constexpr float kSlope = 0.2f;  // of LeakyReLU
// Elements of the patches that are multiplied together: they stay in cache.
constexpr int64_t kPatchElements = int64_t{1} << 20;

struct Pixels {   // channels last
  Tensor values;  // [height, width, channels] F32
  int64_t height() const { return values.extent(0); }
  int64_t width() const { return values.extent(1); }
  int64_t channels() const { return values.extent(2); }
};

// A convolution over [H, W, C]; `kernel` taps each way.
struct Window {
  int64_t kernel, stride, padding;
  int64_t of(int64_t length) const { return (length + 2 * padding - kernel) / stride + 1; }
};

// Every value is float32 in memory, and in a bf16 model rounded where the reference rounds it.
class Encoding {
 public:
  Encoding(Stream& stream, const TransformerWeights& weights, const Probe& probe)
      : stream_(stream),
        weights_(weights.face),
        face_(*weights.config.face),
        rounds_(weights.dtype == DType::kBF16),
        probe_(probe) {}

  void motion(const TensorView& pixels, const TensorView& vector) const;
  void tokens(const TensorView& vectors, const TensorView& tokens) const;

 private:
  float rounded(float x) const { return rounds_ ? to_float(to_bfloat16(x)) : x; }
  // x = f(x, index) for all values, over the threads.
  template <typename Function>
  void for_each(const TensorView& x, Function&& f) const {
    constexpr int64_t kGrain = 4096;
    stream_.team().parallel_for(x.size(), kGrain, [&](IndexRange mine, int) {
      float* values = x.data<float>();
      for (int64_t i = mine.begin; i < mine.end; ++i) values[i] = f(values[i], i);
    });
  }
  void round(const TensorView& x) const {
    if (rounds_) for_each(x, [this](float value, int64_t) { return rounded(value); });
  }

  Pixels convolve(const Pixels& x, const LinearWeights& layer, const Window& window) const;
  void activate(Pixels& x, const TensorView& bias) const;
  Pixels blur(const Pixels& x, int64_t padding) const;
  Pixels block(const Pixels& x, const MotionBlockWeights& weights) const;
  // Rounded; rows [M, in] F32, contiguous → [M, out].
  Tensor linear_rows(const TensorView& rows, const LinearWeights& layer) const;
  Tensor over_time(const TensorView& x, const LinearWeights& layer, int64_t heads, int64_t stride) const;
  void normalise(const TensorView& x) const;
  void show(const char* name, const TensorView& rows, const Shape& shape) const;

  Stream& stream_;
  const FaceWeights& weights_;
  const FaceConfig& face_;
  const bool rounds_;
  const Probe& probe_;
};

// As a matrix multiplication of patches, a strip of positions at a time.
Pixels Encoding::convolve(const Pixels& x, const LinearWeights& layer, const Window& window) const {
  const int64_t channels = x.channels(), k = window.kernel * window.kernel * channels;
  const int64_t height = window.of(x.height()), width = window.of(x.width()), positions = height * width;
  Pixels out{Tensor::uninitialized(DType::kF32, {height, width, layer.weight.n})};
  const TensorView rows = out.values.view().reshape({positions, layer.weight.n});
  const LinearWeights plain{layer.weight, {}};
  const int64_t strip = std::min(positions, std::max<int64_t>(64, kPatchElements / k));
  const Tensor patches = Tensor::uninitialized(DType::kF32, {strip, k});
  for (int64_t begin = 0; begin < positions; begin += strip) {
    const int64_t count = std::min(strip, positions - begin);
    constexpr int64_t kGrain = 16;
    stream_.team().parallel_for(count, kGrain, [&](IndexRange mine, int) {
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t top = (begin + i) / width * window.stride - window.padding;
        const int64_t left = (begin + i) % width * window.stride - window.padding;
        float* to = patches.data<float>() + i * k;
        for (int64_t dy = 0; dy < window.kernel; ++dy) {
          for (int64_t dx = 0; dx < window.kernel; ++dx, to += channels) {
            const int64_t y = top + dy, at = left + dx;
            if (y < 0 || y >= x.height() || at < 0 || at >= x.width()) std::fill_n(to, channels, 0.0f);
            else std::copy_n(x.values.data<float>() + (y * x.width() + at) * channels, channels, to);
          }
        }
      }
    });
    linear(stream_, patches.view().slice(0, 0, count), plain, rows.slice(0, begin, begin + count));
  }
  round(out.values);
  return out;
}

// √2·LeakyReLU(x + bias).
void Encoding::activate(Pixels& x, const TensorView& bias) const {
  const int64_t channels = x.channels();
  Tensor wide = Tensor::uninitialized(DType::kF32, {channels});
  kernels::convert(stream_, bias, wide);
  for_each(x.values, [&](float value, int64_t i) {
    const float moved = rounded(value + wide.data<float>()[i % channels]);
    return rounded(rounded(moved >= 0 ? moved : moved * kSlope) * std::sqrt(2.0f));
  });
}

// Each channel with the outer product of (1, 3, 3, 1), divided by 64.
Pixels Encoding::blur(const Pixels& x, int64_t padding) const {
  constexpr std::array<float, kBlurTaps> kRow{1, 3, 3, 1};
  const int64_t channels = x.channels(), height = x.height() + 2 * padding - kBlurTaps + 1,
                width = x.width() + 2 * padding - kBlurTaps + 1;
  Pixels out{Tensor::uninitialized(DType::kF32, {height, width, channels})};
  stream_.team().parallel_for(height, 1, [&](IndexRange mine, int) {
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        float* to = out.values.data<float>() + (row * width + column) * channels;
        std::fill_n(to, channels, 0.0f);
        for (int64_t dy = 0; dy < kBlurTaps; ++dy) {
          const int64_t y = row + dy - padding;
          if (y < 0 || y >= x.height()) continue;
          for (int64_t dx = 0; dx < kBlurTaps; ++dx) {
            const int64_t at = column + dx - padding;
            if (at < 0 || at >= x.width()) continue;
            const float factor = kRow[static_cast<size_t>(dy)] * kRow[static_cast<size_t>(dx)] / 64;
            const float* from = x.values.data<float>() + (y * x.width() + at) * channels;
            for (int64_t c = 0; c < channels; ++c) to[c] += factor * from[c];
          }
        }
        if (rounds_)
          for (int64_t c = 0; c < channels; ++c) to[c] = rounded(to[c]);
      }
    }
  });
  return out;
}

// (conv2(blur(conv1(x))) + skip(blur(x))) / √2, half as large.
Pixels Encoding::block(const Pixels& x, const MotionBlockWeights& weights) const {
  constexpr int64_t kInPadding = 2, kSkipPadding = 1;
  Pixels y = convolve(x, weights.conv1, {3, 1, 1});
  activate(y, weights.conv1.bias);
  y = blur(y, kInPadding);
  y = convolve(y, weights.conv2, {3, 2, 0});
  activate(y, weights.conv2.bias);
  const Pixels skip = convolve(blur(x, kSkipPadding), weights.skip, {1, 2, 0});
  for_each(y.values, [&](float value, int64_t i) {
    return rounded(rounded(value + skip.values.data<float>()[i]) / std::sqrt(2.0f));
  });
  return y;
}

Tensor Encoding::linear_rows(const TensorView& rows, const LinearWeights& layer) const {
  Tensor out = Tensor::uninitialized(DType::kF32, {rows.extent(0), layer.weight.n});
  linear(stream_, rows, layer, out);
  round(out);
  return out;
}

// Channels-last values as the reference has them, [.., c, positions].
void Encoding::show(const char* name, const TensorView& rows, const Shape& shape) const {
  if (!probe_) return;
  const int64_t channels = rows.extent(rows.rank() - 1), positions = rows.size() / channels;
  Tensor turned = Tensor::uninitialized(DType::kF32, {channels, positions});
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t c = 0; c < channels; ++c)
      turned.data<float>()[c * positions + p] = rows.data<float>()[p * channels + c];
  observe(probe_, name, turned.view().reshape(shape));
}

void Encoding::motion(const TensorView& pixels, const TensorView& vector) const {
  const trace::Span span(stream_.lane(), "motion encoder");
  const int64_t size = face_.image_size;
  ZT_CHECK(pixels.shape() == Shape({kColours, size, size}), "a face frame is {}", pixels.shape().to_string());
  Pixels x{Tensor::uninitialized(DType::kF32, {size, size, kColours})};
  copy(stream_, x.values, pixels.permute({1, 2, 0}));
  round(x.values);
  x = convolve(x, weights_.motion_in, {1, 1, 0});
  activate(x, weights_.motion_in.bias);
  for (size_t i = 0; i < weights_.motion_blocks.size(); ++i) {
    x = block(x, weights_.motion_blocks[i]);
    show(fmt::format("motion.res_blocks.{}", i).c_str(), x.values, {x.channels(), x.height(), x.width()});
  }
  x = convolve(x, weights_.motion_out, {4, 1, 0});
  show("motion.conv_out", x.values, {x.channels(), 1, 1});
  Tensor a = Tensor::uninitialized(DType::kF32, {1, x.channels()});
  std::memcpy(a.view().raw(), x.values.view().raw(), a.view().bytes());
  for (const LinearWeights& layer : weights_.motion_network) a = linear_rows(a, layer);
  observe(probe_, "motion.feature", a);
  for (int64_t e = 0; e < face_.vector_dim; ++e) {
    const float* row = weights_.motion_basis.data<float>() + e * face_.motion_dim;
    float sum = 0;
    for (int64_t k = 0; k < face_.motion_dim; ++k) sum += row[k] * a.data<float>()[k];
    vector.data<float>()[e] = rounded(sum);
  }
  observe(probe_, "motion.vector", vector);
}

// A causal convolution over the frames of x [S, heads·in], every head with the same weights: tap k of frame t sees
// frame stride·t + k − 2, the first one where that is before it.
Tensor Encoding::over_time(const TensorView& x, const LinearWeights& layer, int64_t heads, int64_t stride) const {
  const int64_t in = x.extent(1) / heads, frames = (x.extent(0) - 1) / stride + 1;
  Tensor patches = Tensor::uninitialized(DType::kF32, {frames * heads, kTaps * in});
  for (int64_t t = 0; t < frames; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t k = 0; k < kTaps; ++k) {
        const int64_t from = std::max<int64_t>(0, stride * t + k - (kTaps - 1));
        std::copy_n(x.data<float>() + (from * heads + head) * in, in,
                    patches.data<float>() + ((t * heads + head) * kTaps + k) * in);
      }
    }
  }
  return linear_rows(patches, layer);
}

// SiLU(LN(x)) of rows [M, g], in place.
void Encoding::normalise(const TensorView& x) const {
  const TensorView rows = x.reshape({1, x.extent(0), x.extent(1)});
  kernels::layer_norm(stream_, {.x = rows,
                                .weight = {},
                                .bias = {},
                                .scale = {},
                                .shift = {},
                                .eps = 1e-6f,
                                .out = rows,
                                .round_to_bf16 = rounds_,
                                .implementation = {}});
  kernels::activate(stream_, kernels::Activation::kSilu, x, x);
  round(x);
}

void Encoding::tokens(const TensorView& vectors, const TensorView& tokens) const {
  const trace::Span span(stream_.lane(), "face encoder");
  const int64_t frames = vectors.extent(0), heads = face_.heads, g = face_.hidden_dim, d = tokens.extent(2);
  ZT_CHECK(tokens.shape() == Shape({face_token_frames(frames), face_.tokens(), d}), "face tokens are {}",
           tokens.shape().to_string());
  Tensor x = over_time(vectors, weights_.conv1_local, 1, 1);  // [S, heads·g]
  show("face.conv1_local", x, {heads * g, frames});
  for (const auto& [name, layer] :
       {std::pair("face.conv2", &weights_.conv2), std::pair("face.conv3", &weights_.conv3)}) {
    const int64_t before = x.size() / (heads * g);
    normalise(x.view().reshape({before * heads, g}));
    x = over_time(x.view().reshape({before, heads * g}), *layer, heads, 2);  // [S'·heads, g]
    show(name, x.view().reshape({x.size() / (heads * g), heads * g}), {heads, g, x.size() / (heads * g)});
  }
  normalise(x);
  const Tensor made = linear_rows(x, weights_.out);  // [T·heads, d]
  for (int64_t t = 0; t < tokens.extent(0); ++t) {
    const TensorView frame = tokens.select(0, t);
    kernels::convert(stream_, made.view().slice(0, t * heads, (t + 1) * heads), frame.slice(0, 0, heads));
    std::memcpy(frame.slice(0, heads, heads + 1).raw(), weights_.padding.raw(), weights_.padding.bytes());
  }
  observe(probe_, "face.tokens", tokens);
}

}  // namespace

void encode_motion(Stream& stream, const TransformerWeights& weights, const TensorView& pixels,
                   const TensorView& vector, const Probe& probe) {
  Encoding(stream, weights, probe).motion(pixels, vector);
}

void encode_face(Stream& stream, const TransformerWeights& weights, const TensorView& vectors, const TensorView& tokens,
                 const Probe& probe) {
  Encoding(stream, weights, probe).tokens(vectors, tokens);
}

double motion_flop(const FaceConfig& face) {
  double products = 0;
  int64_t size = face.image_size;
  const auto add = [&](int64_t side, int64_t in, int64_t out, int64_t taps) {
    products += static_cast<double>(side * side) * static_cast<double>(in * out * taps);
  };
  add(size, kColours, face.motion_channels.front(), 1);
  for (size_t i = 0; i + 1 < face.motion_channels.size(); ++i, size /= 2) {
    const int64_t c = face.motion_channels[i], next = face.motion_channels[i + 1];
    add(size, c, c, 9);
    add(size / 2, c, next, 9 + 1);
    add(size, c, 2, kBlurTaps * kBlurTaps);  // two blurs, a channel on its own
  }
  add(1, face.motion_channels.back(), face.style_dim, 16);
  products += static_cast<double>(face.style_dim * face.style_dim * 4 + face.style_dim * face.motion_dim);
  return 2 * products;
}

Tensor encode_faces(Stream& stream, const TransformerWeights& weights, const TensorView& vectors,
                    const TensorView& black, int64_t samples, int64_t unconditional) {
  const FaceConfig& face = *weights.config.face;
  const int64_t frames = vectors.extent(0);
  Tensor tokens = Tensor::uninitialized(
      weights.dtype, {samples, face_token_frames(frames), face.tokens(), weights.config.inner_dim()});
  Tensor repeated;
  if (unconditional > 0) {
    repeated = Tensor::uninitialized(DType::kF32, vectors.shape());
    for (int64_t f = 0; f < frames; ++f) std::memcpy(repeated.view().select(0, f).raw(), black.raw(), black.bytes());
  }
  for (int64_t b = 0; b < samples; ++b)
    encode_face(stream, weights, b < samples - unconditional ? vectors : repeated.view(), tokens.view().select(0, b));
  return tokens;
}

double face_flop(const FaceConfig& face, int64_t d, int64_t frames) {
  const double g = static_cast<double>(face.hidden_dim), heads = static_cast<double>(face.heads);
  const double first = heads * g * static_cast<double>(kTaps * face.vector_dim) * static_cast<double>(frames);
  const double later = heads * g * g * kTaps * static_cast<double>((frames - 1) / 2 + 1 + face_token_frames(frames));
  return 2 * (first + later + heads * g * static_cast<double>(d) * static_cast<double>(face_token_frames(frames)));
}

int64_t face_encoding_bytes(const FaceConfig& face, DType dtype, int threads) {
  // At the largest size: a block's input, its first convolution, what is blurred; patches, and those as operands.
  constexpr int64_t kAtOnce = 3;
  const int64_t side = face.image_size + 1;
  const int64_t patches = 2 * (kPatchElements + 64 * kOperandPadding);
  const kernels::PackedMatrix widest{nullptr, face.style_dim, face.motion_channels.back() * 16, dtype,
                                     kernels::packed_layout(dtype)};
  return (kAtOnce * side * side * face.motion_channels.front() + patches) * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(kernels::packed_gemm_scratch_bytes(widest, 1, threads));
}

}  // namespace zoetrope::wan
