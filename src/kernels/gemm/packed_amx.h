// BF16 weights in tiles for AMX, and multiplication with them. For packed.cpp and pack.cpp only.
#pragma once

#include <cstdint>

#include "base/index_range.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_kernel.h"

namespace zoetrope::kernels {

// Panels of this many rows of w, each [K / 32][16 pairs of terms][columns][2]: two adjacent tiles per step. Zeros
// beyond N and K.
inline constexpr int64_t kAmxPanelColumns = 32;

size_t amx_packed_bytes(const PackedMatrix& matrix);
void amx_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix, std::byte* out);
// The place of element (n, k) of w, counted in elements.
int64_t amx_packed_index(const PackedMatrix& matrix, int64_t n, int64_t k);

// x [M, K] BF16; `finish` applies the epilogue to the sums.
void amx_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                     decltype(PackedKernel::finish) finish);
size_t amx_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads);

}  // namespace zoetrope::kernels
