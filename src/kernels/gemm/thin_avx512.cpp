// thin_gemm() on AVX-512 (F, BW, DQ, VL).
#include "kernels/gemm/thin_tile.h"

const zoetrope::kernels::ThinKernel zoetrope::kernels::kThinAvx512 = kThinKernel;
