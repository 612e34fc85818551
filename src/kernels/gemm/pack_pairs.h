// Weights, and x of products of few rows, into blocks of [16 pairs of terms][columns][2], the order that matrix units
// and bf16 dot products multiply in and that oneDNN gives its BF16 weights: its own way there, by way of rounded rows,
// takes three times as long. Stored as F32 or BF16 only, and on CPUs with AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "zoetrope/tensor.h"

#include "tensor/half.h"

namespace zoetrope::kernels {

inline constexpr int64_t kPairTerms = 32;  // of a block

// Where blocks begin, in elements. Columns are rows of w.
struct PairBlocks {
  int64_t columns = 0;  // of a block, a multiple of 16
  int64_t term_stride = 0, column_stride = 0;
};

// Fills whole blocks from rows of `k` terms each, at any address; zeros where there are no rows or terms.
void pack_pairs(std::span<const std::byte* const> rows, DType stored, int64_t k, const PairBlocks& blocks,
                BFloat16* out);

}  // namespace zoetrope::kernels
