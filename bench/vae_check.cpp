// check_vae_decoder(): wan.md section 4 in float64 over the whole clip at once: causal convolutions with zeros before
// the first frame, doubling in time for every frame but the first.
#include <cmath>

#include "base/error.h"
#include "bench/model_check.h"
#include "bench/reference_rows.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::bench {
namespace {

constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;
constexpr int64_t kFrames = 2, kHeight = 1, kWidth = 2;  // latent cells
constexpr double kRoundingsOfConvolution = 3;            // of what it reads, of what it gives, of the norm behind it

// [C, T, H, W] with a margin of zeros: `past` frames before, one pixel on every side. One long line a channel, so that
// a tap of a convolution is the line moved by a constant.
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
  double& at(int64_t c, int64_t t, int64_t y, int64_t x) {
    return values[static_cast<size_t>(c * line + offset(t, y, x))];
  }
  double at(int64_t c, int64_t t, int64_t y, int64_t x) const {
    return values[static_cast<size_t>(c * line + offset(t, y, x))];
  }
  template <typename Body>
  void for_positions(Body&& body) const {
    for (int64_t t = 0; t < frames; ++t) {
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) body(t, y, x);
      }
    }
  }

  int64_t channels, frames, height, width, row, plane, line;
  std::vector<double> values;
};

class Reference {
 public:
  Reference(const wan::VaeConfig& config, DType dtype, const ReferenceWeights& weights)
      : layout_(wan::decoder_layout(config)),
        patch_(config.patch_size),
        rounding_(rounding_of(dtype)),
        weights_(weights) {}

  Volume decode(const Volume& latents) const {
    Volume x = convolve(layout_.in, convolve(layout_.quant, latents));
    x = residual(layout_.middle_first, std::move(x));
    x = attention(std::move(x));
    x = residual(layout_.middle_last, std::move(x));
    for (const wan::StageLayout& stage : layout_.stages) {
      const Volume entered = x;
      for (const wan::ResidualLayout& block : stage.resnets) x = residual(block, std::move(x));
      if (stage.resample) x = upsample(*stage.resample, x);
      if (stage.shortcut) add_copies(*stage.shortcut, entered, x);
    }
    norm(layout_.norm_out, x, true);
    x = without_patches(convolve(layout_.out, x));
    for (double& value : x.values) value = std::clamp(value, -1.0, 1.0);
    return x;
  }

 private:
  Volume convolve(const wan::ConvLayout& conv, const Volume& in) const {
    const std::vector<float> weight = weights_.read(conv.name + ".weight", rounding_);
    const std::vector<float> bias = weights_.read(conv.name + ".bias", rounding_);
    const auto [kt, kh, kw] = conv.kernel;
    ZT_CHECK(in.channels == conv.in && static_cast<int64_t>(weight.size()) == conv.out * conv.in * kt * kh * kw);
    Volume out(conv.out, in.frames, in.height, in.width);
    const int64_t begin = in.offset(0, 0, 0), count = in.offset(in.frames - 1, in.height - 1, in.width - 1) + 1 - begin;
    weights_.team().parallel_for(conv.out, 1, [&](IndexRange range, int) {
      std::vector<double> sum(static_cast<size_t>(count));
      for (int64_t o = range.begin; o < range.end; ++o) {
        std::fill(sum.begin(), sum.end(), static_cast<double>(bias[static_cast<size_t>(o)]));
        const float* w = weight.data() + o * conv.in * kt * kh * kw;
        for (int64_t i = 0; i < conv.in; ++i) {
          for (int64_t tap = 0; tap < kt * kh * kw; ++tap) {
            const int64_t t = tap / (kh * kw) - (kt - 1), y = tap / kw % kh - kh / 2, x = tap % kw - kw / 2;
            const double* from = in.values.data() + i * in.line + begin + t * in.plane + y * in.row + x;
            const auto factor = static_cast<double>(*w++);
            for (int64_t n = 0; n < count; ++n) sum[static_cast<size_t>(n)] += factor * from[n];
          }
        }
        out.for_positions([&](int64_t t, int64_t y, int64_t x) {  // margins stay zero
          out.at(o, t, y, x) = sum[static_cast<size_t>(out.offset(t, y, x) - begin)];
        });
      }
    });
    return out;
  }

