// The layers of both halves of the VAE with their state over time: the past frames that each stores and how it takes
// the next. The order of the layers is in vae_decoder.cpp and vae_encoder.cpp.
//
// Between layers a frame travels as its plain values, which residual sums need, and as the next layer reads it: after
// that layer's norm and SiLU. The convolution that computes a frame writes both (frame_conv.h), so norms need no pass
// of their own, and a convolution over time stores the frames as it read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "zoetrope/tensor.h"

#include "models/wan/vae/vae_run.h"
#include "models/wan/vae/vae_shortcut.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// What the next layer reads: raw / ‖raw‖·√C·gamma, then SiLU if asked; the values themselves where gamma is empty.
struct NextNorm {
  TensorView gamma;
  bool silu = true;
};

struct Values {
  Frame raw;
  Frame normed;  // empty where the next layer reads raw
  explicit operator bool() const { return raw || normed; }
};

// One convolution with its span in the trace; `x` is where its inputs lie.
void convolve(const VaeRun& run, const ConvWeights& conv, std::span<const TensorView> inputs, const FrameRows& x,
              const kernels::FrameConvOutput& out);

// The two frames before the present one.
class PastFrames {
 public:
  void start() { older_ = {}, newer_ = {}; }
  // Oldest first, empty where the clip had not begun.
  std::array<TensorView, 3> with(const Frame& present) const;
  void push(Frame present);
  std::array<Frame*, 2> frames() { return {&older_, &newer_}; }  // oldest first

 private:
  Frame older_, newer_;
};

// Every PastFrames of a layer, in order.
using EachPast = std::function<void(PastFrames&)>;

// A 3×3×3 convolution, causal in time.
class CausalConv {
 public:
  explicit CausalConv(const ConvWeights& weights) : weights_(weights) {}
  void start() { past_.start(); }
  int64_t out_channels() const { return weights_.op->problem().out_channels; }
  void run(const VaeRun& run, Frame x, const kernels::FrameConvOutput& out);
  void each_past(const EachPast& visit) { visit(past_); }

 private:
  const ConvWeights& weights_;
  PastFrames past_;
};

class ResidualBlock {
 public:
  explicit ResidualBlock(const ResidualWeights& weights);
  void start();
  int64_t out_channels() const { return conv2_.out_channels(); }
  NextNorm first_norm() const { return {weights_.gamma1, true}; }
  // Raw values are written into x's memory if the number of channels stays, and dropped if `keep` says so. `more`, if
  // not empty, is added to the result.
  enum class Raw : uint8_t { kKeep, kDrop };
  Values run(const VaeRun& run, Values x, const NextNorm& next, Raw keep = Raw::kKeep, Frame more = {});
  void each_past(const EachPast& visit) {
    conv1_.each_past(visit);
    conv2_.each_past(visit);
  }

 private:
  const ResidualWeights& weights_;
  CausalConv conv1_, conv2_;
};

// Residual, attention within the frame, residual.
class MiddleBlock {
 public:
  explicit MiddleBlock(const CoderWeights& weights);
  void start();
  NextNorm first_norm() const { return first_.first_norm(); }
  Values run(const VaeRun& run, Values x, const NextNorm& next);
  void each_past(const EachPast& visit) {
    first_.each_past(visit);
    last_.each_past(visit);
  }

 private:
  Values attend(const VaeRun& run, Values x, const NextNorm& next);

  const AttentionWeights& attention_;
  ResidualBlock first_, last_;
};

// Doubles height and width, and also the frames if the weights say so; the first frame of a clip stays one and is not
// part of the history (wan.md section 4.4).
class Upsampler {
 public:
  using Shortcut = CopyShortcut;
  using Sink = std::function<void(Values)>;
  explicit Upsampler(const UpsampleWeights& weights) : weights_(weights) {}
  void start();
  // The sink takes the results in order. What `around` has taken is added to them; nullptr: nothing.
  void run(const VaeRun& run, Frame x, const NextNorm& next, const CopyShortcut* around, const Sink& sink);
  void each_past(const EachPast& visit) { visit(past_); }
  void go_on() { first_ = false; }  // the first frame of the clip has passed

 private:
  // As frame `frame` of those that one of the shortcut becomes.
  Values enlarge(const VaeRun& run, const Frame& x, const NextNorm& next, const CopyShortcut* around,
                 int64_t frame) const;

  const UpsampleWeights& weights_;
  PastFrames past_;
  bool first_ = true;
};

// Halves height and width (rounded down), and also the frames if the weights say so: the first frame gives one, then
// every two give one.
class Downsampler {
 public:
  using Shortcut = MeanShortcut;
  explicit Downsampler(const DownsampleWeights& weights) : weights_(weights) {}
  void start();
  // Empty where a partner is still to come. `more`, if it is not empty, is added to the result.
  Values run(const VaeRun& run, Frame x, const NextNorm& next, Frame more);

 private:
  Values reduce(const VaeRun& run, const Frame& x, const NextNorm& next, const Frame& more) const;

  const DownsampleWeights& weights_;
  Frame last_, waiting_;  // of the pair before; the first of a pair
};

// A stage of either half: residual blocks, then a change of size where the weights have one, and around them a shortcut
// where the layout has one.
template <typename Resampler>
struct Stage {
  template <typename ResampleWeights>
  Stage(const StageWeights& weights, const std::optional<ResampleWeights>& resample, const StageLayout& layout) {
    for (const ResidualWeights& block : weights.resnets) resnets.emplace_back(block);
    if (resample) resampler.emplace(*resample);
    if (layout.shortcut) shortcut.emplace(*layout.shortcut);
  }
  void start() {
    for (ResidualBlock& block : resnets) block.start();
    if (resampler) resampler->start();
    if (shortcut) shortcut->start();
  }
  // What follows block `index`: the next one, or a resampler, which reads plain values, or `after`.
  NextNorm norm_after(size_t index, const NextNorm& after) const {
    if (index + 1 < resnets.size()) return resnets[index + 1].first_norm();
    return resampler ? NextNorm{} : after;
  }
  std::vector<ResidualBlock> resnets;
  std::optional<Resampler> resampler;
  std::optional<typename Resampler::Shortcut> shortcut;
};

// Plain values for a probe: [C, 1, rows, W] F32, valid while `memory` is.
TensorView shown(const VaeRun& run, const Frame& frame, Tensor& memory);

}  // namespace zoetrope::wan
