// BF16 weights in tiles for matrix units (AMX), and products with them. For packed.cpp and pack.cpp only.
#pragma once

#include <cstdint>

#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_kernel.h"

namespace zoetrope::kernels {

// Panels of so many rows of w, each [K / 32][16 pairs of terms][columns][2]: two tiles side by side a step. What is
// beyond N and K is zeros.
inline constexpr int64_t kAmxPanelColumns = 32;

size_t amx_packed_bytes(const PackedMatrix& matrix);
void amx_pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out);
// Where element (n, k) of w lies, counted in elements.
int64_t amx_packed_index(const PackedMatrix& matrix, int64_t n, int64_t k);

// x [M, K] BF16; everything after the sums is `finish`'s.
void amx_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                     decltype(PackedKernel::finish) finish);
size_t amx_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads);

}  // namespace zoetrope::kernels
