#include "kernels/conv/onednn_frames.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "kernels/conv/direct.h"
#include "kernels/cpu_features.h"
#include "kernels/onednn.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

using dnnl::memory;

// Rows whose sums wait in the cache for all frames and what follows; fewer would leave threads without work.
constexpr int64_t kBandRows = 32;

const DirectKernels& finishing_kernels() { return cpu_features().avx512 ? direct_avx512() : direct_avx2(); }

struct Primitive {
  dnnl::convolution_forward convolution;
  memory::desc x, sums, scratch;
};

}  // namespace

struct OnednnFrames::Impl {
  FrameConvProblem problem;
  memory::desc weights_desc;
  std::vector<Tensor> weights;  // by frame
  std::vector<float> bias;
  mutable std::mutex mutex;
  mutable std::map<std::array<int64_t, 4>, std::unique_ptr<Primitive>> primitives;

  enum class Weights : uint8_t { kAny, kOurs };

  dnnl::convolution_forward::primitive_desc describe(int64_t rows, int64_t width, bool accumulate, Weights kind) const {
    const FrameConvProblem& p = problem;
    const auto half = memory::data_type::bf16;
    const memory::desc x({1, p.in_channels, rows + p.kernel[0] - 1, width + p.kernel[1] - 1}, half,
                         memory::format_tag::nhwc);
    const memory::desc sums({1, p.out_channels, rows, width}, memory::data_type::f32, memory::format_tag::nhwc);
    const memory::desc any({p.out_channels, p.in_channels, p.kernel[0], p.kernel[1]}, half, memory::format_tag::any);
    const dnnl::convolution_forward::desc desc(dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
                                               x, kind == Weights::kAny ? any : weights_desc, sums, {1, 1}, {0, 0},
                                               {0, 0});
    dnnl::primitive_attr attributes = onednn_attributes();
    if (accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    return {desc, attributes, onednn_engine()};
  }

  // Primitives stay where they are once made, so the reference outlives the lock.
  const Primitive& primitive_for(int64_t rows, int64_t width, bool accumulate, int threads) const {
    const std::lock_guard lock(mutex);
    auto& slot = primitives[{rows, width, accumulate, threads}];
    if (slot) return *slot;
    auto chosen = describe(rows, width, accumulate, Weights::kAny);
    // Its own choice is the fastest, but there is one copy of the weights.
    if (!(chosen.weights_desc() == weights_desc)) chosen = describe(rows, width, accumulate, Weights::kOurs);
    slot = std::make_unique<Primitive>();
    slot->x = chosen.src_desc();
    slot->sums = chosen.dst_desc();
    slot->scratch = chosen.scratchpad_desc();
    slot->convolution = dnnl::convolution_forward(chosen);
    return *slot;
  }

  void pack(const TensorView& weight);
  const void* dense_rows(Stream& stream, const TensorView& x, IndexRange rows, int64_t width) const;
  void sum_frame(Stream& stream, const Primitive& primitive, const void* x, size_t frame, float* sums) const;
  void finish(Stream& stream, const FrameConvOutput& out, IndexRange rows, float* sums) const;
};

std::string OnednnFrames::refusal(const FrameConvProblem& p) {
  if (p.dtype != DType::kBF16) return "multiplies bf16 only";
  if (!onednn_has(dnnl::cpu_isa::avx512_core)) return "oneDNN multiplies bf16 with AVX-512 only";
  if (p.stride != 1 || p.origin != std::array<int64_t, 2>{0, 0}) return "needs a kernel that covers its input's border";
  if (p.out_channels % 16 != 0 || p.in_channels % 16 != 0) return "needs channels in multiples of 16";
  return {};
}

OnednnFrames::OnednnFrames(const FrameConvProblem& problem, const TensorView& weight, const TensorView& bias)
    : impl_(std::make_unique<Impl>()) {
  impl_->problem = problem;
  impl_->bias.assign(static_cast<size_t>(problem.out_channels), 0.0f);
  if (bias) std::copy_n(bias.data<float>(), problem.out_channels, impl_->bias.begin());
  impl_->pack(weight);
}

OnednnFrames::~OnednnFrames() = default;

size_t OnednnFrames::weight_bytes() const {
  size_t bytes = 0;
  for (const Tensor& tap : impl_->weights) bytes += tap.view().bytes();
  return bytes;
}

void OnednnFrames::Impl::pack(const TensorView& weight) {
  const FrameConvProblem& p = problem;
  constexpr int64_t kUsualWidth = 104;
  weights_desc = describe(kBandRows, kUsualWidth, false, Weights::kAny).weights_desc();
  const int64_t area = p.kernel[0] * p.kernel[1], filters = p.out_channels * p.in_channels;
  const memory::desc plain({p.out_channels, p.in_channels, p.kernel[0], p.kernel[1]}, memory::data_type::f32,
                           memory::format_tag::oihw);
  std::vector<float> tap(static_cast<size_t>(filters * area));
  for (int64_t frame = 0; frame < p.frames; ++frame) {
    for (int64_t filter = 0; filter < filters; ++filter)
      std::copy_n(weight.data<float>() + (filter * p.frames + frame) * area, area, tap.data() + filter * area);
    weights.emplace_back(DType::kU8, Shape{static_cast<int64_t>(weights_desc.get_size())});
    memory from = onednn_memory(plain, tap.data()), to = onednn_memory(weights_desc, weights.back().view().raw());
    dnnl::reorder(from, to).execute(onednn_stream(), from, to);
    onednn_stream().wait();
  }
}

// Input rows for output rows: in place where the input is just as wide as the kernel needs, as the VAE's frames are.
const void* OnednnFrames::Impl::dense_rows(Stream& stream, const TensorView& x, IndexRange rows, int64_t width) const {
  const int64_t columns = width + problem.kernel[1] - 1, count = rows.size() + problem.kernel[0] - 1;
  const BFloat16* from = x.data<BFloat16>() + rows.begin * x.stride(0);
  if (x.stride(0) == columns * problem.in_channels) return from;
  const auto row_bytes = static_cast<size_t>(columns * problem.in_channels) * sizeof(BFloat16);
  auto* to = static_cast<std::byte*>(stream.scratch().allocate(static_cast<size_t>(count) * row_bytes));
  for (int64_t row = 0; row < count; ++row)
    std::memcpy(to + static_cast<size_t>(row) * row_bytes, from + row * x.stride(0), row_bytes);
  return to;
}

void OnednnFrames::Impl::sum_frame(Stream& stream, const Primitive& primitive, const void* x, size_t frame,
                                   float* sums) const {
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, onednn_memory(primitive.x, x)},
      {DNNL_ARG_WEIGHTS, onednn_memory(weights_desc, weights[frame].view().raw())},
      {DNNL_ARG_DST, onednn_memory(primitive.sums, sums)}};
  if (primitive.scratch.get_size() > 0) {
    void* scratch = stream.scratch().allocate(primitive.scratch.get_size());
    arguments.emplace(DNNL_ARG_SCRATCHPAD, onednn_memory(primitive.scratch, scratch));
  }
  primitive.convolution.execute(onednn_stream(), arguments);
  onednn_stream().wait();
}

