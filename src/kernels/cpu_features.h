// What the CPU can do, as the implementation lists ask it.
#pragma once

#include <string>

namespace zoetrope::kernels {

struct CpuFeatures {
  bool avx2 = false;         // with FMA
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // with vdpbf16ps, on top of avx512
  bool amx_bf16 = false;     // matrix units for bf16, on top of avx512, which the system lets this process use
  // Whether a vdpbf16ps, which does twice the work of a float32 multiply-add, is also started as often. So it is on Zen
  // 4 (one a cycle) and Zen 5 (two); Emerald Rapids starts one in two cycles where it starts four multiply-adds, and a
  // float32 kernel that converts bf16 when it packs is 1.8 times as fast. By vendor, not by a measurement: a neighbour
  // on the core slows the multiply-adds alone, so that one start in five would have chosen another kernel.
  bool fast_bf16_dots = false;
};

const CpuFeatures& cpu_features();

// The brand the CPU gives itself, with family, model and stepping: what tuned numbers belong to.
std::string cpu_model();

}  // namespace zoetrope::kernels
