// Packs weights, and x of thin_gemm(), into blocks of [16 pairs of terms][columns][2]: the order in which AMX and bf16
// dot products multiply, and that oneDNN chooses for its BF16 weights (its own reorder, which needs rounded rows, takes
// three times as long). From F32 or BF16 only, and on CPUs with AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "zoetrope/tensor.h"

#include "tensor/half.h"

namespace zoetrope::kernels {

inline constexpr int64_t kPairTerms = 32;  // of a block

// The size of blocks and their distances in elements. Columns are rows of w.
struct PairBlocks {
  int64_t columns = 0;  // of a block, a multiple of 16
  int64_t term_stride = 0, column_stride = 0;
};

// Fills whole blocks from rows of `k` terms each, at any address; missing rows and terms are zeros.
void pack_pairs(std::span<const std::byte* const> rows, DType stored, int64_t k, const PairBlocks& blocks,
                BFloat16* out);

}  // namespace zoetrope::kernels
