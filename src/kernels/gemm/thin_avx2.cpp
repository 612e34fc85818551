// thin_gemm() on AVX2 with FMA, which every build requires.
#include "kernels/gemm/thin_tile.h"

const zoetrope::kernels::ThinKernel zoetrope::kernels::kThinAvx2 = kThinKernel;
