#include "models/wan/vae/vae_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::wan {
namespace {

using kernels::FrameConvolution;
using kernels::FrameConvProblem;

class Loader {
 public:
  Loader(const io::WeightSource& source, DType dtype, kernels::ConvAlgorithm algorithm,
         const std::string& implementation)
      : source_(source), dtype_(dtype), algorithm_(algorithm), implementation_(implementation) {}

  CoderWeights coder(const CoderLayout& layout) const {
    CoderWeights weights{layout,
                         end(layout.in),
                         residual(layout.middle_first),
                         attention(layout.middle_attention),
                         residual(layout.middle_last),
                         {},
                         gamma(layout.norm_out),
                         end(layout.out),
                         causal(layout.quant)};
    for (const StageLayout& stage_layout : layout.stages) {
      StageWeights stage;
      for (const ResidualLayout& block : stage_layout.resnets) stage.resnets.push_back(residual(block));
      if (stage_layout.resample) {
        const ResampleLayout& resample = *stage_layout.resample;
        if (resample.scaling == Scaling::kUp) stage.up.emplace(up(resample));
        else stage.down.emplace(down(resample));
      }
      weights.stages.push_back(std::move(stage));
    }
    return weights;
  }

 private:
  // A copy, rounded to the model's dtype.
  Tensor get(const std::string& name, const Shape& stored, const Shape& shape) const {
    io::require_shape(source_, name, stored);
    Tensor copy = Tensor::uninitialized(DType::kF32, shape);
    source_.read(name, copy);
    source_.release(name);  // the file's pages
    if (dtype_ == DType::kBF16) {
      for (int64_t i = 0; i < copy.size(); ++i) copy.data<float>()[i] = to_float(to_bfloat16(copy.data<float>()[i]));
    }
    return copy;
  }
  struct Convolution {
    Tensor weight, bias;
  };
  Convolution read(const ConvLayout& layout) const {
    const Shape shape{layout.out, layout.in, layout.kernel[0], layout.kernel[1], layout.kernel[2]};
    return {get(layout.name + ".weight", layout.weight_shape(), shape),
            get(layout.name + ".bias", {layout.out}, {layout.out})};
  }
  Tensor gamma(const NormLayout& layout) const {
    return get(layout.name + ".gamma", layout.gamma_shape(), {layout.channels});
  }

  ConvWeights make(const char* kind, FrameConvProblem problem, const TensorView& weight_view,
                   const TensorView& bias_view) const {
    problem.out_channels = weight_view.extent(0);
    problem.in_channels = weight_view.extent(1);
    problem.frames = weight_view.extent(2);
    problem.kernel = {weight_view.extent(3), weight_view.extent(4)};
    problem.dtype = dtype_;
    if (problem.algorithm == kernels::ConvAlgorithm::kAuto) problem.algorithm = algorithm_;
    problem.implementation = implementation_;
    return {FrameConvolution(problem, weight_view, bias_view),
            fmt::format("vae.{} {}×{}×{} {}→{}", kind, problem.frames, problem.kernel[0], problem.kernel[1],
                        problem.in_channels, problem.out_channels),
            1};
  }

  // Output of the same size: 3×3 starts in the border, 1×1 inside it.
  ConvWeights causal(const ConvLayout& layout) const { return part(layout, read(layout), 0, layout.out); }

  // The first or the last of a coder.
  ConvWeights end(const ConvLayout& layout) const {
    FrameConvProblem problem;
    problem.algorithm = algorithm_of_ends(algorithm_);
    const Convolution whole = read(layout);
    return make("conv", problem, whole.weight, whole.bias);
  }

  // The output channels [begin, end) of a convolution.
  ConvWeights part(const ConvLayout& layout, const Convolution& whole, int64_t begin, int64_t end) const {
    FrameConvProblem problem;
    if (layout.kernel[1] == 1) problem.origin = {1, 1};
    return make("conv", problem, whole.weight.view().slice(0, begin, end), whole.bias.view().slice(0, begin, end));
  }

