// What the CPU can do, as the implementation lists ask it.
#pragma once

#include <string>

namespace zoetrope::kernels {

struct CpuFeatures {
  bool avx2 = false;         // with FMA
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // with vdpbf16ps, on top of avx512
};

const CpuFeatures& cpu_features();

// The brand the CPU gives itself, with family, model and stepping: what tuned numbers belong to.
std::string cpu_model();

}  // namespace zoetrope::kernels
