// What encoders that run once have in common: the buffers of a layer, booked together, its matrix multiplications, and
// the sum that ends both of its halves. Norms, attention and embeddings are each encoder's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/gemm/thin_gemm.h"
#include "models/encoders/part_weights.h"
#include "models/encoders/partial_sum.h"

namespace zoetrope::encoders {

// M rows of width d. A and F are this rank's part of all heads together and of the feed-forward. W: the
// compute dtype of `weights`.
class EncoderBlock {
 public:
  struct Sizes {
    int64_t rows, width, attention, hidden;  // M, d, A, F
    size_t workspace_bytes;                  // of everything: these buffers, the encoder's own, the operations' scratch
    size_t buffer_bytes;  // of the matrices of one multiplication, where some cannot be used as stored
  };
  // Books the scratch of an encode() in the enclosing scope, in one block: piece by piece there would be gaps that
  // nothing fits into. `sum`: null where this rank has whole layers.
  EncoderBlock(PartWeights& weights, Stream& stream, PartialSum* sum, const Sizes& sizes);

  // F32 weights of a bf16 encoder count as converted.
  void multiply(const TensorView& from, std::span<const kernels::ThinProduct> products);
  // x += the sum of `sums` over all parts, rounded once.
  void add_sums();

  TensorView x;           // [M, d] W: the residual stream
  TensorView n;           // [M, d] W
  TensorView q, k, v, o;  // [M, A] W
  TensorView hidden;      // [M, F] W
  TensorView sums;        // [M, d] F32: what half a layer adds to x

 private:
  PartWeights& weights_;
  Stream& stream_;
  PartialSum* sum_;
};

}  // namespace zoetrope::encoders
