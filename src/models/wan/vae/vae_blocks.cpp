#include "models/wan/vae/vae_blocks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "models/wan/vae/vae_cost.h"
#include "tensor/dispatch.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

using kernels::FrameConvOutput;

// For the trace: `x` is where the inputs lie.
double flops_of(const ConvWeights& conv, std::span<const TensorView> inputs, const FrameRows& x) {
  const kernels::FrameConvProblem& p = conv.op->problem();
  const auto frames = std::count_if(inputs.begin(), inputs.end(), [](const TensorView& t) { return bool(t); });
  const IndexRange rows{x.rows.begin / p.stride, x.rows.end / p.stride};
  return convolution_flops(p, rows, x.width / p.stride, x.height, x.width, frames, conv.border);
}

// A result with its frames; `raw` is the caller's.
FrameConvOutput output(const Values& values, const NextNorm& next) {
  FrameConvOutput out;
  if (values.raw) out.raw = values.raw.view();
  if (!values.normed) return out;
  out.normed = values.normed.view();
  out.gamma = next.gamma;
  out.silu = next.silu;
  return out;
}

Frame frame_for(const VaeRun& run, const NextNorm& next, const FrameRows& place, int64_t channels) {
  return next.gamma ? run.take(place, channels) : Frame{};
}

}  // namespace

void convolve(const VaeRun& run, const ConvWeights& conv, std::span<const TensorView> inputs, const FrameRows& x,
              const FrameConvOutput& out) {
  const trace::Lane& lane = run.stream.lane();
  const trace::Span span(lane, conv.label.c_str(), lane.trace != nullptr ? flops_of(conv, inputs, x) : 0);
  FrameConvOutput placed = out;
  placed.first_row = x.rows.begin / conv.op->problem().stride;
  conv.op->run(run.stream, inputs, placed);
}

void VaeRun::fill_border(const Frame& x) const {
  if (exchange == nullptr) return;
  const trace::Span span(stream.lane(), "vae.exchange rows");
  const int64_t rows = x.place().count();
  exchange->exchange(x.row(0), x.row(rows - 1), x.row(-1), x.row(rows));
}

std::array<TensorView, 3> PastFrames::with(const Frame& present) const {
  std::array<TensorView, 3> all{TensorView{}, TensorView{}, present.bordered()};
  if (older_) all[0] = older_.bordered();
  if (newer_) all[1] = newer_.bordered();
  return all;
}

void PastFrames::push(Frame present) {
  older_ = std::move(newer_);
  newer_ = std::move(present);
}

void CausalConv::run(const VaeRun& run, Frame x, const FrameConvOutput& out) {
  run.fill_border(x);
  convolve(run, weights_, past_.with(x), x.place(), out);
  past_.push(std::move(x));
}

ResidualBlock::ResidualBlock(const ResidualWeights& weights)
    : weights_(weights), conv1_(weights.conv1), conv2_(weights.conv2) {}

void ResidualBlock::start() {
  conv1_.start();
  conv2_.start();
}

Values ResidualBlock::run(const VaeRun& run, Values x, const NextNorm& next, Raw keep, Frame more) {
  ZT_CHECK(x.raw && x.normed);
  Values hidden{{}, run.like(x.raw, out_channels())};
  conv1_.run(run, std::move(x.normed), output(hidden, {weights_.gamma2, true}));
  if (weights_.shortcut) {
    Frame skip = run.like(x.raw, out_channels());
    const TensorView input[] = {x.raw.bordered()};
    FrameConvOutput out;
    out.raw = skip.view();
    convolve(run, *weights_.shortcut, input, x.raw.place(), out);
    x.raw = std::move(skip);
  }
  if (more) {
    add_frame(run, x.raw, more);
    more.release();
  }
  Values y{std::move(x.raw), frame_for(run, next, hidden.normed.place(), out_channels())};
  FrameConvOutput out = output(y, next);
  out.add = out.raw;
  if (keep == Raw::kDrop && y.normed) out.raw = {};
  conv2_.run(run, std::move(hidden.normed), out);
  if (!out.raw) y.raw.release();
  return y;
}

MiddleBlock::MiddleBlock(const CoderWeights& weights)
    : attention_(weights.middle_attention), first_(weights.middle_first), last_(weights.middle_last) {}

void MiddleBlock::start() {
  first_.start();
  last_.start();
}

Values MiddleBlock::run(const VaeRun& run, Values x, const NextNorm& next) {
  x = first_.run(run, std::move(x), {attention_.gamma, false});
  x = attend(run, std::move(x), last_.first_norm());
  return last_.run(run, std::move(x), next);
}

Values MiddleBlock::attend(const VaeRun& run, Values x, const NextNorm& next) {
  const FrameRows place = x.raw.place();
  const int64_t channels = x.raw.channels();
  const Frame q = run.like(x.raw, channels, Border::kNone), kv = run.like(x.raw, 2 * channels, Border::kNone);
  const TensorView normed[] = {x.normed.bordered()};
  FrameConvOutput out;
  out.raw = q.view();
  convolve(run, attention_.to_q, normed, place, out);
  out.raw = kv.view();
  convolve(run, attention_.to_kv, normed, place, out);
  x.normed.release();

  Frame all;
  if (run.exchange != nullptr) {
    const trace::Span span(run.stream.lane(), "vae.gather rows");
    all = run.take({{0, place.height}, place.height, place.width}, 2 * channels, Border::kNone);
    run.exchange->gather_rows(kv.view(), place.rows, all.view());
  }
  const int64_t queries = place.count() * place.width, tokens = place.height * place.width;
  kernels::FlashProblem problem;
  problem.query_tokens = queries;
  problem.key_tokens = tokens;
  problem.head_dim = channels;
  problem.dtype = run.pool.dtype();
  problem.scale = 1.0f / std::sqrt(static_cast<float>(channels));
  const TensorView both = (all ? all : kv).view().reshape({1, tokens, 1, 2 * channels});
  kernels::KeyBlock keys;
  keys.k = both.slice(3, 0, channels);
  keys.v = both.slice(3, channels, 2 * channels);
  const Frame mixed = run.like(x.raw, channels, Border::kNone);
  const Shape rows{1, queries, 1, channels};
  {
    const trace::Span span(run.stream.lane(), "vae.attention", attention_flops(queries, tokens, channels));
    kernels::FlashAttention(problem).attend(run.stream, q.view().reshape(rows), keys, mixed.view().reshape(rows));
  }
  Values y{std::move(x.raw), frame_for(run, next, mixed.place(), channels)};
  out = output(y, next);
  out.add = out.raw;
  const TensorView input[] = {mixed.bordered()};
  convolve(run, attention_.proj, input, place, out);
  return y;
}

