// BF16 weights as oneDNN wants them, for CPUs whose bf16 units it knows to use. Slabs of 512 rows of w, each in the
// layout that oneDNN asks for: sums of a slab are what an epilogue finds in cache. For packed.cpp and pack.cpp only.
#pragma once

#include <span>
#include <string>

#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_kernel.h"

namespace zoetrope::kernels {

// Whether oneDNN multiplies bf16 on this machine (it needs AVX-512, and not necessarily its bf16 extension).
bool onednn_has_bf16();
// Whether that beats its float32: with AMX, and where a bf16 dot product does twice the work of an FMA (AMD).
bool onednn_bf16_is_fast();

std::string onednn_layout_name(const PackedMatrix& matrix);  // differs where the order of elements does
size_t onednn_packed_bytes(const PackedMatrix& matrix);
void onednn_pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out);
// The matrix as it was, rounded: [N, K] contiguous.
void onednn_unpack(const PackedMatrix& matrix, BFloat16* out);

// x [M, K] BF16; everything after the sums is `finish`'s.
void onednn_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                        decltype(PackedKernel::finish) finish);
size_t onednn_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads);

}  // namespace zoetrope::kernels
