#include "models/wan/vae/vae_blocks.h"

#include <cmath>

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kPastFrames = 2;  // of a kernel of three

TensorView positions(const TensorView& x) {  // [T, H, W, C] as [T·H·W, C]
  return x.reshape({x.size() / x.extent(-1), x.extent(-1)});
}

void normalize(Stream& stream, const TensorView& x, const TensorView& gamma, bool silu, const TensorView& out) {
  const trace::Span span(stream.lane(), "vae.norm");
  kernels::ChannelNorm norm;
  norm.x = positions(x);
  norm.gamma = gamma;
  norm.silu = silu;
  norm.out = positions(out);
  kernels::channel_norm(stream, norm);
}

void convolve(Stream& stream, const kernels::Convolution& convolution, const char* name, const TensorView& x,
              const TensorView& out, const TensorView& add = {}) {
  const trace::Span span(stream.lane(), name);
  convolution.run(stream, x, out, add);
}

}  // namespace

void norm_silu(Stream& stream, const TensorView& x, const TensorView& gamma, const TensorView& out) {
  normalize(stream, x, gamma, true, out);
}

void CausalConv::start(Stream& stream, int64_t max_frames, FrameSize size) {
  history_.start(stream, kPastFrames + max_frames, kPastFrames, size.height, size.width,
                 convolution_.problem().in_channels);
}

void CausalConv::run(Stream& stream, int64_t frames, const TensorView& out, const TensorView& add) {
  convolve(stream, convolution_, "vae.conv3d", history_.append(frames), out, add);
  const trace::Span span(stream.lane(), "vae.history");
  history_.drop(stream, frames);
}

ResidualBlock::ResidualBlock(const ResidualWeights& weights)
    : weights_(weights), conv1_(weights.conv1), conv2_(weights.conv2) {}

void ResidualBlock::start(Stream& stream, int64_t max_frames, FrameSize size) {
  conv1_.start(stream, max_frames, size);
  conv2_.start(stream, max_frames, size);
}

void ResidualBlock::run(const VaeRun& run, const TensorView& x, const TensorView& out) {
  const Arena::Scope scope(run.arena);
  const int64_t frames = x.extent(0);
  norm_silu(run.stream, x, weights_.gamma1, conv1_.input(frames));
  const TensorView hidden = run.frames(frames, x.extent(1), x.extent(2), out_channels());
  conv1_.run(run.stream, frames, hidden);
  norm_silu(run.stream, hidden, weights_.gamma2, conv2_.input(frames));
  // The sum is taken in the output's memory: with a second operand oneDNN falls back to kernels at half the speed,
  // which want the weights in yet another layout. The copy costs a hundredth of the convolution.
  if (weights_.shortcut) {
    convolve(run.stream, *weights_.shortcut, "vae.conv1x1", x, out);
  } else if (out.raw() != x.raw()) {
    copy(run.stream, out, x);
  }
  conv2_.run(run.stream, frames, out, out);
}

MiddleBlock::MiddleBlock(const CoderWeights& weights)
    : attention_weights_(weights.middle_attention), first_(weights.middle_first), last_(weights.middle_last) {}

void MiddleBlock::start(Stream& stream, int64_t max_frames, FrameSize size) {
  first_.start(stream, max_frames, size);
  last_.start(stream, max_frames, size);
  kernels::FlashProblem problem;
  problem.query_tokens = problem.key_tokens = size.height * size.width;
  problem.head_dim = first_.out_channels();
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  attention_.emplace(problem);
}

void MiddleBlock::run(const VaeRun& run, const TensorView& x) {
  first_.run(run, x, x);
  for (int64_t frame = 0; frame < x.extent(0); ++frame) attend(run, x.slice(0, frame, frame + 1));
  last_.run(run, x, x);
}

