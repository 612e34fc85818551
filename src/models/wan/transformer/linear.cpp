#include "models/wan/transformer/linear.h"

#include "kernels/pointwise/pointwise.h"

namespace zoetrope::wan {

TensorView as_operand(Stream& stream, const TensorView& x, const kernels::PackedMatrix& weight,
                      const TensorView& into) {
  if (x.dtype() == kernels::operand_dtype(weight)) return x;
  kernels::convert(stream, x, into);
  return into;
}

void linear(Stream& stream, const TensorView& x, const LinearWeights& layer, const TensorView& out,
            kernels::Activation activation) {
  if (x.extent(0) == 0) return;
  const Arena::Scope scope(stream.scratch());
  const DType dtype = kernels::operand_dtype(layer.weight);
  TensorView converted;
  if (x.dtype() != dtype)
    converted = stream.scratch().tensor(dtype, {x.extent(0), x.extent(1) + kOperandPadding}).slice(1, 0, x.extent(1));
  kernels::PackedGemm call;
  call.x = as_operand(stream, x, layer.weight, converted);
  call.w = layer.weight;
  call.bias = layer.bias;
  call.activation = activation;
  call.out = out;
  kernels::packed_gemm(stream, call);
}

}  // namespace zoetrope::wan
