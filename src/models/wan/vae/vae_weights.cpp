#include "models/wan/vae/vae_weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace zoetrope::wan {
namespace {

using kernels::Convolution;
using kernels::ConvProblem;

class Loader {
 public:
  Loader(const io::Weights& weights, std::vector<Tensor>& plain) : weights_(weights), plain_(plain) {}

  CoderWeights coder(const CoderLayout& layout) {
    CoderWeights weights{layout,
                         taps(layout.in),
                         residual(layout.middle_first),
                         attention(layout.middle_attention),
                         residual(layout.middle_last),
                         {},
                         gamma(layout.norm_out),
                         taps(layout.out),
                         same_size(layout.quant)};
    for (const StageLayout& stage_layout : layout.stages) {
      StageWeights stage;
      for (const ResidualLayout& block : stage_layout.resnets) stage.resnets.push_back(residual(block));
      if (stage_layout.resample) {
        const ResampleLayout& resample = *stage_layout.resample;
        if (resample.direction == Direction::kUp) stage.up.emplace(up(resample));
        else stage.down.emplace(down(resample));
      }
      weights.stages.push_back(std::move(stage));
    }
    return weights;
  }

 private:
  TensorView get(const std::string& name, const Shape& shape) const { return weights_.get(name, shape, DType::kF32); }
  TensorView weight(const ConvLayout& layout) const { return get(layout.name + ".weight", layout.weight_shape()); }
  TensorView bias(const ConvLayout& layout) const { return get(layout.name + ".bias", {layout.out}); }
  TensorView gamma(const NormLayout& layout) const {
    return get(layout.name + ".gamma", layout.gamma_shape()).reshape({layout.channels});
  }

  // Within a frame; zero padding keeps the size of an odd kernel's image.
  static ConvProblem in_frame(int64_t in, int64_t out, int64_t kernel) {
    ConvProblem problem;
    problem.in_channels = in;
    problem.out_channels = out;
    problem.kernel = {1, kernel, kernel};
    problem.pad_before = problem.pad_after = {0, kernel / 2, kernel / 2};
    return problem;
  }

  // Of weights that were rearranged here and are kept only if the implementation reads them in place.
  Convolution from_rearranged(const ConvProblem& problem, Tensor rearranged, const TensorView& bias_view) {
    Convolution convolution(problem, rearranged, bias_view);
    if (std::string_view(convolution.implementation()) != "onednn") plain_.push_back(std::move(rearranged));
    return convolution;
  }

  Convolution same_size(const ConvLayout& layout) const {
    ZT_CHECK(layout.kernel[0] == 1);
    return {in_frame(layout.in, layout.out, layout.kernel[1]), weight(layout), bias(layout)};
  }

  // A row below, a column on the right, then every other one.
  Convolution half_size(const ConvLayout& layout) const {
    ConvProblem problem = in_frame(layout.in, layout.out, layout.kernel[1]);
    problem.stride = {1, 2, 2};
    problem.pad_before = {0, 0, 0};
    problem.pad_after = {0, 1, 1};
    return {problem, weight(layout), bias(layout)};
  }

  TapWeights taps(const ConvLayout& layout) { return taps(layout, 0, layout.out); }

  // Of the output channels [begin, end).
  TapWeights taps(const ConvLayout& layout, int64_t begin, int64_t end) {
    const TensorView all = weight(layout), bias_part = bias(layout).slice(0, begin, end);
    const int64_t taps = layout.kernel[0], area = layout.kernel[1] * layout.kernel[2], rows = (end - begin) * layout.in;
    const ConvProblem problem = in_frame(layout.in, end - begin, layout.kernel[1]);
    TapWeights result;
    for (int64_t tap = 0; tap < taps; ++tap) {
      Tensor one = Tensor::uninitialized(DType::kF32, {end - begin, layout.in, layout.kernel[1], layout.kernel[2]});
      const float* from = all.data<float>() + (begin * layout.in * taps + tap) * area;
      for (int64_t row = 0; row < rows; ++row)
        std::copy_n(from + row * taps * area, area, one.data<float>() + row * area);
      const bool last = tap + 1 == taps;
      result.taps.push_back(from_rearranged(problem, std::move(one), last ? bias_part : TensorView{}));
    }
    return result;
  }

