// Measures the machine's limits: multiply-adds per second of each instruction set, and bytes copied per second. Nothing
// is computed from clock rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/thread_team.h"

namespace zoetrope::machine {

enum class Isa : uint8_t {
  kAvx2,        // 8 float32 multiply-adds per instruction; the baseline of the build
  kAvx512,      // 16 float32 multiply-adds
  kAmxBf16,     // tdpbf16ps: 16 × 16 × 32 bf16 products into 16 × 16 float32 sums
  kAvx512Bf16,  // vdpbf16ps: 32 bf16 products into 16 float32 sums
  kAmxInt8,     // tdpbsud: 16 × 16 × 64 int8 products into 16 × 16 int32 sums
  kAvx512Vnni,  // vpdpbusd: 64 int8 products into 16 int32 sums
  kAvxVnni,     // the same, 32 into 8
  kAvx2Int8,    // vpmaddwd and vpaddd: 16 products of int16 into 8 int32 sums
};

std::vector<Isa> all_isas();            // of each dtype the fastest first
const char* isa_name(Isa isa);          // "avx2", "avx512_bf16", "avx512_vnni"
bool isa_available(Isa isa);            // on this CPU
bool multiplies(Isa isa, DType dtype);  // data of F32, BF16 (also widened to float32) or I8
// The instruction set whose peak bounds a flash-attention implementation. "scalar" is compiled for the baseline, whose
// peak bounds it. Throws Error for an unknown name.
Isa isa_of_kernel(std::string_view implementation);

struct Peak {
  double flops = 0;      // FLOP per second, all threads together
  double cpu_flops = 0;  // FLOP per second of the threads' CPU time, times the number of threads: what an otherwise
                         // idle machine would do
  double flop = 0;       // of all threads
};

// Multiply-adds on registers only, on every thread of the team at once for `seconds`. Throws Error if the CPU lacks
// the instructions.
Peak measure_peak(Isa isa, ThreadTeam& team, double seconds);

enum class CopyKind : uint8_t {
  kMemcpy,     // of the C library
  kStreaming,  // non-temporal stores
};

// Bytes copied per second (each counted once, though it is read and written) when every thread copies a buffer of
// `bytes` of its own repeatedly for at least `seconds`.
double measure_copy_bandwidth(int threads, size_t bytes, double seconds, CopyKind kind = CopyKind::kMemcpy);

double wall_seconds();        // monotonic
double thread_cpu_seconds();  // of the calling thread

}  // namespace zoetrope::machine
