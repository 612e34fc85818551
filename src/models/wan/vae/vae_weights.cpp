#include "models/wan/vae/vae_weights.h"

#include <utility>

#include "base/error.h"

namespace zoetrope::wan {
namespace {

using kernels::Convolution;
using kernels::ConvProblem;

class Loader {
 public:
  explicit Loader(const io::Weights& weights) : weights_(weights) {}

  TensorView gamma(const NormLayout& layout) const {
    return get(layout.name + ".gamma", layout.gamma_shape()).reshape({layout.channels});
  }

  // Zero padding keeps height and width; history in time is put in front by the caller.
  Convolution same_size(const ConvLayout& layout) const {
    ConvProblem problem = plain(layout);
    problem.pad_before = problem.pad_after = {0, layout.kernel[1] / 2, layout.kernel[2] / 2};
    return make(layout, problem);
  }

  // A row below, a column on the right, then every other one.
  Convolution half_size(const ConvLayout& layout) const {
    ConvProblem problem = plain(layout);
    problem.stride = {1, 2, 2};
    problem.pad_after = {0, 1, 1};
    return make(layout, problem);
  }

  Convolution half_frames(const ConvLayout& layout) const {
    ConvProblem problem = plain(layout);
    problem.stride = {2, 1, 1};
    return make(layout, problem);
  }

  // Half of the output channels: those of the even or of the odd frames.
  Convolution every_other_frame(const ConvLayout& layout, int64_t which) const {
    ConvProblem problem = plain(layout);
    problem.out_channels /= 2;
    const int64_t begin = which * problem.out_channels, end = begin + problem.out_channels;
    const TensorView weight = get(layout.name + ".weight", layout.weight_shape());
    const TensorView bias = get(layout.name + ".bias", {layout.out});
    return {problem, weight.slice(0, begin, end), bias.slice(0, begin, end)};
  }

  ResidualWeights residual(const ResidualLayout& layout) const {
    ResidualWeights block{
        gamma(layout.norm1), gamma(layout.norm2), same_size(layout.conv1), same_size(layout.conv2), {}};
    if (layout.shortcut) block.shortcut.emplace(same_size(*layout.shortcut));
    return block;
  }

  AttentionWeights attention(const AttentionLayout& layout) const {
    return {gamma(layout.norm), same_size(layout.to_qkv), same_size(layout.proj)};
  }

  ResampleWeights up(const ResampleLayout& layout) const {
    ResampleWeights resample{same_size(layout.spatial), {}};
    if (layout.time) {
      resample.time.push_back(every_other_frame(*layout.time, 0));
      resample.time.push_back(every_other_frame(*layout.time, 1));
    }
    return resample;
  }

  ResampleWeights down(const ResampleLayout& layout) const {
    ResampleWeights resample{half_size(layout.spatial), {}};
    if (layout.time) resample.time.push_back(half_frames(*layout.time));
    return resample;
  }

  template <typename Resample>
  std::unique_ptr<const CoderWeights> coder(const CoderLayout& layout, Resample resample) const {
    CoderWeights weights{layout,
                         same_size(layout.in),
                         residual(layout.middle_first),
                         attention(layout.middle_attention),
                         residual(layout.middle_last),
                         {},
                         gamma(layout.norm_out),
                         same_size(layout.out),
                         same_size(layout.quant)};
    for (const StageLayout& stage_layout : layout.stages) {
      StageWeights stage;
      for (const ResidualLayout& block : stage_layout.resnets) stage.resnets.push_back(residual(block));
      if (stage_layout.resample) stage.resample.emplace(resample(*stage_layout.resample));
      weights.stages.push_back(std::move(stage));
    }
    return std::make_unique<const CoderWeights>(std::move(weights));
  }

 private:
  static ConvProblem plain(const ConvLayout& layout) {
    ConvProblem problem;
    problem.in_channels = layout.in;
    problem.out_channels = layout.out;
    problem.kernel = layout.kernel;
    return problem;
  }

  TensorView get(const std::string& name, const Shape& shape) const { return weights_.get(name, shape, DType::kF32); }

  Convolution make(const ConvLayout& layout, const ConvProblem& problem) const {
    return {problem, get(layout.name + ".weight", layout.weight_shape()), get(layout.name + ".bias", {layout.out})};
  }

  const io::Weights& weights_;
};

}  // namespace

VaeWeights::VaeWeights(const VaeConfig& config, std::shared_ptr<const io::Weights> weights, VaeParts parts)
    : config_(config), source_(std::move(weights)) {
  const Loader load(*source_);
  if (parts != VaeParts::kDecoder) {
    encoder_ = load.coder(encoder_layout(config), [&](const ResampleLayout& layout) { return load.down(layout); });
  }
  if (parts != VaeParts::kEncoder) {
    decoder_ = load.coder(decoder_layout(config), [&](const ResampleLayout& layout) { return load.up(layout); });
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
