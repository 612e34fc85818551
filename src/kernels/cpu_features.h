// What the CPU can do, as the implementation lists ask it.
#pragma once

namespace zoetrope::kernels {

struct CpuFeatures {
  bool avx2 = false;         // with FMA
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // with vdpbf16ps, on top of avx512
};

const CpuFeatures& cpu_features();

}  // namespace zoetrope::kernels
