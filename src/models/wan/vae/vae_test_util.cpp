#include "models/wan/vae/vae_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::wan {
namespace {

class Uniform {
 public:
  explicit Uniform(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  double operator()() {  // [−1, 1), SplitMix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return 2.0 * static_cast<double>(z >> 11) / 9007199254740992.0 - 1.0;
  }

 private:
  uint64_t state_;
};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

double value_at(const TensorView& x, int64_t index) {
  int64_t offset = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    offset += index % x.extent(axis) * x.stride(axis);
    index /= x.extent(axis);
  }
  return x.dtype() == DType::kF64 ? x.data<double>()[offset] : static_cast<double>(x.data<float>()[offset]);
}

// A clip, channels last.
template <typename Real>
struct Clip {
  int64_t t = 0, h = 0, w = 0, c = 0;
  std::vector<Real> values;
  Clip(int64_t frames, int64_t height, int64_t width, int64_t channels)
      : t(frames), h(height), w(width), c(channels), values(static_cast<size_t>(t * h * w * c)) {}
  Real& at(int64_t f, int64_t y, int64_t x, int64_t k) {
    return values[static_cast<size_t>(((f * h + y) * w + x) * c + k)];
  }
  Real at(int64_t f, int64_t y, int64_t x, int64_t k) const {
    return values[static_cast<size_t>(((f * h + y) * w + x) * c + k)];
  }
  Clip frames(int64_t begin, int64_t end) const {
    Clip part(end - begin, h, w, c);
    const int64_t frame = h * w * c;
    std::copy(values.begin() + begin * frame, values.begin() + end * frame, part.values.begin());
    return part;
  }
};

template <typename Real>
class Reference {
 public:
  Reference(const CoderLayout& layout, const io::Weights& weights, DType stored)
      : layout_(layout), weights_(weights), stored_(stored) {}

  Clip<Real> decode(Clip<Real> x) const {
    store(x);
    x = conv(layout_.in, conv(layout_.quant, x));
    x = middle(std::move(x));
    for (const StageLayout& stage : layout_.stages) {
      const Clip<Real> entered = x;
      for (const ResidualLayout& block : stage.resnets) x = residual(block, x);
      if (stage.resample) x = up(*stage.resample, x);
      if (stage.shortcut) add(x, copies(*stage.shortcut, entered));
    }
    return conv(layout_.out, norm(layout_.norm_out, x, true));
  }

  Clip<Real> encode(Clip<Real> x) const {
    store(x);
    x = conv(layout_.in, x);
    for (const StageLayout& stage : layout_.stages) {
      const Clip<Real> entered = x;
      for (const ResidualLayout& block : stage.resnets) x = residual(block, x);
      if (stage.resample) x = down(*stage.resample, x);
      if (stage.shortcut) add(x, means(*stage.shortcut, entered));
    }
    x = middle(std::move(x));
    return conv(layout_.quant, conv(layout_.out, norm(layout_.norm_out, x, true)));
  }

 private:
  // What becomes of a value between ops, and of a parameter.
  Real stored(Real value) const {
    return stored_ == DType::kBF16 ? static_cast<Real>(to_float(to_bfloat16(static_cast<float>(value)))) : value;
  }
  void store(Clip<Real>& x) const {
    for (Real& value : x.values) value = stored(value);
  }

  struct Geometry {
    int64_t past, before, after;  // zeros in front of the first frame; above and left; below and right
    int64_t stride_t = 1, stride_s = 1;
  };

  Clip<Real> conv(const ConvLayout& layout, const Clip<Real>& x) const {
    return conv(layout, x, {layout.kernel[0] - 1, layout.kernel[1] / 2, layout.kernel[1] / 2});
  }

