#include "models/wan/reference/vae.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan::reference {
namespace {

// [C, T, H, W] with a margin of zeros: `past` frames before, one pixel on every side. One long row per channel, so
// that a tap of a convolution is the row shifted by a constant.
template <typename Real>
struct Volume {
  static constexpr int64_t kPast = 2, kMargin = 1;
  Volume(int64_t channels_, int64_t frames_, int64_t height_, int64_t width_)
      : channels(channels_),
        frames(frames_),
        height(height_),
        width(width_),
        row(width + 2 * kMargin),
        plane((height + 2 * kMargin) * row),
        line((frames + kPast) * plane),
        values(static_cast<size_t>(channels * line)) {}

  int64_t offset(int64_t t, int64_t y, int64_t x) const {
    return (t + kPast) * plane + (y + kMargin) * row + x + kMargin;
  }
  Real& at(int64_t c, int64_t t, int64_t y, int64_t x) {
    return values[static_cast<size_t>(c * line + offset(t, y, x))];
  }
  Real at(int64_t c, int64_t t, int64_t y, int64_t x) const {
    return values[static_cast<size_t>(c * line + offset(t, y, x))];
  }
  template <typename Body>
  void for_positions(Body&& body) const {
    for (int64_t t = 0; t < frames; ++t)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x) body(t, y, x);
  }
  // Every value is from(c, t, y, x).
  template <typename From>
  Volume& fill(From&& from) {
    for_positions([&](int64_t t, int64_t y, int64_t x) {
      for (int64_t c = 0; c < channels; ++c) at(c, t, y, x) = from(c, t, y, x);
    });
    return *this;
  }

  int64_t channels, frames, height, width, row, plane, line;
  std::vector<Real> values;
};

template <typename Real>
class Coder {
 public:
  using Clip = Volume<Real>;

  Coder(const CoderLayout& layout, const Parameters& parameters, const VaeRounding& rounding)
      : layout_(layout), parameters_(parameters), rounding_(rounding) {}

  Clip decode(Clip x) const {
    store(x);
    x = convolve(layout_.in, convolve(layout_.quant, x));
    x = middle(std::move(x));
    for (const StageLayout& stage : layout_.stages) {
      const Clip entered = x;
      for (const ResidualLayout& block : stage.resnets) x = residual(block, std::move(x));
      if (stage.resample) x = upsample(*stage.resample, x);
      if (stage.shortcut) add(x, copies(*stage.shortcut, entered));
    }
    return convolve(layout_.out, norm(layout_.norm_out, std::move(x), true));
  }

  Clip encode(Clip x) const {
    store(x);
    x = convolve(layout_.in, x);
    for (const StageLayout& stage : layout_.stages) {
      const Clip entered = x;
      for (const ResidualLayout& block : stage.resnets) x = residual(block, std::move(x));
      if (stage.resample) x = downsample(*stage.resample, x);
      if (stage.shortcut) add(x, means(*stage.shortcut, entered));
    }
    x = norm(layout_.norm_out, middle(std::move(x)), true);
    return convolve(layout_.quant, convolve(layout_.out, x));
  }

 private:
  Real stored(Real value) const {
    return rounding_.values == Rounding::kFloat32 ? value : rounded(static_cast<float>(value), rounding_.values);
  }
  void store(Clip& x) const {
    for (Real& value : x.values) value = stored(value);
  }

  Clip convolve(const ConvLayout& conv, const Clip& in) const {
    const std::vector<float> weight = parameters_.read(conv.name + ".weight", rounding_.parameters);
    const std::vector<float> bias = parameters_.read(conv.name + ".bias", rounding_.parameters);
    const auto [kt, kh, kw] = conv.kernel;
    ZT_CHECK(in.channels == conv.in && static_cast<int64_t>(weight.size()) == conv.out * conv.in * kt * kh * kw);
    Clip out(conv.out, in.frames, in.height, in.width);
    const int64_t begin = in.offset(0, 0, 0), count = in.offset(in.frames - 1, in.height - 1, in.width - 1) + 1 - begin;
    parameters_.team().parallel_for(conv.out, 1, [&](IndexRange range, int) {
      std::vector<Real> sum(static_cast<size_t>(count));
      for (int64_t o = range.begin; o < range.end; ++o) {
        std::fill(sum.begin(), sum.end(), static_cast<Real>(bias[static_cast<size_t>(o)]));
        const float* w = weight.data() + o * conv.in * kt * kh * kw;
        for (int64_t i = 0; i < conv.in; ++i) {
          for (int64_t tap = 0; tap < kt * kh * kw; ++tap) {
            const int64_t t = tap / (kh * kw) - (kt - 1), y = tap / kw % kh - kh / 2, x = tap % kw - kw / 2;
            const Real* from = in.values.data() + i * in.line + begin + t * in.plane + y * in.row + x;
            const auto factor = static_cast<Real>(*w++);
            for (int64_t n = 0; n < count; ++n) sum[static_cast<size_t>(n)] += factor * from[n];
          }
        }
        out.for_positions([&](int64_t t, int64_t y, int64_t x) {  // margins stay zero
          out.at(o, t, y, x) = stored(sum[static_cast<size_t>(out.offset(t, y, x) - begin)]);
        });
      }
    });
    return out;
  }

