// int8 weights in panels, and multiplication with them: int8_groups.h says what the numbers are. For gemm/
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index_range.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_kernel.h"

namespace zoetrope::kernels {

// A panel of 16 or 64 rows of w is [K / 4][columns][4 terms], each plus 128 (dot products take one unsigned operand),
// then a float32 scale per column. Zeros beyond N and K.
size_t int8_panel_bytes(const PackedMatrix& matrix);
void int8_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix,
               std::span<const float> scales, std::byte* out);

// A group of some rows of x times a panel.
struct Int8Tile {
  const void* x = nullptr;  // [rows][terms], as quantise() wrote them
  int64_t terms = 0;        // a multiple of four
  const void* w = nullptr;
  // Of each row: its scale, and −128·Σx, which the weights' 128 adds.
  const float* scales = nullptr;
  const int32_t* corrections = nullptr;
  const float* w_scales = nullptr;  // of each column, where this is the last group; else null
  const float* from = nullptr;      // sums of the groups before, null: zeros
  float* to = nullptr;              // [rows][columns], may be `from`
  const uint8_t* next = nullptr;    // lines of the next group's w, to be fetched meanwhile
};

struct Int8Kernel {
  int64_t columns;     // of a panel
  int64_t rows;        // those of a block are a multiple of it
  int64_t call_rows;   // at most, of a call of multiply(); a multiple of `rows`
  int64_t term_bytes;  // of quantised x: int8 or int16
  // A row of x [terms], a multiple of four or the last group's terms, quantised: rotated as a group of such a matrix.
  void (*quantise)(const BFloat16* x, int64_t terms, int rotation, void* to, float* scale, int32_t* correction);
  void (*multiply)(const Int8Tile& tile, int64_t rows);
  decltype(PackedKernel::finish) finish;
  // Runs work(argument) on this thread with the tiles that multiply() needs; null: it needs none.
  void (*with_tiles)(void (*work)(void*), void* argument) = nullptr;
};
// These run none of the kernel's code but for AMX.
const Int8Kernel& int8_kernel_amx();
const Int8Kernel& int8_kernel_avx2();
const Int8Kernel& int8_kernel_vnni256();
const Int8Kernel& int8_kernel_vnni512();

// x [M, K] BF16.
void int8_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                      const Int8Kernel& kernel);
size_t int8_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads, const Int8Kernel& kernel);

// x·wᵀ [M, N] by the same arithmetic, term by term.
std::vector<float> int8_product_reference(const TensorView& x, const PackedMatrix& w);

}  // namespace zoetrope::kernels
