// BF16 weights in oneDNN's layout, for CPUs with bf16 instructions that oneDNN uses. w is divided into slabs of 512
// rows, each in the layout that oneDNN prefers, so that the sums of a slab are still in cache for the epilogue. For
// packed.cpp and pack.cpp only.
#pragma once

#include <span>
#include <string>

#include "base/index_range.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_kernel.h"

namespace zoetrope::kernels {

// Whether oneDNN multiplies bf16 on this machine (it needs AVX-512, not necessarily AVX-512-BF16).
bool onednn_has_bf16();
// Whether that is faster than float32: with AMX, and where a bf16 dot product does twice the work of an FMA (AMD).
bool onednn_bf16_is_fast();

std::string onednn_layout_name(const PackedMatrix& matrix);  // equal where the order of elements is
size_t onednn_packed_bytes(const PackedMatrix& matrix);
int64_t onednn_row_step(const PackedMatrix& matrix);
int64_t onednn_part_rows(const PackedMatrix& matrix);
size_t onednn_packed_begin(const PackedMatrix& matrix, int64_t row);  // a multiple of these
void onednn_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix, std::byte* out);
// The rounded matrix [N, K], contiguous.
void onednn_unpack(const PackedMatrix& matrix, BFloat16* out);

// x [M, K] BF16; `finish` applies the epilogue to the sums.
void onednn_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                        decltype(PackedKernel::finish) finish);
size_t onednn_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads);

}  // namespace zoetrope::kernels
