#include "kernels/gemm/onednn_matmul.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/index_range.h"
#include "kernels/onednn.h"

namespace zoetrope::kernels {
namespace {

using Key = std::array<int64_t, 11>;

dnnl::memory::data_type onednn_type(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::algorithm onednn_activation(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::kGeluErf:
      return dnnl::algorithm::eltwise_gelu_erf;
    case Activation::kSilu:  // NaN for −inf
    case Activation::kNone:
      break;
  }
  return dnnl::algorithm::undef;
}

}  // namespace

OneDnnProduct::OneDnnProduct(const MatmulCall& call) {
  using dnnl::memory;
  const OneThread alone;
  x_ = memory::desc({call.m, call.k}, onednn_type(call.in_dtype), {call.x_stride, 1});
  if (call.packed) w_ = onednn_packed_desc(call.n, call.k);
  else w_ = memory::desc({call.k, call.n}, onednn_type(call.in_dtype), {1, call.w_stride});
  out_ = memory::desc({call.m, call.n}, onednn_type(call.out_dtype), {call.out_stride, 1});
  dnnl::primitive_attr attributes = onednn_attributes();
  if (call.fused != Activation::kNone) {
    dnnl::post_ops post;
    post.append_eltwise(1.0f, onednn_activation(call.fused), 1.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  if (call.bias != nullptr) bias_ = memory::desc({1, call.n}, memory::data_type::f32, {call.n, 1});
  const dnnl::matmul::desc desc =
      call.bias != nullptr ? dnnl::matmul::desc(x_, w_, bias_, out_) : dnnl::matmul::desc(x_, w_, out_);
  const dnnl::matmul::primitive_desc chosen(desc, attributes, onednn_engine());
  scratch_ = chosen.scratchpad_desc();
  matmul_ = dnnl::matmul(chosen);
}

void OneDnnProduct::run(const MatmulCall& call, void* scratch) const {
  const OneThread alone;
  std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, onednn_memory(x_, call.x)},
                                                     {DNNL_ARG_WEIGHTS, onednn_memory(w_, call.w)},
                                                     {DNNL_ARG_DST, onednn_memory(out_, call.out)}};
  if (call.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, onednn_memory(bias_, call.bias));
  if (scratch_bytes() > 0) arguments.emplace(DNNL_ARG_SCRATCHPAD, onednn_memory(scratch_, scratch));
  matmul_.execute(onednn_stream(), arguments);
  onednn_stream().wait();
}

std::shared_ptr<const OneDnnProduct> onednn_product(const MatmulCall& call) {
  constexpr size_t kMost = 512;
  thread_local std::map<Key, std::shared_ptr<const OneDnnProduct>> cache;
  const Key key{call.m,
                call.n,
                call.k,
                call.x_stride,
                call.w_stride,
                call.out_stride,
                static_cast<int64_t>(call.in_dtype),
                static_cast<int64_t>(call.out_dtype),
                static_cast<int64_t>(call.fused),
                call.bias != nullptr,
                call.packed};
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  return cache.emplace(key, std::make_shared<const OneDnnProduct>(call)).first->second;
}

dnnl::memory::desc onednn_packed_desc(int64_t n, int64_t k) {
  constexpr int64_t kRows = 1024;  // a usual number; oneDNN may look at it
  thread_local std::map<std::array<int64_t, 2>, dnnl::memory::desc> known;
  const auto found = known.find({n, k});
  if (found != known.end()) return found->second;
  using dnnl::memory;
  const OneThread alone;  // the layout must not depend on who asks
  const dnnl::matmul::desc desc(memory::desc({kRows, k}, memory::data_type::bf16, {k, 1}),
                                memory::desc({k, n}, memory::data_type::bf16, memory::format_tag::any),
                                memory::desc({kRows, n}, memory::data_type::f32, {n, 1}));
  const memory::desc weights = dnnl::matmul::primitive_desc(desc, onednn_attributes(), onednn_engine()).weights_desc();
  return known[{n, k}] = weights;
}

// Along the longer axis of out, in whole blocks of what a step of the multiplication has.
void onednn_matmul(Stream& stream, const MatmulCall& call) {
  constexpr int64_t kBlock = 64;
  const bool by_rows = call.m >= call.n;
  const int64_t length = by_rows ? call.m : call.n;
  const int64_t each = round_up(ceil_div(length, stream.team().size()), kBlock), pieces = ceil_div(length, each);
  const auto piece = [&](int64_t index) {
    const int64_t at = index * each;
    const auto moved = [](const void* data, int64_t elements, DType dtype) {
      return static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(dtype_size(dtype));
    };
    MatmulCall part = call;
    (by_rows ? part.m : part.n) = std::min(each, length - at);
    if (by_rows) part.x = moved(call.x, at * call.x_stride, call.in_dtype);
    else part.w = moved(call.w, at * call.w_stride, call.in_dtype);
    if (!by_rows && call.bias != nullptr) part.bias += at;
    part.out = const_cast<std::byte*>(moved(call.out, by_rows ? at * call.out_stride : at, call.out_dtype));
    return part;
  };
  const std::shared_ptr<const OneDnnProduct> whole = onednn_product(piece(0)), last = onednn_product(piece(pieces - 1));
  const Arena::Scope scope(stream.scratch());
  const auto bytes = round_up(static_cast<int64_t>(std::max(whole->scratch_bytes(), last->scratch_bytes())), 64);
  auto* scratch = static_cast<std::byte*>(stream.scratch().allocate(static_cast<size_t>(bytes * pieces)));
  stream.team().parallel_for(pieces, 1, [&](IndexRange range, int) {
    for (int64_t index = range.begin; index < range.end; ++index) {
      const OneDnnProduct& product = index + 1 < pieces ? *whole : *last;
      product.run(piece(index), scratch + index * bytes);
    }
  });
}

bool onednn_has_bf16() { return onednn_has(dnnl::cpu_isa::avx512_core); }

bool onednn_bf16_is_fast() {
  if (onednn_has(dnnl::cpu_isa::avx512_core_amx)) return true;
  return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && __builtin_cpu_is("amd") != 0;
}

}  // namespace zoetrope::kernels