  // The 2×2 weights for the pixels at (row, column) of each 2×2 cell. Of the three taps on an axis, those at −1, 0, 1,
  // the first pixel of a cell sees the input before its own, its own, its own; the second its own, its own, the next.
  Convolution cell(const ConvLayout& layout, int64_t row, int64_t column) {
    ZT_CHECK(layout.kernel[1] == 3 && layout.kernel[2] == 3);
    const auto input_of = [](int64_t place, int64_t tap) { return (place + tap + 1) / 2 - place; };  // 0 or 1
    const TensorView all = weight(layout);
    Tensor sums(DType::kF32, {layout.out, layout.in, 2, 2});
    for (int64_t filter = 0; filter < layout.out * layout.in; ++filter) {
      double sum[2][2] = {};
      for (int64_t tap = 0; tap < 9; ++tap) {
        sum[input_of(row, tap / 3)][input_of(column, tap % 3)] += all.data<float>()[filter * 9 + tap];
      }
      for (int64_t i = 0; i < 4; ++i) sums.data<float>()[filter * 4 + i] = static_cast<float>(sum[i / 2][i % 2]);
    }
    ConvProblem problem = in_frame(layout.in, layout.out, 2);
    problem.pad_before = {0, 1 - row, 1 - column};
    problem.pad_after = {0, row, column};
    return from_rearranged(problem, std::move(sums), bias(layout));
  }

  ResidualWeights residual(const ResidualLayout& layout) {
    ResidualWeights block{gamma(layout.norm1), gamma(layout.norm2), taps(layout.conv1), taps(layout.conv2), {}};
    if (layout.shortcut) block.shortcut.emplace(same_size(*layout.shortcut));
    return block;
  }

  AttentionWeights attention(const AttentionLayout& layout) const {
    return {gamma(layout.norm), same_size(layout.to_qkv), same_size(layout.proj)};
  }

  UpsampleWeights up(const ResampleLayout& layout) {
    UpsampleWeights result;
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t column = 0; column < 2; ++column) result.cells.push_back(cell(layout.spatial, row, column));
    }
    if (layout.time) {
      const int64_t half = layout.time->out / 2;
      result.time.push_back(taps(*layout.time, 0, half));
      result.time.push_back(taps(*layout.time, half, 2 * half));
    }
    return result;
  }

  DownsampleWeights down(const ResampleLayout& layout) {
    DownsampleWeights result{half_size(layout.spatial), {}};
    if (layout.time) result.time.emplace(taps(*layout.time));
    return result;
  }

  const io::Weights& weights_;
  std::vector<Tensor>& plain_;
};

}  // namespace

VaeWeights::VaeWeights(const VaeConfig& config, std::shared_ptr<const io::Weights> weights, VaeParts parts)
    : config_(config), source_(std::move(weights)) {
  Loader loader(*source_, plain_);
  if (parts != VaeParts::kDecoder) {
    encoder_ = std::make_unique<const CoderWeights>(loader.coder(encoder_layout(config)));
  }
  if (parts != VaeParts::kEncoder) {
    decoder_ = std::make_unique<const CoderWeights>(loader.coder(decoder_layout(config)));
  }
}

const CoderWeights& VaeWeights::encoder() const {
  ZT_CHECK(encoder_ != nullptr, "the VAE was loaded without its encoder");
  return *encoder_;
}

const CoderWeights& VaeWeights::decoder() const {
  ZT_CHECK(decoder_ != nullptr, "the VAE was loaded without its decoder");
  return *decoder_;
}

}  // namespace zoetrope::wan
