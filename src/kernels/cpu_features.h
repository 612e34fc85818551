// The instruction sets of this CPU, for the lists of implementations.
#pragma once

#include <string>

namespace zoetrope::kernels {

struct CpuFeatures {
  bool avx2 = false;         // with FMA
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // with vdpbf16ps, on top of avx512
  bool avx_vnni = false;     // int8 dot products of 256 bits, on top of avx2
  bool avx512_vnni = false;  // of 512 bits, on top of avx512
  bool amx_bf16 = false;     // on top of avx512; the system has granted AMX to this process
  bool amx_int8 = false;     // likewise, on top of avx512_vnni
  // Whether a vdpbf16ps, which does twice the work of a float32 multiply-add, has the same throughput. On Zen 4 (one
  // per cycle) and Zen 5 (two) it has; Emerald Rapids starts one in two cycles but four multiply-adds, and a float32
  // kernel that converts bf16 when it packs is 1.8 times as fast. Decided by vendor, not measured: another process on
  // the core slows only the multiply-adds, so that one start in five would have chosen another kernel.
  bool fast_bf16_dots = false;
  bool large_l2 = false;  // an L2 cache of at least 1.25 MiB a core, as Intel's since 2021; false where it is not known
};

const CpuFeatures& cpu_features();

// The CPU's brand string with family, model and stepping: tuned numbers hold for one such model.
std::string cpu_model();

}  // namespace zoetrope::kernels
