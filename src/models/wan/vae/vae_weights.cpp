#include "models/wan/vae/vae_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/index_range.h"
#include "device/thread_team.h"
#include "io/weights/weight_loader.h"
#include "tensor/dispatch.h"
#include "tensor/half.h"

namespace zoetrope::wan {
namespace {

using kernels::FrameConvolution;
using kernels::FrameConvProblem;

constexpr int64_t kAlignment = 64;  // of a convolution's packed weights

// A tensor of any stored dtype as float32, rounded to `dtype`.
Tensor rounded(const TensorView& stored, DType dtype, const Shape& shape) {
  Tensor values = Tensor::uninitialized(DType::kF32, shape);
  with_stored_type(stored.dtype(), "a tensor of the VAE", [&](auto tag) {
    const auto* from = stored.data<typename decltype(tag)::type>();
    for (int64_t i = 0; i < values.size(); ++i) values.data<float>()[i] = from_float<float>(to_float(from[i]));
  });
  if (dtype == DType::kBF16) {
    for (float& value : std::span(values.data<float>(), static_cast<size_t>(values.size())))
      value = to_float(to_bfloat16(value));
  }
  return values;
}

// Of 3×3 taps, [O, I, 1, 3, 3], the 2×2 for the pixels at (row, column) of each 2×2 cell. Of the three taps on an axis,
// those at −1, 0, 1, the first pixel of a cell sees the input before its own, its own, its own; the second its own, its
// own, the next.
Tensor cell_weights(const TensorView& taps, int64_t row, int64_t column) {
  const auto input_of = [](int64_t place, int64_t tap) { return (place + tap + 1) / 2 - place; };  // 0 or 1
  const int64_t filters = taps.extent(0) * taps.extent(1);
  Tensor sums(DType::kF32, {taps.extent(0), taps.extent(1), 1, 2, 2});
  for (int64_t filter = 0; filter < filters; ++filter) {
    double sum[2][2] = {};
    for (int64_t tap = 0; tap < 9; ++tap)
      sum[input_of(row, tap / 3)][input_of(column, tap % 3)] += taps.data<float>()[filter * 9 + tap];
    for (int64_t i = 0; i < 4; ++i) sums.data<float>()[filter * 4 + i] = static_cast<float>(sum[i / 2][i % 2]);
  }
  return sums;
}

// Convolutions get their weights when the WeightLoader has run.
class Loader {
 public:
  Loader(const io::Weights& source, io::WeightLoader& loader, const VaeUse& use)
      : source_(source), loader_(loader), use_(use) {}

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
  // What is made of a stored convolution: of its output channels `outs`, or of all of them the weights of a cell.
  struct Part {
    std::shared_ptr<FrameConvolution> op;
    IndexRange outs;
    std::optional<std::array<int64_t, 2>> cell = {};
    size_t begin = 0;  // of its packed weights
  };

  Tensor small(const std::string& name, const Shape& stored, int64_t count) const {
    return rounded(source_.get(name, stored, DType::kF32), use_.dtype, {count});
  }
  Tensor bias(const ConvLayout& layout) const { return small(layout.name + ".bias", {layout.out}, layout.out); }
  Tensor gamma(const NormLayout& layout) const {
    return small(layout.name + ".gamma", layout.gamma_shape(), layout.channels);
  }

  // One packed weight of a stored tensor. A single convolution is packed by rows, on several threads.
  void load(const ConvLayout& layout, std::vector<Part> parts) const {
    io::PackedWeight weight;
    weight.names = {layout.name + ".weight"};
    weight.shapes = {layout.weight_shape()};
    for (Part& part : parts) {
      part.begin = static_cast<size_t>(round_up(static_cast<int64_t>(weight.bytes), kAlignment));
      weight.bytes = part.begin + part.op->weight_bytes();
      const FrameConvProblem& p = part.op->problem();
      weight.layout += fmt::format("{} {} {} {} {}; ", part.op->implementation(), dtype_name(p.dtype), p.bf16_weights,
                                   part.op->algorithm() == kernels::ConvAlgorithm::kWinograd, p.kernel[1]);
    }
    if (parts.size() == 1) weight.row_step = parts.front().op->weight_step();
    weight.pack = [parts, kernel = layout.kernel, in = layout.in, dtype = use_.dtype](
                      std::span<const TensorView> stored, int64_t first, std::byte* out) {
      const Shape shape{stored[0].extent(0), in, kernel[0], kernel[1], kernel[2]};
      const Tensor rows = rounded(stored[0], dtype, shape);
      for (const Part& part : parts) {
        if (part.cell) part.op->pack(cell_weights(rows, part.cell->at(0), part.cell->at(1)), 0, out + part.begin);
        else if (parts.size() == 1) part.op->pack(rows, first, out);
        else part.op->pack(rows.view().slice(0, part.outs.begin, part.outs.end), 0, out + part.begin);
      }
    };
    loader_.add(std::move(weight), [parts](const std::byte* at) {
      for (const Part& part : parts) part.op->use(at + part.begin);
    });
  }

  std::shared_ptr<FrameConvolution> plan(const ConvLayout& layout, FrameConvProblem problem,
                                         const TensorView& bias) const {
    problem.in_channels = layout.in;
    problem.out_channels = bias.size();
    problem.frames = layout.kernel[0];
    problem.dtype = use_.dtype;
    if (problem.algorithm == kernels::ConvAlgorithm::kAuto) problem.algorithm = use_.algorithm;
    problem.implementation = use_.implementation;
    return std::make_shared<FrameConvolution>(problem, bias);
  }
  static ConvWeights labelled(const char* kind, std::shared_ptr<const FrameConvolution> op) {
    const FrameConvProblem& p = op->problem();
    std::string label =
        fmt::format("vae.{} {}×{}×{} {}→{}", kind, p.frames, p.kernel[0], p.kernel[1], p.in_channels, p.out_channels);
    return {std::move(op), std::move(label), 1};
  }

