// The memory of a plan: allocated region by region, never grown afterwards. Also the folded layout of the exchange, in
// which every (batch, head) pair is a head of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "zoetrope/tensor.h"

namespace zoetrope::attention {

class Workspace {
 public:
  // At least one byte, so that empty regions have an address too.
  char* book(int64_t bytes) {
    const int64_t booked = bytes > 0 ? bytes : 1;
    regions_.push_back(Tensor::uninitialized(DType::kU8, {booked}));
    bytes_ += static_cast<size_t>(booked);
    return regions_.back().data<char>();
  }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<Tensor> regions_;
  size_t bytes_ = 0;
};

// Tokens as rows of `parts` · B·H · D elements: Q and O have one part, KV has two (keys, then values).
struct Folded {
  DType dtype = DType::kF32;
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t head_dim = 1;

  int64_t part_elements() const { return batch * heads * head_dim; }
  int64_t row_bytes(int parts) const { return parts * part_elements() * static_cast<int64_t>(dtype_size(dtype)); }
  // [B, tokens, H, D] of one part of the rows that begin at `rows`.
  TensorView view(char* rows, int64_t tokens, int parts, int part) const {
    char* base = rows + part * row_bytes(1);
    return {base, dtype, {batch, tokens, heads, head_dim}, {heads * head_dim, parts * part_elements(), head_dim, 1}};
  }
};

}  // namespace zoetrope::attention
