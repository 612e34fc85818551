// How fast this CPU multiplies bf16 pairs. A vdpbf16ps does twice the work of a float32 multiply-add, but cores differ
// in how many they start: two a cycle on Zen 5 (as many as multiply-adds: twice the FLOP), one on Zen 4 (likewise), and
// half a one on Emerald Rapids, where a float32 kernel that converts bf16 when it packs is 1.8 times as fast.
#pragma once

namespace zoetrope::kernels {

// FLOP of vdpbf16ps over FLOP of 512-bit float32 multiply-adds, both from registers. Needs AVX-512-BF16. Some 300 µs.
// What it decides changes bits, so it must come out alike in every process: 600 of them on a loaded Emerald Rapids gave
// 0.46 to 0.55.
double measure_bf16_dot_rate();

}  // namespace zoetrope::kernels
