#include "models/wan/vae/vae_blocks.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

TensorView positions(const TensorView& x) {  // [1, H, W, C] as [H·W, C]
  return x.reshape({x.size() / x.extent(-1), x.extent(-1)});
}

void normalize(const VaeRun& run, const TensorView& x, const TensorView& gamma, bool silu, const TensorView& out) {
  const trace::Span span(run.stream.lane(), "vae.norm");
  kernels::ChannelNorm norm;
  norm.x = positions(x);
  norm.gamma = gamma;
  norm.silu = silu;
  norm.out = positions(out);
  kernels::channel_norm(run.stream, norm);
}

void convolve(const VaeRun& run, const kernels::Convolution& convolution, const char* name, const TensorView& x,
              const TensorView& out, const TensorView& add = {}) {
  const trace::Span span(run.stream.lane(), name);
  convolution.run(run.stream, x, out, add);
}

}  // namespace

void norm_silu(const VaeRun& run, const TensorView& x, const TensorView& gamma, const TensorView& out) {
  normalize(run, x, gamma, true, out);
}

// The sum is taken in the output's memory: with a second operand elsewhere oneDNN falls back to kernels at half the
// speed, which want the weights in yet another layout.
void convolve_taps(const VaeRun& run, const TapWeights& taps, const std::array<const Frame*, 3>& frames,
                   const TensorView& out, Onto onto) {
  ZT_CHECK(taps.taps.size() == frames.size() && *frames.back());
  TensorView add = onto == Onto::kOut ? out : TensorView{};
  for (size_t tap = frames.size(); tap-- > 0 && *frames[tap];) {
    convolve(run, taps.taps[tap], "vae.conv", frames[tap]->view(), out, add);
    add = out;
  }
}

void PastFrames::push(Frame present) {
  older_ = std::move(newer_);
  newer_ = std::move(present);
}

void CausalConv::run(const VaeRun& run, Frame x, const TensorView& out, Onto onto) {
  convolve_taps(run, weights_, past_.with(x), out, onto);
  past_.push(std::move(x));
}

ResidualBlock::ResidualBlock(const ResidualWeights& weights)
    : weights_(weights), conv1_(weights.conv1), conv2_(weights.conv2) {}

void ResidualBlock::start() {
  conv1_.start();
  conv2_.start();
}

Frame ResidualBlock::run(const VaeRun& run, Frame x) {
  Frame normed = run.like(x, x.channels());
  norm_silu(run, x.view(), weights_.gamma1, normed.view());
  Frame hidden = run.like(x, out_channels());
  conv1_.run(run, std::move(normed), hidden.view());
  norm_silu(run, hidden.view(), weights_.gamma2, hidden.view());
  if (weights_.shortcut) {
    Frame skip = run.like(x, out_channels());
    convolve(run, *weights_.shortcut, "vae.conv1x1", x.view(), skip.view());
    x = std::move(skip);
  }
  conv2_.run(run, std::move(hidden), x.view(), Onto::kOut);
  return x;
}

MiddleBlock::MiddleBlock(const CoderWeights& weights)
    : attention_(weights.middle_attention), first_(weights.middle_first), last_(weights.middle_last) {}

void MiddleBlock::start() {
  first_.start();
  last_.start();
}

Frame MiddleBlock::run(const VaeRun& run, Frame x) {
  x = first_.run(run, std::move(x));
  attend(run, x);
  return last_.run(run, std::move(x));
}

void MiddleBlock::attend(const VaeRun& run, const Frame& x) {
  const int64_t tokens = x.height() * x.width(), channels = x.channels();
  const Frame mixed = run.like(x, channels), qkv = run.like(x, 3 * channels);
  normalize(run, x.view(), attention_.gamma, false, mixed.view());
  convolve(run, attention_.to_qkv, "vae.conv1x1", mixed.view(), qkv.view());
  const auto part = [&](int64_t index) {  // [1, tokens, 1, C]
    return positions(qkv.view())
        .slice(1, index * channels, (index + 1) * channels)
        .split_axis(0, 1, tokens)
        .split_axis(2, 1, channels);
  };
  kernels::FlashProblem problem;
  problem.query_tokens = problem.key_tokens = tokens;
  problem.head_dim = channels;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(channels));
  kernels::KeyBlock keys;
  keys.k = part(1);
  keys.v = part(2);
  {
    const trace::Span span(run.stream.lane(), "vae.attention");
    kernels::FlashAttention(problem).attend(run.stream, part(0), keys, mixed.view().reshape({1, tokens, 1, channels}));
  }
  convolve(run, attention_.proj, "vae.conv1x1", mixed.view(), x.view(), x.view());
}

void Upsampler::start() {
  past_.start();
  first_ = true;
}

void Upsampler::run(const VaeRun& run, Frame x, const Next& next) {
  if (weights_.time.empty() || std::exchange(first_, false)) {
    Frame large = enlarge(run, x);
    x.release();  // what follows may need the memory
    next(std::move(large));
    return;
  }
  for (const TapWeights& parity : weights_.time) {
    Frame frame = run.like(x, x.channels());
    convolve_taps(run, parity, past_.with(x), frame.view(), Onto::kNothing);
    Frame large = enlarge(run, frame);
    frame.release();
    next(std::move(large));
  }
  past_.push(std::move(x));
}

Frame Upsampler::enlarge(const VaeRun& run, const Frame& x) const {
  const int64_t channels = weights_.cells.front().problem().out_channels;
  Frame large = run.pool.take(2 * x.height(), 2 * x.width(), channels);
  const Frame cell = run.like(x, channels);
  for (int64_t index = 0; index < 4; ++index) {
    convolve(run, weights_.cells[static_cast<size_t>(index)], "vae.upsample", x.view(), cell.view());
    const trace::Span span(run.stream.lane(), "vae.interleave");
    const TensorView rows = large.view().select(0, 0).split_axis(0, x.height(), 2).select(1, index / 2);
    copy(run.stream, rows.split_axis(1, x.width(), 2).select(2, index % 2), cell.view().select(0, 0));
  }
  return large;
}

void Downsampler::start() {
  last_ = {};
  waiting_ = {};
}

Frame Downsampler::run(const VaeRun& run, Frame x) {
  Frame small = run.pool.take(x.height() / 2, x.width() / 2, x.channels());
  convolve(run, weights_.spatial, "vae.downsample", x.view(), small.view());
  if (!weights_.time) return small;
  if (!last_) {
    last_ = run.like(small, small.channels());  // a copy, for the next layer works in place
    copy(run.stream, last_.view(), small.view());
    return small;
  }
  if (!waiting_) {
    waiting_ = std::move(small);
    return {};
  }
  Frame one = run.like(small, small.channels());
  convolve_taps(run, *weights_.time, {&last_, &waiting_, &small}, one.view(), Onto::kNothing);
  last_ = std::move(small);
  waiting_ = {};
  return one;
}

}  // namespace zoetrope::wan
