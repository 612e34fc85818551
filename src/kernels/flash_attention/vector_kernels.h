// The vector implementations, for the list in flash_attention.cpp.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/tile.h"

namespace zoetrope::kernels {

Refusal avx2_refusal(const FlashProblem& problem);
Refusal avx512_refusal(const FlashProblem& problem);
Refusal avx512_bf16_refusal(const FlashProblem& problem);
Refusal avx512_int8_refusal(const FlashProblem& problem);
Refusal avx_vnni_int8_refusal(const FlashProblem& problem);
Refusal avx2_int8_refusal(const FlashProblem& problem);
Refusal amx_bf16_refusal(const FlashProblem& problem);

std::unique_ptr<FlashKernel> make_avx2_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_avx512_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_avx512_bf16_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_avx512_int8_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_avx_vnni_int8_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_avx2_int8_kernel(const FlashProblem& problem);
std::unique_ptr<FlashKernel> make_amx_bf16_kernel(const FlashProblem& problem);

// The shape of an implementation's tile before its sizes are chosen; null for implementations without tiles.
const TileShape* vector_shape(std::string_view implementation);

}  // namespace zoetrope::kernels