  // x / ‖x‖ · √C · gamma over the channels of a position, then SiLU where asked for.
  void norm(const wan::NormLayout& layout, Volume& x, bool activate) const {
    const std::vector<float> gamma = weights_.read(layout.name + ".gamma", rounding_);
    x.for_positions([&](int64_t t, int64_t y, int64_t w) {
      double square = 0;
      for (int64_t c = 0; c < x.channels; ++c) square += x.at(c, t, y, w) * x.at(c, t, y, w);
      const double scale = std::sqrt(static_cast<double>(x.channels)) / std::max(std::sqrt(square), 1e-12);
      for (int64_t c = 0; c < x.channels; ++c) {
        double& value = x.at(c, t, y, w);
        value *= scale * static_cast<double>(gamma[static_cast<size_t>(c)]);
        if (activate) value = silu(value);
      }
    });
  }

  Volume residual(const wan::ResidualLayout& block, Volume x) const {
    Volume h = x;
    norm(block.norm1, h, true);
    h = convolve(block.conv1, h);
    norm(block.norm2, h, true);
    h = convolve(block.conv2, h);
    if (block.shortcut) x = convolve(*block.shortcut, x);
    for (size_t i = 0; i < h.values.size(); ++i) h.values[i] += x.values[i];
    return h;
  }

  Volume attention(Volume x) const {
    Volume n = x;
    norm(layout_.middle_attention.norm, n, false);
    const Volume qkv = convolve(layout_.middle_attention.to_qkv, n);
    const int64_t c = x.channels, area = x.height * x.width;
    for (int64_t t = 0; t < x.frames; ++t) {
      Rows parts[3] = {Rows(c, area), Rows(c, area), Rows(c, area)};
      for (int64_t f = 0; f < 3 * c; ++f) {
        for (int64_t r = 0; r < area; ++r) parts[f / c].feature(f % c)[r] = qkv.at(f, t, r / x.width, r % x.width);
      }
      const Rows o = attend({parts[0], parts[1], parts[2], 1, 1 / std::sqrt(static_cast<double>(c)), {}});
      for (int64_t f = 0; f < c; ++f) {
        for (int64_t r = 0; r < area; ++r) n.at(f, t, r / x.width, r % x.width) = o.feature(f)[r];
      }
    }
    Volume out = convolve(layout_.middle_attention.proj, n);
    for (size_t i = 0; i < out.values.size(); ++i) out.values[i] += x.values[i];
    return out;
  }

  Volume upsample(const wan::ResampleLayout& layout, const Volume& x) const {
    const Volume longer = layout.time ? double_frames(*layout.time, x) : x;
    Volume larger(longer.channels, longer.frames, 2 * longer.height, 2 * longer.width);
    larger.for_positions([&](int64_t t, int64_t y, int64_t w) {
      for (int64_t c = 0; c < longer.channels; ++c) larger.at(c, t, y, w) = longer.at(c, t, y / 2, w / 2);
    });
    return convolve(layout.spatial, larger);
  }

  // Frame 0 stays; it is no part of the history of the others, each of which becomes two.
  Volume double_frames(const wan::ConvLayout& conv, const Volume& x) const {
    Volume out(x.channels, 2 * x.frames - 1, x.height, x.width);
    Volume later(x.channels, x.frames - 1, x.height, x.width);
    later.for_positions([&](int64_t t, int64_t y, int64_t w) {
      for (int64_t c = 0; c < x.channels; ++c) later.at(c, t, y, w) = x.at(c, t + 1, y, w);
    });
    const Volume made = convolve(conv, later);
    out.for_positions([&](int64_t t, int64_t y, int64_t w) {
      for (int64_t c = 0; c < x.channels; ++c) {
        out.at(c, t, y, w) = t == 0 ? x.at(c, 0, y, w) : made.at(c + (t - 1) % 2 * x.channels, (t - 1) / 2, y, w);
      }
    });
    return out;
  }