  Clip<Real> conv(const ConvLayout& layout, const Clip<Real>& x, const Geometry& g) const {
    const auto [kt, kh, kw] = layout.kernel;
    const float* weight = weights_.get(layout.name + ".weight", layout.weight_shape(), DType::kF32).data<float>();
    const float* bias = weights_.get(layout.name + ".bias", {layout.out}, DType::kF32).data<float>();
    Clip<Real> y((x.t + g.past - kt) / g.stride_t + 1, (x.h + g.before + g.after - kh) / g.stride_s + 1,
                 (x.w + g.before + g.after - kw) / g.stride_s + 1, layout.out);
    for (int64_t f = 0; f < y.t; ++f) {
      for (int64_t r = 0; r < y.h; ++r) {
        for (int64_t s = 0; s < y.w; ++s) {
          for (int64_t o = 0; o < y.c; ++o) {
            Real sum = stored(static_cast<Real>(bias[o]));
            for (int64_t a = 0; a < kt; ++a) {
              for (int64_t b = 0; b < kh; ++b) {
                for (int64_t d = 0; d < kw; ++d) {
                  const int64_t from_t = f * g.stride_t + a - g.past, from_h = r * g.stride_s + b - g.before,
                                from_w = s * g.stride_s + d - g.before;
                  if (from_t < 0 || from_h < 0 || from_h >= x.h || from_w < 0 || from_w >= x.w) continue;
                  for (int64_t i = 0; i < x.c; ++i) {
                    const int64_t tap = (((o * layout.in + i) * kt + a) * kh + b) * kw + d;
                    sum += x.at(from_t, from_h, from_w, i) * stored(static_cast<Real>(weight[tap]));
                  }
                }
              }
            }
            y.at(f, r, s, o) = stored(sum);
          }
        }
      }
    }
    return y;
  }

  Clip<Real> norm(const NormLayout& layout, const Clip<Real>& x, bool silu) const {
    const float* gamma = weights_.get(layout.name + ".gamma", layout.gamma_shape(), DType::kF32).data<float>();
    Clip<Real> y = x;
    const Real root = std::sqrt(static_cast<Real>(x.c));
    for (size_t begin = 0; begin < y.values.size(); begin += static_cast<size_t>(x.c)) {
      Real sum = 0;
      for (int64_t k = 0; k < x.c; ++k)
        sum += y.values[begin + static_cast<size_t>(k)] * y.values[begin + static_cast<size_t>(k)];
      const Real length = std::max(std::sqrt(sum), static_cast<Real>(1e-12));
      for (int64_t k = 0; k < x.c; ++k) {
        Real& value = y.values[begin + static_cast<size_t>(k)];
        value = stored(value / length * root * stored(static_cast<Real>(gamma[k])));
        if (silu) value = stored(value / (1 + std::exp(-value)));
      }
    }
    return y;
  }

  void add(Clip<Real>& x, const Clip<Real>& y) const {
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = stored(x.values[i] + y.values[i]);
  }

  Clip<Real> residual(const ResidualLayout& block, const Clip<Real>& x) const {
    Clip<Real> y = conv(block.conv1, norm(block.norm1, x, true));
    y = conv(block.conv2, norm(block.norm2, y, true));
    add(y, block.shortcut ? conv(*block.shortcut, x) : x);
    return y;
  }

  Clip<Real> middle(Clip<Real> x) const {
    x = residual(layout_.middle_first, x);
    const AttentionLayout& layout = layout_.middle_attention;
    const Clip<Real> qkv = conv(layout.to_qkv, norm(layout.norm, x, false));
    Clip<Real> mixed(x.t, x.h, x.w, x.c);
    const int64_t tokens = x.h * x.w;
    const Real scale = 1 / std::sqrt(static_cast<Real>(x.c));
    std::vector<Real> score(static_cast<size_t>(tokens));
    for (int64_t f = 0; f < x.t; ++f) {
      for (int64_t q = 0; q < tokens; ++q) {
        Real largest = -INFINITY, total = 0;
        for (int64_t k = 0; k < tokens; ++k) {
          Real sum = 0;
          for (int64_t i = 0; i < x.c; ++i) sum += qkv.at(f, 0, q, i) * qkv.at(f, 0, k, x.c + i);
          score[static_cast<size_t>(k)] = sum * scale;
          largest = std::max(largest, sum * scale);
        }
        for (Real& s : score) total += s = std::exp(s - largest);
        for (int64_t k = 0; k < tokens; ++k) {
          for (int64_t i = 0; i < x.c; ++i) {
            mixed.at(f, 0, q, i) += score[static_cast<size_t>(k)] / total * qkv.at(f, 0, k, 2 * x.c + i);
          }
        }
      }
    }
    store(mixed);
    add(x, conv(layout.proj, mixed));
    return residual(layout_.middle_last, x);
  }

