// An encoder's weights as one rank multiplies with them, once a run: its part of a matrix, in place in the map where
// the file holds F32 or BF16, else read into a buffer. Nothing is kept: what a layer had is let go with release(). Not
// for the transformer and the VAE, which multiply with the same weights again and again (io/weight_loader.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "device/stream.h"
#include "io/weights.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::wan {

// Throws Error where a tensor of the list is missing, has another shape, or is no F32, BF16, F16 or F64.
void require_tensors(const io::WeightSource& source, const TensorList& list);

// Scratch of an attention that has all its keys at once, at most: they and the values are packed, of several heads (of
// all samples) at once where keys are few, up to all of them, keys in panels; and every thread has a tile.
size_t packing_scratch_bytes(int64_t heads, int64_t keys, int64_t head_dim, int threads);

class PartWeights {
 public:
  // `dtype` F32 or BF16: what is computed with.
  PartWeights(std::shared_ptr<const io::WeightSource> source, DType dtype, Stream& stream);

  const io::WeightSource& source() const { return *source_; }

  // Whether matrix() needs a buffer for this tensor.
  bool needs_buffer(const std::string& name) const;
  // matrix() takes from here, from the front again after each reset. Elements of the dtype computed with.
  void set_buffer(const TensorView& buffer);
  void reset_buffer() { used_ = 0; }

  // Rows × columns of a tensor as the matrix [N, K] of its first axis and all others: F32 or BF16, last axis
  // contiguous, at any address.
  TensorView matrix(const std::string& name, IndexRange rows, IndexRange columns);
  // A small tensor, whole, in the dtype computed with or the one given; scratch memory of the enclosing scope or the
  // map.
  TensorView small(const std::string& name) { return small(name, dtype_); }
  TensorView small(const std::string& name, DType dtype);
  // out[i] = row ids[i] of a table, in out's dtype; only those rows are read.
  void gather_rows(const std::string& name, std::span<const int32_t> ids, const TensorView& out);

 private:
  std::shared_ptr<const io::WeightSource> source_;
  DType dtype_;
  Stream& stream_;
  TensorView buffer_;
  int64_t used_ = 0;  // elements
};

}  // namespace zoetrope::wan
