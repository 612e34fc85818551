// The rows of matrices stacked along N, as a checkpoint stores them: widens them to float32, or rounds them to BF16 and
// packs them into blocks of pairs.
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

  void widen(int64_t row, float* to) const;  // [k]
  // Rows [first, first + count) rounded to nearest even, via float32: [count, k].
  void round(int64_t first, int64_t count, BFloat16* to) const;
  // The same into blocks of pairs, as pack_pairs() does; on CPUs with AVX-512.
  void pack(int64_t first, int64_t count, const PairBlocks& blocks, BFloat16* out) const;

 private:
  using Widen = void (*)(const std::byte* from, float* to, int64_t count);
  using Round = void (*)(const std::byte* from, BFloat16* to, int64_t count);

  int64_t k_;
  bool direct_;  // all are of one dtype that pack_pairs() reads
  DType dtype_;
  std::vector<const std::byte*> rows_;
  std::vector<Widen> widen_;
  std::vector<Round> round_;
};

}  // namespace zoetrope::kernels