  Clip<Real> up(const ResampleLayout& resample, const Clip<Real>& x) const {
    Clip<Real> doubled = x;
    if (resample.time && x.t > 1) {
      const Clip<Real> two = conv(*resample.time, x.frames(1, x.t));
      doubled = Clip<Real>(2 * x.t - 1, x.h, x.w, x.c);
      const int64_t pixels = x.h * x.w;
      for (int64_t p = 0; p < pixels; ++p) {
        for (int64_t k = 0; k < x.c; ++k) {
          doubled.at(0, 0, p, k) = x.at(0, 0, p, k);
          for (int64_t f = 0; f < two.t; ++f) {
            doubled.at(1 + 2 * f, 0, p, k) = two.at(f, 0, p, k);
            doubled.at(2 + 2 * f, 0, p, k) = two.at(f, 0, p, x.c + k);
          }
        }
      }
    }
    Clip<Real> large(doubled.t, 2 * x.h, 2 * x.w, x.c);
    for (int64_t f = 0; f < large.t; ++f) {
      for (int64_t r = 0; r < large.h; ++r) {
        for (int64_t s = 0; s < large.w; ++s) {
          for (int64_t k = 0; k < x.c; ++k) large.at(f, r, s, k) = doubled.at(f, r / 2, s / 2, k);
        }
      }
    }
    return conv(resample.spatial, large);
  }

  Clip<Real> down(const ResampleLayout& resample, const Clip<Real>& x) const {
    const Clip<Real> small = conv(resample.spatial, x, {0, 0, 1, 1, 2});
    if (!resample.time || small.t == 1) return small;
    const Clip<Real> later = conv(*resample.time, small, {0, 0, 0, 2, 1});
    Clip<Real> y(1 + later.t, small.h, small.w, small.c);
    const int64_t frame = small.h * small.w * small.c;
    std::copy(small.values.begin(), small.values.begin() + frame, y.values.begin());
    std::copy(later.values.begin(), later.values.end(), y.values.begin() + frame);
    return y;
  }

  // The shortcuts as wan.md section 4.3 says them, index by index.
  Clip<Real> copies(const ShortcutLayout& cut, const Clip<Real>& x) const {
    const int64_t ft = cut.time, fs = cut.space, repeats = cut.large * ft * fs * fs / x.c;
    Clip<Real> all(x.t * ft, x.h * fs, x.w * fs, cut.large);
    for (int64_t t = 0; t < x.t; ++t) {
      for (int64_t p = 0; p < x.h * x.w; ++p) {
        for (int64_t k = 0; k < x.c * repeats; ++k) {
          const int64_t j = k % fs, i = k / fs % fs, a = k / (fs * fs) % ft, o = k / (fs * fs * ft);
          all.at(t * ft + a, p / x.w * fs + i, p % x.w * fs + j, o) = x.at(t, 0, p, k / repeats);
        }
      }
    }
    return all.frames(ft - 1, all.t);
  }

  Clip<Real> means(const ShortcutLayout& cut, const Clip<Real>& x) const {
    const int64_t ft = cut.time, fs = cut.space, front = (ft - x.t % ft) % ft, group = x.c * ft * fs * fs / cut.small;
    Clip<Real> y((x.t + front) / ft, x.h / fs, x.w / fs, cut.small);
    for (int64_t t = 0; t < y.t; ++t) {
      for (int64_t p = 0; p < y.h * y.w; ++p) {
        for (int64_t o = 0; o < y.c; ++o) {
          Real sum = 0;
          for (int64_t k = o * group; k < (o + 1) * group; ++k) {
            const int64_t j = k % fs, i = k / fs % fs, a = k / (fs * fs) % ft, c = k / (fs * fs * ft);
            const int64_t from = t * ft + a - front;
            if (from >= 0) sum += x.at(from, p / y.w * fs + i, p % y.w * fs + j, c);
          }
          y.at(t, 0, p, o) = stored(sum / static_cast<Real>(group));
        }
      }
    }
    return y;
  }

