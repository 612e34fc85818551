// thin_gemm() on matrix units (AMX), for BF16 rows and BF16 weights.
#pragma once

#include "kernels/gemm/thin_gemm.h"
#include "kernels/implementation.h"

namespace zoetrope::kernels {

Refusal refuse_thin_amx(const ThinGemm& args);
void thin_gemm_amx(Stream& stream, const ThinGemm& args);
size_t thin_amx_scratch_bytes(int64_t rows, int64_t k, bool gated, int threads);

}  // namespace zoetrope::kernels
