// A text encoder's weights as one rank multiplies with them: its part of a matrix, in place in the map where the file
// holds F32 or BF16, else read into a buffer. Nothing is kept: what a layer had is let go with release().
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "device/stream.h"
#include "io/weights.h"

namespace zoetrope::wan {

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

  // Rows × columns of [N, K]: F32 or BF16, last axis contiguous, at any address.
  TensorView matrix(const std::string& name, IndexRange rows, IndexRange columns);
  // A small tensor, whole, in the dtype computed with; scratch memory of the enclosing scope or the map.
  TensorView small(const std::string& name);
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