  const CoderLayout& layout_;
  const io::Weights& weights_;
  DType stored_;
};

// Channel c·p² + dx·p + dy of a patch is channel c of its pixel (dy, dx).
template <typename Real>
Clip<Real> patched(const Clip<Real>& x, int64_t p) {
  Clip<Real> y(x.t, x.h / p, x.w / p, x.c * p * p);
  for (int64_t t = 0; t < y.t; ++t) {
    for (int64_t i = 0; i < y.h * p; ++i) {
      for (int64_t j = 0; j < y.w * p; ++j) {
        for (int64_t c = 0; c < x.c; ++c) y.at(t, i / p, j / p, c * p * p + j % p * p + i % p) = x.at(t, i, j, c);
      }
    }
  }
  return y;
}

template <typename Real>
Clip<Real> unpatched(const Clip<Real>& x, int64_t p) {
  Clip<Real> y(x.t, x.h * p, x.w * p, x.c / (p * p));
  for (int64_t t = 0; t < y.t; ++t) {
    for (int64_t i = 0; i < y.h; ++i) {
      for (int64_t j = 0; j < y.w; ++j) {
        for (int64_t c = 0; c < y.c; ++c) y.at(t, i, j, c) = x.at(t, i / p, j / p, c * p * p + j % p * p + i % p);
      }
    }
  }
  return y;
}

template <typename Real>
Clip<Real> clip_of(const TensorView& x /* [T, H, W, C], any strides */) {
  Clip<Real> clip(x.extent(0), x.extent(1), x.extent(2), x.extent(3));
  for (size_t i = 0; i < clip.values.size(); ++i) {
    clip.values[i] = static_cast<Real>(value_at(x, static_cast<int64_t>(i)));
  }
  return clip;
}

template <typename Real>
Tensor tensor_of(const Clip<Real>& clip) {
  Tensor tensor(sizeof(Real) == 8 ? DType::kF64 : DType::kF32, {clip.t, clip.h, clip.w, clip.c});
  std::memcpy(tensor.data<Real>(), clip.values.data(), clip.values.size() * sizeof(Real));
  return tensor;
}

}  // namespace

RandomSource::RandomSource(const VaeConfig& config, uint64_t seed) {
  for (const TensorSpec& spec : vae_tensor_list(config)) {
    Uniform uniform(++seed);
    Tensor tensor(DType::kF32, spec.shape);
    const bool gamma = ends_with(spec.name, ".gamma"), bias = ends_with(spec.name, ".bias");
    const double fan_in = static_cast<double>(spec.shape.size() / spec.shape[0]);
    const double amplitude = gamma || bias ? 0.2 : std::sqrt(3.0 / fan_in);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.data<float>()[i] = static_cast<float>((gamma ? 1.0 : 0.0) + amplitude * uniform());
    }
    tensors_.emplace(spec.name, std::move(tensor));
  }
}

std::vector<std::string> RandomSource::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

io::TensorInfo RandomSource::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("random: tensor '{}' is missing", name);
  io::TensorInfo info;
  info.dtype_name = "F32";
  info.dtype = DType::kF32;
  info.shape = found->second.shape();
  info.bytes = found->second.view().bytes();
  return info;
}

void RandomSource::read(const std::string& name, const TensorView& out) const {
  ZT_CHECK(out.dtype() == DType::kF32);
  std::memcpy(out.raw(), tensors_.at(name).view().raw(), out.bytes());
}

PerturbedSource::PerturbedSource(std::shared_ptr<const io::WeightSource> base, const std::string& name, float delta)
    : base_(std::move(base)), name_(name), moved_(DType::kF32, base_->info(name).shape) {
  base_->read(name, moved_);
  moved_.data<float>()[0] += delta;
}

TensorView PerturbedSource::mapped(const std::string& name) const {
  return name == name_ ? moved_.view() : base_->mapped(name);
}

void PerturbedSource::read(const std::string& name, const TensorView& out) const {
  if (name != name_) return base_->read(name, out);
  ZT_CHECK(out.dtype() == DType::kF32);
  std::memcpy(out.raw(), moved_.view().raw(), out.bytes());
}

