// oneDNN's matmul on plain pointers, with what it has made kept per thread. For gemm.cpp and packed_onednn.cpp only.
#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/gemm/gemm.h"

namespace zoetrope::kernels {

// out[M, N] = x[M, K]·w[N, K]ᵀ + bias, rows at a stride. M, N, K > 0.
struct MatmulCall {
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* w = nullptr;
  int64_t w_stride = 0;
  bool packed = false;          // w is as onednn_packed_desc() says; x is BF16, out F32
  const float* bias = nullptr;  // [N] or none
  void* out = nullptr;
  int64_t out_stride = 0;
  DType in_dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  Activation fused = Activation::kNone;  // done by oneDNN before it rounds to out; not SiLU
};
// In pieces, one a thread of the team.
void onednn_matmul(Stream& stream, const MatmulCall& call);

// What oneDNN makes for the sizes, strides and types of a call; its pointers do not count. Of no thread: any number may
// run it at once.
class OneDnnProduct {
 public:
  explicit OneDnnProduct(const MatmulCall& call);
  size_t scratch_bytes() const { return scratch_.get_size(); }
  // On the calling thread alone. `call` as it was made for, with whatever pointers.
  void run(const MatmulCall& call, void* scratch) const;

 private:
  dnnl::matmul matmul_;
  dnnl::memory::desc x_, w_, bias_, out_, scratch_;
};

// The calling thread keeps what it has asked for: no lock on the way to a multiplication. Behind it stands oneDNN's
// cache, which is shared by threads and safe, so that ranks do not compile the same code twice.
std::shared_ptr<const OneDnnProduct> onednn_product(const MatmulCall& call);

// The layout oneDNN prefers for BF16 weights w [N, K]: the same in every process on a machine, whatever its threads.
dnnl::memory::desc onednn_packed_desc(int64_t n, int64_t k);

// Whether oneDNN multiplies bf16 on this machine (it needs AVX-512, and not necessarily its bf16 extension).
bool onednn_has_bf16();
// Whether that beats its float32: with AMX, and where a bf16 dot product does twice the work of an FMA (AMD).
bool onednn_bf16_is_fast();

}  // namespace zoetrope::kernels