void MiddleBlock::attend(const VaeRun& run, const TensorView& frame) {
  const Arena::Scope scope(run.arena);
  const int64_t height = frame.extent(1), width = frame.extent(2), channels = frame.extent(3);
  const int64_t tokens = height * width;
  const TensorView normed = run.frames(1, height, width, channels);
  const TensorView qkv = run.frames(1, height, width, 3 * channels);
  normalize(run.stream, frame, attention_weights_.gamma, false, normed);
  convolve(run.stream, attention_weights_.to_qkv, "vae.conv1x1", normed, qkv);
  const auto part = [&](int64_t index) {
    return TensorView(qkv.data<float>() + index * channels, DType::kF32, {1, tokens, 1, channels},
                      {tokens * 3 * channels, 3 * channels, channels, 1}, qkv.device());
  };
  kernels::KeyBlock keys;
  keys.k = part(1);
  keys.v = part(2);
  {
    const trace::Span span(run.stream.lane(), "vae.attention");
    attention_->attend(run.stream, part(0), keys, normed.reshape({1, tokens, 1, channels}));
  }
  convolve(run.stream, attention_weights_.proj, "vae.conv1x1", normed, frame, frame);
}

ResidualChain::ResidualChain(const std::vector<ResidualWeights>& weights) {
  for (const ResidualWeights& block : weights) blocks_.emplace_back(block);
}

void ResidualChain::start(Stream& stream, int64_t max_frames, FrameSize size) {
  for (ResidualBlock& block : blocks_) block.start(stream, max_frames, size);
}

size_t ResidualChain::bytes() const {
  size_t bytes = 0;
  for (const ResidualBlock& block : blocks_) bytes += block.bytes();
  return bytes;
}

void Upsampler::start(Stream& stream, int64_t max_frames, FrameSize size) {
  first_ = true;
  if (weights_.time.empty()) return;
  history_.start(stream, kPastFrames + max_frames, kPastFrames, size.height, size.width,
                 weights_.time.front().problem().in_channels);
}

TensorView Upsampler::input(int64_t frames) const {
  return makes_two_of_one() ? history_.incoming(frames) : TensorView{};
}

TensorView Upsampler::two_of_one(const VaeRun& run, const TensorView& window) {
  const TensorView two = run.frames(2, window.extent(1), window.extent(2), window.extent(3));
  for (int64_t which = 0; which < 2; ++which) {
    convolve(run.stream, weights_.time[static_cast<size_t>(which)], "vae.time_conv", window,
             two.slice(0, which, which + 1));
  }
  return two;
}

void Upsampler::enlarge(const VaeRun& run, const TensorView& x, const TensorView& out) {
  const Arena::Scope scope(run.arena);
  const TensorView large = run.frames(x.extent(0), 2 * x.extent(1), 2 * x.extent(2), x.extent(3));
  {
    const trace::Span span(run.stream.lane(), "vae.nearest");
    kernels::upsample_nearest_2x(run.stream, x, large);
  }
  convolve(run.stream, weights_.spatial, "vae.conv2d", large, out);
}

void Downsampler::start(Stream& stream, int64_t max_frames, FrameSize size) {
  if (weights_.time.empty()) return;
  const FrameSize half = out_size(size);
  // Of three frames that make one, one stays; another may be waiting for its partner.
  history_.start(stream, kPastFrames + max_frames, 0, half.height, half.width,
                 weights_.time.front().problem().in_channels);
}

TensorView Downsampler::run(const VaeRun& run, const TensorView& x) {
  const FrameSize half = out_size({x.extent(1), x.extent(2)});
  const int64_t count = x.extent(0), channels = x.extent(3);
  const auto result = [&](int64_t frames) { return run.frames(frames, half.height, half.width, channels); };
  if (weights_.time.empty()) {
    const TensorView y = result(count);
    convolve(run.stream, weights_.spatial, "vae.conv2d", x, y);
    return y;
  }
  const bool first = history_.frames() == 0;
  convolve(run.stream, weights_.spatial, "vae.conv2d", x, history_.incoming(count));
  const TensorView window = history_.append(count);
  if (first) {
    ZT_CHECK(count == 1, "the first frame must come alone, not with {} others", count - 1);
    const TensorView y = result(1);  // a copy, for the next layer may work in place
    copy(run.stream, y, window);
    return y;
  }
  const int64_t pairs = (history_.frames() - 1) / 2;
  if (pairs == 0) return {};
  const TensorView y = result(pairs);
  convolve(run.stream, weights_.time.front(), "vae.time_conv", window.slice(0, 0, 1 + 2 * pairs), y);
  history_.drop(run.stream, 2 * pairs);
  return y;
}

}  // namespace zoetrope::wan