VaeConfig small_config() {
  VaeConfig config;
  config.base_dim = config.decoder_base_dim = 5;
  config.z_dim = 3;
  config.dim_mult = {1, 2, 2};
  config.num_res_blocks = 1;
  config.temporal_downsample = {true, true};
  config.latents_mean = {0.1f, -0.2f, 0.3f};
  config.latents_std = {1.5f, 0.7f, 2.0f};
  config.scale_factor_spatial = 4;
  return config;
}

std::vector<VaeConfig> residual_configs() {
  VaeConfig published = small_config();
  published.is_residual = true;
  published.patch_size = 2;
  published.in_channels = published.out_channels = 12;
  published.decoder_base_dim = 3;
  published.dim_mult = {1, 2, 4, 4};
  published.temporal_downsample = {false, true, true};
  published.scale_factor_spatial = 16;
  VaeConfig other = published;  // more channels on the way up, fewer where sizes stay
  other.decoder_base_dim = 5;
  other.dim_mult = {1, 4, 2};
  other.temporal_downsample = {true, true};
  other.num_res_blocks = 2;
  other.patch_size = 1;
  other.in_channels = other.out_channels = 3;
  other.scale_factor_spatial = 4;
  return {published, other};
}

VaeConfig published_residual_config() {
  VaeConfig config;
  config.base_dim = 160;
  config.decoder_base_dim = 256;
  config.z_dim = 48;
  config.is_residual = true;
  config.in_channels = config.out_channels = 12;
  config.patch_size = 2;
  config.scale_factor_spatial = 16;
  return config;
}

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  Tensor tensor(DType::kF32, shape);
  Uniform uniform(seed);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = static_cast<float>(uniform());
  return tensor;
}

Difference difference(const TensorView& value, const TensorView& reference) {
  ZT_CHECK(value.shape() == reference.shape(), "{} beside {}", value.shape().to_string(),
           reference.shape().to_string());
  Difference result;
  double error = 0, norm = 0;
  for (int64_t i = 0; i < value.size(); ++i) {
    const double b = value_at(reference, i), d = value_at(value, i) - b;
    error += d * d;
    norm += b * b;
    // Written so that NaN is the largest.
    if (!(std::abs(d) <= result.max_abs)) result.max_abs = std::abs(d);
    result.reference_max = std::max(result.reference_max, std::abs(b));
  }
  result.relative_l2 = std::sqrt(error / norm);
  return result;
}

template <typename Real>
Tensor reference_decode(const VaeConfig& config, const io::Weights& weights, const TensorView& latents, DType stored) {
  const CoderLayout layout = decoder_layout(config);
  const Reference<Real> reference(layout, weights, stored);
  Clip<Real> video = unpatched(reference.decode(clip_of<Real>(latents.permute({1, 2, 3, 0}))), config.patch_size);
  for (Real& value : video.values) value = std::clamp(value, Real(-1), Real(1));
  return tensor_of(video);
}

template <typename Real>
Tensor reference_encode(const VaeConfig& config, const io::Weights& weights, const TensorView& video, DType stored) {
  const CoderLayout layout = encoder_layout(config);
  const int64_t used = video_frames(config, latent_frames(config, video.extent(0)));
  const Clip<Real> input = patched(clip_of<Real>(video.slice(0, 0, used)), config.patch_size);
  const Clip<Real> moments = Reference<Real>(layout, weights, stored).encode(input);
  Clip<Real> channels_first(moments.c, moments.t, moments.h, moments.w);
  for (int64_t k = 0; k < moments.c; ++k) {
    for (int64_t i = 0; i < moments.t * moments.h * moments.w; ++i) {
      channels_first.at(k, 0, 0, i) = moments.at(0, 0, i, k);
    }
  }
  return tensor_of(channels_first);
}

template Tensor reference_decode<float>(const VaeConfig&, const io::Weights&, const TensorView&, DType);
template Tensor reference_decode<double>(const VaeConfig&, const io::Weights&, const TensorView&, DType);
template Tensor reference_encode<float>(const VaeConfig&, const io::Weights&, const TensorView&, DType);
template Tensor reference_encode<double>(const VaeConfig&, const io::Weights&, const TensorView&, DType);

}  // namespace zoetrope::wan