  // x / ‖x‖ · √C · gamma over the channels of a position, then SiLU where asked for.
  Clip norm(const NormLayout& layout, Clip x, bool activate) const {
    const std::vector<float> gamma = parameters_.read(layout.name + ".gamma", rounding_.parameters);
    const Real root = std::sqrt(static_cast<Real>(x.channels));
    x.for_positions([&](int64_t t, int64_t y, int64_t w) {
      Real square = 0;
      for (int64_t c = 0; c < x.channels; ++c) square += x.at(c, t, y, w) * x.at(c, t, y, w);
      const Real length = std::max(std::sqrt(square), static_cast<Real>(1e-12));
      for (int64_t c = 0; c < x.channels; ++c) {
        Real& value = x.at(c, t, y, w);
        value = stored(value / length * root * static_cast<Real>(gamma[static_cast<size_t>(c)]));
        if (activate) value = stored(value / (1 + std::exp(-value)));
      }
    });
    return x;
  }

  void add(Clip& x, const Clip& y) const {
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = stored(x.values[i] + y.values[i]);
  }

  Clip residual(const ResidualLayout& block, Clip x) const {
    Clip branch = convolve(block.conv1, norm(block.norm1, x, true));
    branch = convolve(block.conv2, norm(block.norm2, std::move(branch), true));
    add(branch, block.shortcut ? convolve(*block.shortcut, x) : x);
    return branch;
  }

  Clip middle(Clip x) const {
    x = residual(layout_.middle_first, std::move(x));
    const Clip qkv = convolve(layout_.middle_attention.to_qkv, norm(layout_.middle_attention.norm, x, false));
    Clip mixed(x.channels, x.frames, x.height, x.width);
    const int64_t c = x.channels, area = x.height * x.width;
    for (int64_t t = 0; t < x.frames; ++t) {
      Rows parts[3] = {Rows(c, area), Rows(c, area), Rows(c, area)};
      for (int64_t f = 0; f < 3 * c; ++f)
        for (int64_t r = 0; r < area; ++r) parts[f / c].feature(f % c)[r] = qkv.at(f, t, r / x.width, r % x.width);
      const Rows o =
          attend({parts[0], parts[1], parts[2], 1, 1 / std::sqrt(static_cast<double>(c)), {}}, parameters_.team());
      for (int64_t f = 0; f < c; ++f)
        for (int64_t r = 0; r < area; ++r)
          mixed.at(f, t, r / x.width, r % x.width) = stored(static_cast<Real>(o.feature(f)[r]));
    }
    add(x, convolve(layout_.middle_attention.proj, mixed));
    return residual(layout_.middle_last, std::move(x));
  }

  Clip upsample(const ResampleLayout& layout, const Clip& x) const {
    const Clip longer = layout.time && x.frames > 1 ? double_frames(*layout.time, x) : x;
    Clip larger(longer.channels, longer.frames, 2 * longer.height, 2 * longer.width);
    larger.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) { return longer.at(c, t, y / 2, w / 2); });
    return convolve(layout.spatial, larger);
  }

  // Frame 0 stays; it is no part of the history of the others, each of which becomes two.
  Clip double_frames(const ConvLayout& conv, const Clip& x) const {
    Clip later(x.channels, x.frames - 1, x.height, x.width);
    later.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) { return x.at(c, t + 1, y, w); });
    const Clip pairs = convolve(conv, later);
    Clip out(x.channels, 2 * x.frames - 1, x.height, x.width);
    return out.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) {
      return t == 0 ? x.at(c, 0, y, w) : pairs.at(c + (t - 1) % 2 * x.channels, (t - 1) / 2, y, w);
    });
  }

  // Strides of two: every second value of the convolution over all positions. In space with zeros below and to the
  // right only, in time for every frame but the first.
  Clip downsample(const ResampleLayout& layout, const Clip& x) const {
    const Clip same = convolve(layout.spatial, x);
    Clip small(same.channels, x.frames, x.height / 2, x.width / 2);
    small.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) { return same.at(c, t, 2 * y + 1, 2 * w + 1); });
    if (!layout.time || small.frames == 1) return small;
    const Clip later = convolve(*layout.time, small);
    Clip out(small.channels, 1 + (small.frames - 1) / 2, small.height, small.width);
    return out.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) {
      return t == 0 ? small.at(c, 0, y, w) : later.at(c, 2 * t, y, w);
    });
  }

  // The shortcuts (wan.md section 4.3), index by index. On the way up every value is copied into a cell of the larger
  // picture; of the first frame only the cell's last frame exists.
  Clip copies(const ShortcutLayout& cut, const Clip& x) const {
    const int64_t repeats = cut.large * cut.time * cut.space * cut.space / x.channels;
    Clip out(cut.large, (x.frames - 1) * cut.time + 1, x.height * cut.space, x.width * cut.space);
    return out.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) {
      const int64_t frame = t + cut.time - 1;
      const int64_t k = ((c * cut.time + frame % cut.time) * cut.space + y % cut.space) * cut.space + w % cut.space;
      return x.at(k / repeats, frame / cut.time, y / cut.space, w / cut.space);
    });
  }

  // On the way down every value is the mean of a group; frames before the first are zeros.
  Clip means(const ShortcutLayout& cut, const Clip& x) const {
    const int64_t ft = cut.time, fs = cut.space, front = (ft - x.frames % ft) % ft;
    const int64_t group = x.channels * ft * fs * fs / cut.small;
    Clip out(cut.small, (x.frames + front) / ft, x.height / fs, x.width / fs);
    return out.fill([&](int64_t c, int64_t t, int64_t y, int64_t w) {
      Real sum = 0;
      for (int64_t k = c * group; k < (c + 1) * group; ++k) {
        const int64_t j = k % fs, i = k / fs % fs, a = k / (fs * fs) % ft, from = t * ft + a - front;
        if (from >= 0) sum += x.at(k / (fs * fs * ft), from, y * fs + i, w * fs + j);
      }
      return stored(sum / static_cast<Real>(group));
    });
  }

  const CoderLayout& layout_;
  const Parameters& parameters_;
  VaeRounding rounding_;
};

