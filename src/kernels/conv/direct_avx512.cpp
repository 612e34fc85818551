// The direct convolution on AVX-512, products in float32; bf16 inputs come widened.
#include "kernels/conv/direct_avx512_vectors.h"
#include "kernels/conv/direct_finish.h"

namespace zoetrope::kernels {
namespace {

constexpr DirectKernels kKernels = with_finish(direct_kernels<Avx512Conv, Avx512Conv>());

}  // namespace

const DirectKernels& direct_avx512() { return kKernels; }

}  // namespace zoetrope::kernels