  // A convolution for each range of the stored one's output channels.
  std::vector<ConvWeights> split(const char* kind, const ConvLayout& layout, FrameConvProblem problem,
                                 std::initializer_list<IndexRange> ranges) const {
    const Tensor all = bias(layout);
    problem.kernel = {layout.kernel[1], layout.kernel[2]};
    problem.bf16_weights = use_.dtype == DType::kBF16;
    std::vector<Part> parts;
    std::vector<ConvWeights> made;
    for (const IndexRange outs : ranges) {
      parts.push_back({plan(layout, problem, all.view().slice(0, outs.begin, outs.end)), outs});
      made.push_back(labelled(kind, parts.back().op));
    }
    load(layout, std::move(parts));
    return made;
  }
  ConvWeights whole(const char* kind, const ConvLayout& layout, const FrameConvProblem& problem) const {
    return std::move(split(kind, layout, problem, {{0, layout.out}}).front());
  }

  // Output of the same size: 3×3 starts in the border, 1×1 inside it.
  static FrameConvProblem same_size(const ConvLayout& layout) {
    FrameConvProblem problem;
    if (layout.kernel[1] == 1) problem.origin = {1, 1};
    return problem;
  }
  ConvWeights causal(const ConvLayout& layout) const { return whole("conv", layout, same_size(layout)); }

  // The first or the last of a coder.
  ConvWeights end(const ConvLayout& layout) const {
    FrameConvProblem problem;
    problem.algorithm = algorithm_of_ends(use_.algorithm);
    return whole("conv", layout, problem);
  }

  // The input has no border.
  ConvWeights unbordered(const ConvLayout& layout) const {
    ConvWeights conv = whole("conv", layout, {});
    conv.border = 0;
    return conv;
  }

  // A row below, a column on the right, then every other one.
  ConvWeights half_size(const ConvLayout& layout) const {
    FrameConvProblem problem;
    problem.origin = {1, 1};
    problem.stride = 2;
    return whole("downsample", layout, problem);
  }

  // Sums of taps are not exact in bf16.
  std::vector<ConvWeights> cells(const ConvLayout& layout) const {
    ZT_CHECK(layout.kernel[1] == 3 && layout.kernel[2] == 3);
    const Tensor biases = bias(layout);
    std::vector<Part> parts;
    std::vector<ConvWeights> made;
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t column = 0; column < 2; ++column) {
        FrameConvProblem problem;
        problem.origin = {row, column};
        problem.kernel = {2, 2};
        parts.push_back({plan(layout, problem, biases), {0, layout.out}, std::array{row, column}});
        made.push_back(labelled("upsample", parts.back().op));
      }
    }
    load(layout, std::move(parts));
    return made;
  }

  ResidualWeights residual(const ResidualLayout& layout) const {
    ResidualWeights block{gamma(layout.norm1), gamma(layout.norm2), causal(layout.conv1), causal(layout.conv2), {}};
    if (layout.shortcut) block.shortcut.emplace(causal(*layout.shortcut));
    return block;
  }

  AttentionWeights attention(const AttentionLayout& layout) const {
    const int64_t channels = layout.proj.in;
    std::vector<ConvWeights> qkv =
        split("conv", layout.to_qkv, same_size(layout.to_qkv), {{0, channels}, {channels, 3 * channels}});
    return {gamma(layout.norm), std::move(qkv[0]), std::move(qkv[1]), unbordered(layout.proj)};
  }

  UpsampleWeights up(const ResampleLayout& layout) const {
    UpsampleWeights result{cells(layout.spatial), {}};
    if (layout.time) {
      const int64_t half = layout.time->out / 2;
      result.time = split("conv", *layout.time, same_size(*layout.time), {{0, half}, {half, 2 * half}});
    }
    return result;
  }

  DownsampleWeights down(const ResampleLayout& layout) const {
    DownsampleWeights result{half_size(layout.spatial), {}};
    if (layout.time) result.time.emplace(causal(*layout.time));
    return result;
  }

  const io::Weights& source_;
  io::WeightLoader& loader_;
  const VaeUse& use_;
};

}  // namespace

kernels::ConvAlgorithm algorithm_of_ends(kernels::ConvAlgorithm algorithm) {
  return algorithm == kernels::ConvAlgorithm::kAuto ? kernels::ConvAlgorithm::kDirect : algorithm;
}

VaeWeights::VaeWeights(const VaeConfig& config, std::shared_ptr<const io::Weights> source, VaeUse use, int threads,
                       const std::function<void()>& tick)
    : config_(config), use_(std::move(use)), source_(std::move(source)) {
  io::WeightLoader loader(source_);
  const Loader reader(*source_, loader, use_);
  if (use_.parts != VaeParts::kDecoder)
    encoder_ = std::make_unique<const CoderWeights>(reader.coder(encoder_layout(config)));
  if (use_.parts != VaeParts::kEncoder)
    decoder_ = std::make_unique<const CoderWeights>(reader.coder(decoder_layout(config)));
  loader.run(threads > 0 ? threads : available_threads(), [&](int64_t, int64_t) {
    if (tick) tick();
  });
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
