// The sum over ranks for a model that splits the inner dimension of a layer. Models do not know ranks: they are handed
// one of these and their part.
#pragma once

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "device/stream.h"

namespace zoetrope::encoders {

class PartialSum {
 public:
  virtual ~PartialSum() = default;
  virtual int parts() const = 0;  // that a layer is split into
  virtual int part() const = 0;   // which of them is the caller's

  // What is done to a sum row by row need be done once: each part does it to the rows that it has added up, and then
  // all parts get all rows.

  // values [M, N] F32, contiguous. The rows that are returned get the sums over all parts, in the order of the parts;
  // the others are undefined. Every row is one part's. Collective.
  virtual IndexRange add_up_rows(Stream& stream, const TensorView& values) = 0;
  // rows [M, N] of any dtype, contiguous: every part has those that add_up_rows() of M rows gave it, and gets all.
  // Collective.
  virtual void gather_rows(const TensorView& rows) = 0;

  // values [M, N] F32, contiguous: the sum over all parts, the same bits on every rank. Collective.
  void add_up(Stream& stream, const TensorView& values) {
    add_up_rows(stream, values);
    gather_rows(values);
  }
};

}  // namespace zoetrope::encoders
