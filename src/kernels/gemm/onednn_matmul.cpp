#include "kernels/gemm/onednn_matmul.h"

#include <array>
#include <map>

#include "kernels/onednn.h"

namespace zoetrope::kernels {
namespace {

using Key = std::array<int64_t, 12>;

struct Primitive {
  dnnl::matmul matmul;
  dnnl::memory::desc x, w, bias, out, scratch;
};

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

Primitive make_primitive(const MatmulCall& call) {
  using dnnl::memory;
  Primitive p;
  p.x = memory::desc({call.m, call.k}, onednn_type(call.in_dtype), {call.x_stride, 1});
  if (call.packed) p.w = onednn_packed_desc(call.n, call.k);
  else p.w = memory::desc({call.k, call.n}, onednn_type(call.in_dtype), {1, call.w_stride});
  p.out = memory::desc({call.m, call.n}, onednn_type(call.out_dtype), {call.out_stride, 1});
  dnnl::primitive_attr attributes = onednn_attributes();
  if (call.fused != Activation::kNone) {
    dnnl::post_ops post;
    post.append_eltwise(1.0f, onednn_activation(call.fused), 1.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  if (call.bias != nullptr) p.bias = memory::desc({1, call.n}, memory::data_type::f32, {call.n, 1});
  const dnnl::matmul::desc desc =
      call.bias != nullptr ? dnnl::matmul::desc(p.x, p.w, p.bias, p.out) : dnnl::matmul::desc(p.x, p.w, p.out);
  const dnnl::matmul::primitive_desc chosen(desc, attributes, onednn_engine());
  p.scratch = chosen.scratchpad_desc();
  p.matmul = dnnl::matmul(chosen);
  return p;
}

// A thread's own primitives: no lock on the way to a multiplication. Behind it stands oneDNN's cache, which is shared
// by threads and safe, so that ranks do not compile the same code twice.
const Primitive& primitive_for(const MatmulCall& call, int threads) {
  constexpr size_t kMost = 512;
  thread_local std::map<Key, Primitive> cache;
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
                call.packed,
                threads};
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  return cache.emplace(key, make_primitive(call)).first->second;
}

}  // namespace

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

void onednn_matmul(Stream& stream, const MatmulCall& call) {
  const Primitive& primitive = primitive_for(call, use_team(stream));
  const Arena::Scope scope(stream.scratch());
  std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, onednn_memory(primitive.x, call.x)},
                                                     {DNNL_ARG_WEIGHTS, onednn_memory(primitive.w, call.w)},
                                                     {DNNL_ARG_DST, onednn_memory(primitive.out, call.out)}};
  if (call.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, onednn_memory(primitive.bias, call.bias));
  if (primitive.scratch.get_size() > 0) {
    void* scratch = stream.scratch().allocate(primitive.scratch.get_size());
    arguments.emplace(DNNL_ARG_SCRATCHPAD, onednn_memory(primitive.scratch, scratch));
  }
  primitive.matmul.execute(onednn_stream(), arguments);
  onednn_stream().wait();
}

bool onednn_has_bf16() { return onednn_has(dnnl::cpu_isa::avx512_core); }

bool onednn_bf16_is_fast() {
  if (onednn_has(dnnl::cpu_isa::avx512_core_amx)) return true;
  return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && __builtin_cpu_is("amd") != 0;
}

}  // namespace zoetrope::kernels
