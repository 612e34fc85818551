#include "models/encoders/encoder_block.h"

#include "kernels/pointwise/pointwise.h"
#include "trace/trace.h"

namespace zoetrope::encoders {

EncoderBlock::EncoderBlock(PartWeights& weights, Stream& stream, PartialSum* sum, const Sizes& sizes)
    : weights_(weights), stream_(stream), sum_(sum) {
  Arena& scratch = stream.scratch();
  const DType dtype = weights.dtype();
  const size_t buffer = weights.needs_buffer() ? sizes.buffer_bytes : 0;
  {
    const Arena::Scope scope(scratch);
    scratch.allocate(buffer + sizes.workspace_bytes);
  }
  if (buffer > 0) weights.set_buffer(scratch.tensor(dtype, {static_cast<int64_t>(buffer / dtype_size(dtype))}));
  for (TensorView* view : {&x, &n}) *view = scratch.tensor(dtype, {sizes.rows, sizes.width});
  for (TensorView* view : {&q, &k, &v, &o}) *view = scratch.tensor(dtype, {sizes.rows, sizes.attention});
  hidden = scratch.tensor(dtype, {sizes.rows, sizes.hidden});
  sums = scratch.tensor(DType::kF32, {sizes.rows, sizes.width});
}

void EncoderBlock::multiply(const TensorView& from, std::span<const kernels::ThinProduct> products) {
  kernels::thin_gemm(stream_,
                     {.x = from, .products = products, .weight_precision = weights_.dtype(), .implementation = {}});
  weights_.reset_buffer();
}

void EncoderBlock::add_sums() {
  if (sum_ != nullptr && sum_->parts() > 1) {
    const trace::Span span(stream_.lane(), "sum over ranks");
    sum_->add_up(sums);
  }
  const Shape shape{1, x.extent(0), x.extent(1)};
  const TensorView stream = x.reshape(shape);
  kernels::gated_add(stream_, stream, sums.reshape(shape), {}, stream);
}

}  // namespace zoetrope::encoders
