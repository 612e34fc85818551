// The layers of both halves of the VAE with their state over time: what each keeps of the past and how it takes the
// next frames. Every tensor is channels last, [frames, H, W, C]. Which layer follows which is the business of
// vae_decoder.cpp and vae_encoder.cpp.
//
// start() begins a clip. A layer may be handed any number of frames up to the `max_frames` it was started with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/arena.h"
#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "models/wan/vae/frame_history.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// What running needs: the rank's stream, and the VAE's own memory for values between layers.
struct VaeRun {
  Stream& stream;
  Arena& arena;
  TensorView frames(int64_t count, int64_t height, int64_t width, int64_t channels) const {
    return arena.tensor(DType::kF32, {count, height, width, channels});
  }
};

struct FrameSize {
  int64_t height = 0;
  int64_t width = 0;
};

// A 3×3×3 convolution that sees two past frames, zeros before the first.
class CausalConv {
 public:
  explicit CausalConv(const kernels::Convolution& convolution) : convolution_(convolution) {}
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  TensorView input(int64_t frames) const { return history_.incoming(frames); }  // to be written before run()
  void run(Stream& stream, int64_t frames, const TensorView& out, const TensorView& add = {});
  size_t bytes() const { return history_.bytes(); }

 private:
  const kernels::Convolution& convolution_;
  FrameHistory history_;
};

// out = SiLU(x / ‖x‖·√C·gamma) over channels.
void norm_silu(Stream& stream, const TensorView& x, const TensorView& gamma, const TensorView& out);

class ResidualBlock {
 public:
  explicit ResidualBlock(const ResidualWeights& weights);
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  bool changes_channels() const { return weights_.shortcut.has_value(); }
  int64_t out_channels() const { return weights_.conv2.problem().out_channels; }
  void run(const VaeRun& run, const TensorView& x, const TensorView& out);  // out may be x if the channels stay
  size_t bytes() const { return conv1_.bytes() + conv2_.bytes(); }

 private:
  const ResidualWeights& weights_;
  CausalConv conv1_, conv2_;
};

// Residual, attention within each frame, residual; in place.
class MiddleBlock {
 public:
  explicit MiddleBlock(const CoderWeights& weights);
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  void run(const VaeRun& run, const TensorView& x);
  size_t bytes() const { return first_.bytes() + last_.bytes(); }

 private:
  void attend(const VaeRun& run, const TensorView& frame);

  const AttentionWeights& attention_weights_;
  ResidualBlock first_, last_;
  std::optional<kernels::FlashAttention> attention_;
};

// The residual blocks of one level.
class ResidualChain {
 public:
  explicit ResidualChain(const std::vector<ResidualWeights>& weights);
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  int64_t out_channels() const { return blocks_.back().out_channels(); }
  // Works in x where it can. The result is in `out` if one is given, else in x or in new memory of the arena. `after`
  // sees each block's output.
  template <typename After>
  TensorView run(const VaeRun& run, TensorView x, const TensorView& out, After&& after) {
    for (ResidualBlock& block : blocks_) {
      TensorView y = x;
      if (out && &block == &blocks_.back()) {
        y = out;
      } else if (block.changes_channels()) {
        y = run.frames(x.extent(0), x.extent(1), x.extent(2), block.out_channels());
      }
      block.run(run, x, y);
      x = y;
      after(x);
    }
    return x;
  }
  size_t bytes() const;

 private:
  std::vector<ResidualBlock> blocks_;
};

// Twice the height and width, and twice the frames if the weights say so; the first frame of a clip stays one and has
// no part in the history (wan.md section 4.4).
class Upsampler {
 public:
  explicit Upsampler(const ResampleWeights& weights) : weights_(weights) {}
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  int64_t out_channels() const { return weights_.spatial.problem().out_channels; }
  // Where the frames are best put before run(); null where any place is as good.
  TensorView input(int64_t frames) const;
  // x is input(), where that is not null. next(y) takes the results in order, at most `piece` frames at a time; y is
  // next's to overwrite and valid until it returns.
  template <typename Next>
  void run(const VaeRun& run, const TensorView& x, int64_t piece, Next&& next) {
    if (!makes_two_of_one()) {
      first_ = false;
      enlarge(run, x, piece, next);
      return;
    }
    const TensorView window = history_.append(x.extent(0));
    for (int64_t frame = 0; frame < x.extent(0); ++frame) {
      const Arena::Scope scope(run.arena);
      enlarge(run, two_of_one(run, window.slice(0, frame, frame + 3)), piece, next);
    }
    history_.drop(run.stream, x.extent(0));
  }
  size_t bytes() const { return history_.bytes(); }

 private:
  bool makes_two_of_one() const { return !weights_.time.empty() && !first_; }
  TensorView two_of_one(const VaeRun& run, const TensorView& window /* two past frames and this */);
  void enlarge(const VaeRun& run, const TensorView& x, const TensorView& out);  // in space
  template <typename Next>
  void enlarge(const VaeRun& run, const TensorView& x, int64_t piece, Next& next) {
    for (int64_t begin = 0; begin < x.extent(0); begin += piece) {
      const Arena::Scope scope(run.arena);
      const int64_t count = std::min(piece, x.extent(0) - begin);
      const TensorView y = run.frames(count, 2 * x.extent(1), 2 * x.extent(2), out_channels());
      enlarge(run, x.slice(0, begin, begin + count), y);
      next(y);
    }
  }

  const ResampleWeights& weights_;
  FrameHistory history_;
  bool first_ = true;
};

// Half the height and width (rounded down), and every other frame if the weights say so: of the first frame comes one,
// then one of every two.
class Downsampler {
 public:
  explicit Downsampler(const ResampleWeights& weights) : weights_(weights) {}
  void start(Stream& stream, int64_t max_frames, FrameSize size);
  bool halves_frames() const { return !weights_.time.empty(); }
  static FrameSize out_size(FrameSize size) { return {size.height / 2, size.width / 2}; }
  // The frames that x completes, in memory of the arena; none where a partner is still to come. The first frame of a
  // clip must come alone.
  TensorView run(const VaeRun& run, const TensorView& x);
  size_t bytes() const { return history_.bytes(); }

 private:
  const ResampleWeights& weights_;
  FrameHistory history_;
};

}  // namespace zoetrope::wan
