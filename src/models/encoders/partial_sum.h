// The sum over ranks for a model that splits the inner dimension of a layer. Models do not know ranks: they are handed
// one of these and their part.
#pragma once

#include "zoetrope/tensor.h"

namespace zoetrope::encoders {

class PartialSum {
 public:
  virtual ~PartialSum() = default;
  virtual int parts() const = 0;  // that a layer is split into
  virtual int part() const = 0;   // which of them is the caller's
  // values [M, N] F32, contiguous: the sum over all parts, the same bits on every rank. Collective.
  virtual void add_up(const TensorView& values) = 0;
};

}  // namespace zoetrope::encoders