void OnednnFrames::Impl::finish(Stream& stream, const FrameConvOutput& out, IndexRange rows, float* sums) const {
  const TensorView& any = out.raw ? out.raw : out.normed;
  const int64_t width = any.extent(1), channels = problem.out_channels;
  stream.team().parallel_for(rows.size(), 1, [&](IndexRange range, int) {
    for (int64_t index = range.begin; index < range.end; ++index) {
      FinishCall call{};
      call.acc = sums + index * width * channels;
      call.acc_stride = call.channels = channels;
      call.pixels = width;
      call.bias = bias.data();
      call.gamma = out.normed ? out.gamma.data<float>() : nullptr;
      call.root = std::sqrt(static_cast<float>(channels));
      call.silu = out.silu;
      const auto place = [&](const TensorView& t, int64_t& stride) -> BFloat16* {
        if (!t) return nullptr;
        stride = t.stride(1);
        return t.data<BFloat16>() + (rows.begin + index) * t.stride(0);
      };
      call.add = place(out.add, call.add_stride);
      call.raw = place(out.raw, call.raw_stride);
      call.normed = place(out.normed, call.normed_stride);
      finishing_kernels().finish_bf16(call);
    }
  });
}

void OnednnFrames::run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  const Impl& impl = *impl_;
  const TensorView& any = out.raw ? out.raw : out.normed;
  const int64_t height = any.extent(0), width = any.extent(1);
  const int threads = use_team(stream);
  const Arena::Scope scope(stream.scratch());
  const int64_t most = std::min(kBandRows, height) * width * impl.problem.out_channels;
  auto* sums = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(most) * sizeof(float)));
  for (int64_t begin = 0; begin < height; begin += kBandRows) {
    const IndexRange rows{begin, std::min(begin + kBandRows, height)};
    bool accumulate = false;
    for (size_t frame = 0; frame < inputs.size(); ++frame) {
      if (!inputs[frame]) continue;
      const Arena::Scope call(stream.scratch());
      const Primitive& primitive = impl.primitive_for(rows.size(), width, accumulate, threads);
      impl.sum_frame(stream, primitive, impl.dense_rows(stream, inputs[frame], rows, width), frame, sums);
      accumulate = true;
    }
    impl.finish(stream, out, rows, sums);
  }
}

}  // namespace zoetrope::kernels
