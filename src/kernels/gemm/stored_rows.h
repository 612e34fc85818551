// The rows of matrices that lie under one another, as a checkpoint stores them, and rounded to BF16: what packing in
// blocks of pairs starts from.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "zoetrope/tensor.h"

#include "kernels/gemm/pack_pairs.h"
#include "tensor/half.h"

namespace zoetrope::kernels {

class StoredRows {
 public:
  // Matrices [n_i, k], contiguous, at any address.
  StoredRows(std::span<const TensorView> stored, int64_t k);

  // Rows [first, first + count) rounded to nearest even, by way of float32: [count, k].
  void round(int64_t first, int64_t count, BFloat16* to) const;
  // The same into blocks of pairs, as pack_pairs() puts them; on CPUs with AVX-512.
  void pack(int64_t first, int64_t count, const PairBlocks& blocks, BFloat16* out) const;

 private:
  using Round = void (*)(const std::byte* from, BFloat16* to, int64_t count);

  int64_t k_;
  bool direct_;  // pack_pairs() takes them as they are
  DType dtype_;
  std::vector<const std::byte*> rows_;
  std::vector<Round> round_;
};

}  // namespace zoetrope::kernels