  // The input has no border.
  ConvWeights unbordered(const ConvLayout& layout) const {
    const Convolution whole = read(layout);
    ConvWeights conv = make("conv", {}, whole.weight, whole.bias);
    conv.border = 0;
    return conv;
  }

  // A row below, a column on the right, then every other one.
  ConvWeights half_size(const ConvLayout& layout) const {
    FrameConvProblem problem;
    problem.origin = {1, 1};
    problem.stride = 2;
    const Convolution whole = read(layout);
    return make("downsample", problem, whole.weight, whole.bias);
  }

  // The 2×2 weights for the pixels at (row, column) of each 2×2 cell. Of the three taps on an axis, those at −1, 0, 1,
  // the first pixel of a cell sees the input before its own, its own, its own; the second its own, its own, the next.
  ConvWeights cell(const ConvLayout& layout, const Convolution& whole, int64_t row, int64_t column) const {
    ZT_CHECK(layout.kernel[1] == 3 && layout.kernel[2] == 3);
    const auto input_of = [](int64_t place, int64_t tap) { return (place + tap + 1) / 2 - place; };  // 0 or 1
    Tensor sums(DType::kF32, {layout.out, layout.in, 1, 2, 2});
    for (int64_t filter = 0; filter < layout.out * layout.in; ++filter) {
      double sum[2][2] = {};
      for (int64_t tap = 0; tap < 9; ++tap) {
        sum[input_of(row, tap / 3)][input_of(column, tap % 3)] += whole.weight.data<float>()[filter * 9 + tap];
      }
      for (int64_t i = 0; i < 4; ++i) sums.data<float>()[filter * 4 + i] = static_cast<float>(sum[i / 2][i % 2]);
    }
    FrameConvProblem problem;
    problem.origin = {row, column};
    return make("upsample", problem, sums, whole.bias);
  }

  ResidualWeights residual(const ResidualLayout& layout) const {
    ResidualWeights block{gamma(layout.norm1), gamma(layout.norm2), causal(layout.conv1), causal(layout.conv2), {}};
    if (layout.shortcut) block.shortcut.emplace(causal(*layout.shortcut));
    return block;
  }

  AttentionWeights attention(const AttentionLayout& layout) const {
    const int64_t channels = layout.proj.in;
    const Convolution qkv = read(layout.to_qkv);
    return {gamma(layout.norm), part(layout.to_qkv, qkv, 0, channels), part(layout.to_qkv, qkv, channels, 3 * channels),
            unbordered(layout.proj)};
  }

  UpsampleWeights up(const ResampleLayout& layout) const {
    UpsampleWeights result;
    const Convolution spatial = read(layout.spatial);
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t column = 0; column < 2; ++column) result.cells.push_back(cell(layout.spatial, spatial, row, column));
    }
    if (layout.time) {
      const int64_t half = layout.time->out / 2;
      const Convolution time = read(*layout.time);
      result.time.push_back(part(*layout.time, time, 0, half));
      result.time.push_back(part(*layout.time, time, half, 2 * half));
    }
    return result;
  }

  DownsampleWeights down(const ResampleLayout& layout) const {
    DownsampleWeights result{half_size(layout.spatial), {}};
    if (layout.time) result.time.emplace(causal(*layout.time));
    return result;
  }

  const io::WeightSource& source_;
  DType dtype_;
  kernels::ConvAlgorithm algorithm_;
  const std::string& implementation_;
};

}  // namespace

kernels::ConvAlgorithm algorithm_of_ends(kernels::ConvAlgorithm algorithm) {
  return algorithm == kernels::ConvAlgorithm::kAuto ? kernels::ConvAlgorithm::kDirect : algorithm;
}

VaeWeights::VaeWeights(const VaeConfig& config, const io::WeightSource& source, VaeParts parts, DType dtype,
                       kernels::ConvAlgorithm algorithm, const std::string& implementation)
    : config_(config), dtype_(dtype) {
  const Loader loader(source, dtype, algorithm, implementation);
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