template <typename Real>
Tensor tensor_of(const Shape& shape) {
  return Tensor(sizeof(Real) == sizeof(double) ? DType::kF64 : DType::kF32, shape);
}

const float& element(const TensorView& x, int64_t a, int64_t b, int64_t c, int64_t d) {
  return x.data<float>()[a * x.stride(0) + b * x.stride(1) + c * x.stride(2) + d * x.stride(3)];
}

}  // namespace

template <typename Real>
Tensor decode(const VaeConfig& config, const Parameters& parameters, const TensorView& latents,
              const VaeRounding& rounding) {
  const CoderLayout layout = decoder_layout(config);
  Volume<Real> input(latents.extent(0), latents.extent(1), latents.extent(2), latents.extent(3));
  input.fill([&](int64_t c, int64_t t, int64_t y, int64_t x) { return element(latents, c, t, y, x); });
  const Volume<Real> cells = Coder<Real>(layout, parameters, rounding).decode(std::move(input));
  // Channel (c·p + column)·p + row of a patch is channel c of its pixel (row, column).
  const int64_t p = config.patch_size, height = cells.height * p, width = cells.width * p;
  Tensor video = tensor_of<Real>({cells.frames, height, width, cells.channels / (p * p)});
  Real* out = video.data<Real>();
  for (int64_t i = 0; i < cells.frames * height * width; ++i) {
    const int64_t t = i / (height * width), y = i / width % height, x = i % width;
    for (int64_t c = 0; c < video.extent(3); ++c)
      *out++ = std::clamp(cells.at((c * p + x % p) * p + y % p, t, y / p, x / p), Real(-1), Real(1));
  }
  return video;
}

template <typename Real>
Tensor encode(const VaeConfig& config, const Parameters& parameters, const TensorView& video,
              const VaeRounding& rounding) {
  const CoderLayout layout = encoder_layout(config);
  const int64_t p = config.patch_size, frames = config.video_frames(config.latent_frames(video.extent(0)));
  Volume<Real> input(video.extent(3) * p * p, frames, video.extent(1) / p, video.extent(2) / p);
  input.fill([&](int64_t k, int64_t t, int64_t y, int64_t x) {
    return element(video, t, y * p + k % p, x * p + k / p % p, k / (p * p));
  });
  const Volume<Real> moments = Coder<Real>(layout, parameters, rounding).encode(std::move(input));
  Tensor result = tensor_of<Real>({moments.channels, moments.frames, moments.height, moments.width});
  Real* out = result.data<Real>();
  for (int64_t c = 0; c < moments.channels; ++c)
    moments.for_positions([&](int64_t t, int64_t y, int64_t x) { *out++ = moments.at(c, t, y, x); });
  return result;
}

template Tensor decode<float>(const VaeConfig&, const Parameters&, const TensorView&, const VaeRounding&);
template Tensor decode<double>(const VaeConfig&, const Parameters&, const TensorView&, const VaeRounding&);
template Tensor encode<float>(const VaeConfig&, const Parameters&, const TensorView&, const VaeRounding&);
template Tensor encode<double>(const VaeConfig&, const Parameters&, const TensorView&, const VaeRounding&);

}  // namespace zoetrope::wan::reference
