// An encoder's weights as one rank uses them, once per run: its part of a matrix, in place in the mapped file where
// that has F32 or BF16, else read into a buffer. Nothing is kept: release() frees a layer's pages. Not for the
// transformer and the VAE, which use the same weights many times (io/weights/weight_loader.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "io/weights/tensor_table.h"
#include "io/weights/weights.h"

namespace zoetrope::encoders {

class PartWeights {
 public:
  // `source` must have the table's tensors (io::require_tensors). `dtype` F32 or BF16: for computing. Of `parts`
  // ranks that share each layer this is `part`.
  PartWeights(std::shared_ptr<const io::WeightSource> source, io::TensorTable table, DType dtype, Stream& stream,
              int parts = 1, int part = 0);
  PartWeights(PartWeights&&) = default;

  DType dtype() const { return dtype_; }

  // Whether matrix() needs a buffer for any tensor.
  bool needs_buffer() const;
  // matrix() takes memory from here, from the front again after each reset. Elements of the compute dtype.
  void set_buffer(const TensorView& buffer);
  void reset_buffer() { used_ = 0; }

  // This part of a matrix, or of a convolution as the matrix of its first axis and all others: [N, K], F32 or BF16,
  // last axis contiguous, at any address.
  TensorView matrix(std::string_view name);
  // A small tensor, whole, in the compute dtype or the one given; in scratch memory of the enclosing scope, or mapped.
  TensorView small(std::string_view name) { return small(name, dtype_); }
  TensorView small(std::string_view name, DType dtype);
  // out[i] = row ids[i] of a table, in out's dtype; only those rows are read, and released.
  void gather_rows(std::string_view name, std::span<const int32_t> ids, const TensorView& out);

  // For all tensors whose names begin like this: prefetches their part of the file, or releases its pages.
  void prefetch(const std::string& beginning) const;
  void release(const std::string& beginning) const;

 private:
  const std::string& stored_name(std::string_view name) const { return io::stored_name(*source_, index_[name]); }
  bool needs_buffer(const std::string& stored_name) const;

  std::shared_ptr<const io::WeightSource> source_;
  io::TensorTable table_;
  io::TensorIndex index_;  // of table_
  DType dtype_;
  Stream& stream_;
  int parts_, part_;
  TensorView buffer_;
  int64_t used_ = 0;  // elements
};

}  // namespace zoetrope::encoders