  // Every value stands for a cell of the larger picture; of the first frame only the cell's last frame is there.
  static void add_copies(const wan::ShortcutLayout& cut, const Volume& x, Volume& to) {
    to.for_positions([&](int64_t t, int64_t y, int64_t w) {
      const int64_t frame = t + cut.time - 1;
      for (int64_t c = 0; c < to.channels; ++c) {
        const int64_t k = ((c * cut.time + frame % cut.time) * cut.space + y % cut.space) * cut.space + w % cut.space;
        const int64_t repeats = to.channels * cut.time * cut.space * cut.space / x.channels;
        to.at(c, t, y, w) += x.at(k / repeats, frame / cut.time, y / cut.space, w / cut.space);
      }
    });
  }

  // Channel (c·p + column)·p + row is channel c of the pixel at (row, column).
  Volume without_patches(const Volume& x) const {
    const int64_t p = patch_;
    Volume pixels(x.channels / (p * p), x.frames, x.height * p, x.width * p);
    pixels.for_positions([&](int64_t t, int64_t y, int64_t w) {
      for (int64_t c = 0; c < pixels.channels; ++c) {
        pixels.at(c, t, y, w) = x.at((c * p + w % p) * p + y % p, t, y / p, w / p);
      }
    });
    return pixels;
  }

  wan::CoderLayout layout_;
  int64_t patch_;
  Rounding rounding_;
  const ReferenceWeights& weights_;
};

int64_t convolutions(const wan::CoderLayout& layout) {
  int64_t count = 2 + 2 * 2 + 2 + 1;  // both ends of the decoder, the middle
  for (const wan::StageLayout& stage : layout.stages) {
    count += 2 * static_cast<int64_t>(stage.resnets.size()) + (stage.resample ? 2 : 0);
  }
  return count;
}

}  // namespace

Verdict check_vae_decoder(const std::shared_ptr<const wan::VaeWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, DType dtype, Stream& stream) {
  const wan::VaeConfig& config = weights->config();
  const Tensor latents(DType::kF32, {config.z_dim, kFrames, kHeight, kWidth});
  fill_normal(latents, 3);
  Volume input(config.z_dim, kFrames, kHeight, kWidth);
  input.for_positions([&](int64_t t, int64_t y, int64_t x) {
    for (int64_t c = 0; c < config.z_dim; ++c) {
      input.at(c, t, y, x) = latents.data<float>()[((c * kFrames + t) * kHeight + y) * kWidth + x];
    }
  });
  const ReferenceWeights plain(source, stream.team());
  const Volume expected = Reference(config, dtype, plain).decode(input);

  // Independent roundings add as the root of their number; a random walk strays beyond four times that once in ten
  // thousand.
  const wan::CoderLayout layout = wan::decoder_layout(config);
  const double terms = 27.0 * static_cast<double>(layout.in.out);
  const double unit = dtype == DType::kBF16 ? kBFloatUnit : std::sqrt(terms) * kFloatUnit;
  Verdict verdict;
  verdict.tolerance = 4 * std::sqrt(kRoundingsOfConvolution * static_cast<double>(convolutions(layout))) * unit;
  double difference = 0, norm = 0;
  int64_t seen = 0;
  wan::VaeDecoder decoder(weights);
  decoder.decode(stream, latents, [&](int64_t first, const TensorView& frames) {
    ZT_CHECK(frames.extent(1) == expected.height && frames.extent(2) == expected.width);
    seen += frames.extent(0);
    for (int64_t i = 0; i < frames.extent(0) * expected.height * expected.width; ++i) {
      const int64_t t = i / (expected.height * expected.width), y = i / expected.width % expected.height;
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t x = i % expected.width;
        const float* value = frames.data<float>() + t * frames.stride(0) + y * frames.stride(1) + x * frames.stride(2) +
                             c * frames.stride(3);
        const double truth = expected.at(c, first + t, y, x), error = static_cast<double>(*value) - truth;
        difference += error * error;
        norm += truth * truth;
        verdict.finite = verdict.finite && std::isfinite(error);
      }
    }
  });
  ZT_CHECK(seen == expected.frames, "{} frames of {}", seen, expected.frames);
  verdict.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  return verdict;
}

}  // namespace zoetrope::bench
