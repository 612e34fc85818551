#include "kernels/conv/onednn_convolution.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "kernels/onednn.h"

namespace zoetrope::kernels {
namespace {

using dnnl::memory;

// Frames that do not see each other are images of a batch: the 2-D kernels are the faster ones.
bool is_per_frame(const ConvProblem& p) {
  return p.kernel[0] == 1 && p.stride[0] == 1 && p.pad_before[0] == 0 && p.pad_after[0] == 0;
}

struct Primitive {
  dnnl::convolution_forward convolution;
  memory::desc x, out, bias, scratch;
  const void* weights = nullptr;  // in weights_desc's layout, owned by the object
  memory::desc weights_desc;
};

struct Layout {
  memory::desc desc;
  const void* data = nullptr;
  Tensor owned;
};

}  // namespace

struct OnednnConvolution::Impl {
  ConvProblem problem;
  bool per_frame;
  Tensor bias;
  std::mutex mutex;
  std::vector<std::unique_ptr<Layout>> layouts;  // of the weights; almost always one
  std::map<std::array<int64_t, 5>, std::unique_ptr<Primitive>> primitives;

  memory::dims spatial(const std::array<int64_t, 3>& sizes) const {
    if (per_frame) return {sizes[1], sizes[2]};
    return {sizes[0], sizes[1], sizes[2]};
  }
  memory::dims weight_dims() const {
    memory::dims dims{problem.out_channels, problem.in_channels};
    for (const auto extent : spatial(problem.kernel)) dims.push_back(extent);
    return dims;
  }
  memory::desc image_desc(const Shape& shape) const {
    const auto type = memory::data_type::f32;
    if (per_frame) return {{shape[0], shape[3], shape[1], shape[2]}, type, memory::format_tag::nhwc};
    return {{1, shape[3], shape[0], shape[1], shape[2]}, type, memory::format_tag::ndhwc};
  }

  // The weights in the layout that a primitive wants. Caller holds the mutex. A later layout comes from the first
  // through the plain one: oneDNN has fast code between plain and any blocking, but brings blocks of 48 into blocks of
  // 32 element by element (seconds for 384 channels).
  const void* weights_as(const memory::desc& desc) {
    for (const auto& layout : layouts)
      if (layout->desc == desc) return layout->data;
    const Layout& from = *layouts.front();
    Tensor plain;
    const void* source = from.data;
    if (!(from.desc == plain_desc())) {
      plain = Tensor::uninitialized(DType::kF32, {plain_elements()});
      reorder(from.desc, from.data, plain_desc(), plain.view().raw());
      source = plain.view().raw();
    }
    auto made = std::make_unique<Layout>();
    made->desc = desc;
    made->owned = Tensor(DType::kF32, {static_cast<int64_t>((desc.get_size() + 3) / 4)});
    made->data = made->owned.view().raw();
    reorder(plain_desc(), source, desc, made->owned.view().raw());
    layouts.push_back(std::move(made));
    return layouts.back()->data;
  }
  static void reorder(const memory::desc& from, const void* source, const memory::desc& to, void* target) {
    memory in = onednn_memory(from, source), out = onednn_memory(to, target);
    dnnl::reorder(in, out).execute(onednn_stream(), in, out);
    onednn_stream().wait();
  }
  memory::desc plain_desc() const {
    const auto tag = per_frame ? memory::format_tag::oihw : memory::format_tag::oidhw;
    return {weight_dims(), memory::data_type::f32, tag};
  }
  int64_t plain_elements() const {
    return problem.out_channels * problem.in_channels * problem.kernel[0] * problem.kernel[1] * problem.kernel[2];
  }

  std::unique_ptr<Primitive> make(const Shape& x, const Shape& out, bool accumulate) {
    auto p = std::make_unique<Primitive>();
    p->x = image_desc(x);
    p->out = image_desc(out);
    dnnl::primitive_attr attributes = onednn_attributes();
    dnnl::post_ops post;
    if (accumulate) post.append_sum(1.0f);
    if (accumulate) attributes.set_post_ops(post);
    const memory::desc any_weights(weight_dims(), memory::data_type::f32, memory::format_tag::any);
    const auto kind = dnnl::prop_kind::forward_inference;
    const auto algorithm = dnnl::algorithm::convolution_direct;  // Winograd would cost float32 accuracy
    const memory::dims strides = spatial(problem.stride);
    const memory::dims before = spatial(problem.pad_before), after = spatial(problem.pad_after);
    using Desc = dnnl::convolution_forward::desc;
    if (bias) p->bias = memory::desc({problem.out_channels}, memory::data_type::f32, memory::format_tag::x);
    const Desc desc = bias ? Desc(kind, algorithm, p->x, any_weights, p->bias, p->out, strides, before, after)
                           : Desc(kind, algorithm, p->x, any_weights, p->out, strides, before, after);
    const dnnl::convolution_forward::primitive_desc chosen(desc, attributes, onednn_engine());
    p->scratch = chosen.scratchpad_desc();
    p->weights_desc = chosen.weights_desc();
    p->weights = weights_as(p->weights_desc);
    p->convolution = dnnl::convolution_forward(chosen);
    return p;
  }

