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
  const bool divided = sum_ != nullptr && sum_->parts() > 1;
  const trace::Span span(divided ? stream_.lane() : trace::Lane(), "sum over ranks");
  const IndexRange mine = divided ? sum_->add_up_rows(stream_, sums) : IndexRange{0, x.extent(0)};
  const auto rows = [&](const TensorView& all) {
    return all.slice(0, mine.begin, mine.end).reshape({1, mine.size(), x.extent(1)});
  };
  if (!mine.empty()) kernels::gated_add(stream_, rows(x), rows(sums), {}, rows(x));
  if (divided) sum_->gather_rows(x);
}

}  // namespace zoetrope::encoders