void Upsampler::start() {
  past_.start();
  first_ = true;
}

void Upsampler::run(const VaeRun& run, Frame x, const NextNorm& next, const CopyShortcut* around, const Sink& sink) {
  const auto frames = static_cast<int64_t>(weights_.time.size());
  if (frames == 0 || std::exchange(first_, false)) {
    Values large = enlarge(run, x, next, around, std::max<int64_t>(0, frames - 1));
    x.release();  // what follows may need the memory
    sink(std::move(large));
    return;
  }
  for (int64_t index = 0; index < frames; ++index) {
    Frame frame = run.like(x, x.channels());
    FrameConvOutput out;
    out.raw = frame.view();
    convolve(run, weights_.time[static_cast<size_t>(index)], past_.with(x), x.place(), out);
    Values large = enlarge(run, frame, next, around, index);
    frame.release();
    sink(std::move(large));
  }
  past_.push(std::move(x));
}

Values Upsampler::enlarge(const VaeRun& run, const Frame& x, const NextNorm& next, const CopyShortcut* around,
                          int64_t frame) const {
  run.fill_border(x);
  const FrameRows& small = x.place();
  const FrameRows place{{2 * small.rows.begin, 2 * small.rows.end}, 2 * small.height, 2 * small.width};
  const int64_t channels = weights_.cells.front().op->problem().out_channels;
  Values large{run.take(place, channels), frame_for(run, next, place, channels)};
  const FrameConvOutput whole = output(large, next);
  const TensorView input[] = {x.bordered()};
  for (int64_t index = 0; index < 4; ++index) {
    // Every other row and column.
    const auto cell = [&](const TensorView& t) {
      if (!t) return t;
      const TensorView rows = t.split_axis(0, small.count(), 2).select(1, index / 2);
      return rows.split_axis(1, small.width, 2).select(2, index % 2);
    };
    FrameConvOutput out = whole;
    out.raw = cell(whole.raw);
    out.normed = cell(whole.normed);
    if (around != nullptr) out.add = around->at(frame, index / 2, index % 2);
    convolve(run, weights_.cells[static_cast<size_t>(index)], input, small, out);
  }
  return large;
}

void Downsampler::start() {
  last_ = {};
  waiting_ = {};
}

Values Downsampler::reduce(const VaeRun& run, const Frame& x, const NextNorm& next, const Frame& more) const {
  const FrameRows& large = x.place();
  const FrameRows place{{large.rows.begin / 2, large.rows.end / 2}, large.height / 2, large.width / 2};
  Values small{run.take(place, x.channels()), frame_for(run, next, place, x.channels())};
  FrameConvOutput out = output(small, next);
  if (more) out.add = more.view();
  const TensorView input[] = {x.bordered()};
  convolve(run, weights_.spatial, input, large, out);
  return small;
}

Values Downsampler::run(const VaeRun& run, Frame x, const NextNorm& next, Frame more) {
  run.fill_border(x);
  if (!weights_.time) return reduce(run, x, next, more);
  if (!last_) {
    Values small = reduce(run, x, next, more);
    if (more) {
      more.release();
      last_ = reduce(run, x, {}, {}).raw;  // once more, for the history knows nothing of the shortcut
    } else {
      last_ = run.like(small.raw, small.raw.channels());  // a copy, for the next layer works in place
      copy(run.stream, last_.view(), small.raw.view());
    }
    return small;
  }
  Frame small = reduce(run, x, {}, {}).raw;
  if (!waiting_) {
    waiting_ = std::move(small);
    return {};
  }
  Values one{run.like(small, small.channels()), frame_for(run, next, small.place(), small.channels())};
  FrameConvOutput out = output(one, next);
  if (more) out.add = more.view();
  const TensorView inputs[] = {last_.bordered(), waiting_.bordered(), small.bordered()};
  convolve(run, *weights_.time, inputs, small.place(), out);
  last_ = std::move(small);
  waiting_ = {};
  return one;
}

TensorView shown(const VaeRun& run, const Frame& frame, Tensor& memory) {
  const TensorView values = frame.view();
  TensorView plain = values;
  if (values.dtype() != DType::kF32) {
    memory = Tensor::uninitialized(DType::kF32, values.shape());
    plain = memory;
    run.stream.team().parallel_for(values.extent(0), 8, [&](IndexRange range, int) {
      for (int64_t y = range.begin; y < range.end; ++y) {
        const BFloat16* from = values.data<BFloat16>() + y * values.stride(0);
        float* to = plain.data<float>() + y * plain.stride(0);
        for (int64_t i = 0; i < plain.stride(0); ++i) to[i] = to_float(from[i]);
      }
    });
  }
  return plain.split_axis(0, 1, plain.extent(0)).permute({3, 0, 1, 2});
}

}  // namespace zoetrope::wan