  // Primitives stay where they are once made, so the reference outlives the lock.
  const Primitive& primitive_for(const Shape& x, const Shape& out, bool accumulate, int threads) {
    const std::array<int64_t, 5> key{x[0], x[1], x[2], accumulate, threads};
    const std::lock_guard lock(mutex);
    auto& slot = primitives[key];
    if (!slot) slot = make(x, out, accumulate);
    return *slot;
  }
};

OnednnConvolution::OnednnConvolution(const ConvProblem& problem, const TensorView& weight, const TensorView& bias)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.problem = problem;
  impl.per_frame = is_per_frame(problem);
  if (bias) {
    impl.bias = Tensor(DType::kF32, {problem.out_channels});
    std::memcpy(impl.bias.data<char>(), bias.raw(), bias.bytes());
  }
  // The layout is the one oneDNN likes for an image of usual size. The checkpoint's own is the source of that one
  // reordering and then forgotten: a shape that wants yet another layout gets it from ours.
  auto plain = std::make_unique<Layout>();
  plain->desc = impl.plain_desc();
  plain->data = weight.raw();
  impl.layouts.push_back(std::move(plain));
  constexpr int64_t kFrames = 4, kSide = 64;
  Shape usual{kFrames, kSide, kSide, problem.in_channels}, result{0, 0, 0, problem.out_channels};
  for (int axis = 0; axis < 3; ++axis) {
    const auto a = static_cast<size_t>(axis);
    usual[axis] = std::max(usual[axis], problem.kernel[a]);
    result[axis] =
        (usual[axis] + problem.pad_before[a] + problem.pad_after[a] - problem.kernel[a]) / problem.stride[a] + 1;
  }
  impl.make(usual, result, false);
  if (impl.layouts.size() > 1) {
    impl.layouts.erase(impl.layouts.begin());
  } else {  // the plain layout itself
    Layout& only = *impl.layouts.front();
    only.owned = Tensor::uninitialized(DType::kF32, {weight.size()});
    std::memcpy(only.owned.data<char>(), weight.raw(), weight.bytes());
    only.data = only.owned.view().raw();
  }
}

OnednnConvolution::~OnednnConvolution() = default;

void OnednnConvolution::run(Stream& stream, const TensorView& x, const TensorView& out, const TensorView& add) {
  // Only an addition in place goes into the convolution: as a separate operand it costs more than a pass of its own
  // (96 channels: 12.5 ms against 9.4), because oneDNN then picks an older kernel, and with it other weights.
  const bool accumulate = add && add.raw() == out.raw();
  const Primitive& p = impl_->primitive_for(x.shape(), out.shape(), accumulate, use_team(stream));
  {
    const Arena::Scope scope(stream.scratch());
    std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, onednn_memory(p.x, x.raw())},
                                                 {DNNL_ARG_WEIGHTS, onednn_memory(p.weights_desc, p.weights)},
                                                 {DNNL_ARG_DST, onednn_memory(p.out, out.raw())}};
    if (impl_->bias) arguments.emplace(DNNL_ARG_BIAS, onednn_memory(p.bias, impl_->bias.view().raw()));
    if (p.scratch.get_size() > 0) {
      void* scratch = stream.scratch().allocate(p.scratch.get_size());
      arguments.emplace(DNNL_ARG_SCRATCHPAD, onednn_memory(p.scratch, scratch));
    }
    p.convolution.execute(onednn_stream(), arguments);
    onednn_stream().wait();
  }
  if (!add || accumulate) return;
  float* result = out.data<float>();
  const float* addend = add.data<float>();
  constexpr int64_t kGrain = 8192;
  stream.team().parallel_for(out.size(), kGrain, [&](IndexRange range, int) {
    for (int64_t i = range.begin; i < range.end; ++i) result[i] += addend[i];
  });
}

}  // namespace zoetrope::kernels
