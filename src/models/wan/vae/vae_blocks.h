// The layers of both halves of the VAE with their state over time: what each keeps of the past and how it takes the
// next frame. Every value is one frame, channels last, [1, H, W, C]. Which layer follows which is the business of
// vae_decoder.cpp and vae_encoder.cpp.
//
// A convolution over time is the sum of one 2-D convolution per tap, each on a frame of its own. Against one 3-D
// convolution over a window of three frames that is 9 % faster (oneDNN 2.6, 96 channels at 480×832 to 384 at 60×104),
// needs no contiguous window and so no copies, keeps two frames instead of three, and leaves out the taps that would
// see the zeros before a clip.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "models/wan/vae/frame_pool.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// What running needs: the rank's stream, and the memory for values.
struct VaeRun {
  Stream& stream;
  FramePool& pool;
  Frame like(const Frame& x, int64_t channels) const { return pool.take(x.height(), x.width(), channels); }
};

// out = SiLU(x / ‖x‖·√C·gamma) over channels; out may be x.
void norm_silu(const VaeRun& run, const TensorView& x, const TensorView& gamma, const TensorView& out);

// out = Σ tap·frame over the frames that exist (oldest first, empty where the clip had not begun), plus out if `add`.
enum class Onto : uint8_t { kNothing, kOut };
void convolve_taps(const VaeRun& run, const TapWeights& taps, const std::array<const Frame*, 3>& frames,
                   const TensorView& out, Onto onto);

// The two frames before the present one.
class PastFrames {
 public:
  void start() { older_ = {}, newer_ = {}; }
  std::array<const Frame*, 3> with(const Frame& present) const { return {&older_, &newer_, &present}; }
  void push(Frame present);

 private:
  Frame older_, newer_;
};

// A 3×3×3 convolution, causal in time.
class CausalConv {
 public:
  explicit CausalConv(const TapWeights& weights) : weights_(weights) {}
  void start() { past_.start(); }
  int64_t out_channels() const { return weights_.out_channels(); }
  void run(const VaeRun& run, Frame x, const TensorView& out, Onto onto = Onto::kNothing);

 private:
  const TapWeights& weights_;
  PastFrames past_;
};

class ResidualBlock {
 public:
  explicit ResidualBlock(const ResidualWeights& weights);
  void start();
  int64_t out_channels() const { return conv2_.out_channels(); }
  Frame run(const VaeRun& run, Frame x);  // in x's memory if the channels stay

 private:
  const ResidualWeights& weights_;
  CausalConv conv1_, conv2_;
};

// Residual, attention within the frame, residual.
class MiddleBlock {
 public:
  explicit MiddleBlock(const CoderWeights& weights);
  void start();
  Frame run(const VaeRun& run, Frame x);

 private:
  void attend(const VaeRun& run, const Frame& x);

  const AttentionWeights& attention_;
  ResidualBlock first_, last_;
};

// Twice the height and width, and two frames for one if the weights say so; the first frame of a clip stays one and has
// no part in the history (wan.md section 4.4).
class Upsampler {
 public:
  using Next = std::function<void(Frame)>;
  explicit Upsampler(const UpsampleWeights& weights) : weights_(weights) {}
  void start();
  void run(const VaeRun& run, Frame x, const Next& next);  // next takes the results in order

 private:
  Frame enlarge(const VaeRun& run, const Frame& x) const;

  const UpsampleWeights& weights_;
  PastFrames past_;
  bool first_ = true;
};

// Half the height and width (rounded down), and every other frame if the weights say so: of the first frame comes one,
// then one of every two.
class Downsampler {
 public:
  explicit Downsampler(const DownsampleWeights& weights) : weights_(weights) {}
  void start();
  Frame run(const VaeRun& run, Frame x);  // empty where a partner is still to come

 private:
  const DownsampleWeights& weights_;
  Frame last_, waiting_;  // of the pair before; the first of a pair
};

// A stage of either half: residual blocks, then a change of size where the weights have one.
template <typename Resampler>
struct Stage {
  template <typename ResampleWeights>
  Stage(const std::vector<ResidualWeights>& blocks, const std::optional<ResampleWeights>& resample) {
    for (const ResidualWeights& block : blocks) resnets.emplace_back(block);
    if (resample) resampler.emplace(*resample);
  }
  void start() {
    for (ResidualBlock& block : resnets) block.start();
    if (resampler) resampler->start();
  }
  std::vector<ResidualBlock> resnets;
  std::optional<Resampler> resampler;
};

}  // namespace zoetrope::wan
