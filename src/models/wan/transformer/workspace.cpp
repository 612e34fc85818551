#include "models/wan/transformer/workspace.h"

#include "kernels/gemm/packed.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/linear.h"

namespace zoetrope::wan {

namespace {

int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// Of the feed-forward's hidden rows, those of the last of `tensor` ranks, which has the most.
int64_t hidden_width(const TransformerConfig& config, int tensor) {
  return split_range(config.ffn_dim / hidden_unit(config.ffn_dim), tensor, tensor - 1).size() *
         hidden_unit(config.ffn_dim);
}

// body(buffer, dtype, shape) for each.
template <typename Body>
void for_each_buffer(const TransformerConfig& config, const TransformerSize& size, Body&& body) {
  using B = TransformerBuffers;
  const DType dtype = size.dtype;
  const int64_t d = config.inner_dim(), rows = chunk_rows(size.tokens), values = size.timesteps;
  const int64_t patch = std::max(config.patch_input_dim(), config.vace() ? config.control_input_dim() : 0);
  const DType operand = kernels::operand_dtype({nullptr, 1, 1, dtype, kernels::packed_layout(dtype)});
  const bool divided = size.tensor > 1, whole = !divided || config.vace() || config.face;
  const int64_t heads = d / size.tensor;  // width of this rank's
  // q, k and v of this rank's heads; rounded sums; of the control stream and of a face, tensors of all heads; patches.
  const int64_t narrow = std::max({3 * heads, divided ? d : 0, whole ? 3 * d : 0, patch}) * size_of(dtype);
  const int64_t hidden = (hidden_width(config, size.tensor) + kOperandPadding) * size_of(operand);
  body(&B::x, dtype, Shape{size.batch, size.tokens, d});
  body(&B::o, dtype, Shape{size.group, size.tokens, whole ? d : heads});
  if (divided) body(&B::sums, DType::kF32, Shape{rows, d});
  if (config.vace()) body(&B::control, dtype, Shape{size.group, size.tokens, d});
  if (size.keeps_residual) {
    body(&B::residual, dtype, Shape{size.batch, size.tokens, d});
    body(&B::minus_one, DType::kF32, Shape{d});
  }
  if (config.face) {
    const Shape keys{config.face_adapters(), 2, size.batch, size.frames * config.face->tokens(), d};
    body(&B::face_keys, dtype, keys);
  }
  body(&B::operand, operand, Shape{rows * (std::max(d, patch) + kOperandPadding)});
  body(&B::wide, DType::kU8, Shape{rows * std::max(narrow, hidden)});
  body(&B::sinusoid, DType::kF32, Shape{values, config.freq_dim});
  body(&B::time_hidden, DType::kF32, Shape{values, d});
  body(&B::time_float, DType::kF32, Shape{values, d});
  body(&B::temb, dtype, Shape{values, d});
  body(&B::time_act, dtype, Shape{values, d});
  body(&B::time_proj, dtype, Shape{values, 6 * d});
  body(&B::proj_float, DType::kF32, Shape{values, 6, d});
  body(&B::modulation, DType::kF32, Shape{config.block_count(), values, 6, d});
  body(&B::head_rows, DType::kF32, Shape{values, 2, d});
  if (config.vace()) body(&B::hint_factors, DType::kF32, Shape{2, d});
}

}  // namespace

void TransformerBuffers::book(const TransformerConfig& config, const TransformerSize& size) {
  // The old buffers are freed first, so that two sizes never exist at once.
  *this = {};
  for_each_buffer(config, size, [&](Tensor TransformerBuffers::*buffer, DType type, const Shape& shape) {
    this->*buffer = Tensor::uninitialized(type, shape);
  });
}

int64_t transformer_scratch_bytes(const TransformerConfig& config, int64_t tokens_local, DType dtype, int threads,
                                  int tensor) {
  const int64_t d = config.inner_dim(), rows = chunk_rows(tokens_local);
  std::vector<DType> types{dtype};
  if (dtype == DType::kBF16 && !config.int8_blocks.empty()) types.push_back(DType::kI8);
  size_t most = 0;
  const auto matrix = [&](int64_t n, int64_t k) {
    for (const DType type : types) {
      const kernels::PackedMatrix packed{nullptr, n, k, type, kernels::packed_layout(type)};
      most = std::max(most, kernels::packed_gemm_scratch_bytes(packed, rows, threads));
    }
  };
  matrix(3 * d / tensor, d);
  matrix(d, d / tensor);
  matrix(hidden_width(config, tensor), d);
  matrix(d, hidden_width(config, tensor));
  return static_cast<int64_t>(most);
}

int64_t transformer_workspace_bytes(const TransformerConfig& config, const TransformerSize& size, int threads) {
  int64_t bytes = transformer_scratch_bytes(config, size.tokens, size.dtype, threads, size.tensor);
  bytes += size.tokens * config.attention_head_dim * size_of(DType::kF32);  // cos and sin, a half each
  // What the sum over ranks receives of the others, of its share of the rows.
  const int64_t own_rows = ceil_div(chunk_rows(size.tokens), int64_t{size.tensor});
  bytes += (size.tensor - 1) * own_rows * config.inner_dim() * size_of(DType::kF32);
  for_each_buffer(config, size, [&](auto, DType type, const Shape& shape) { bytes += shape.size() * size_of(type); });
  return bytes;
}

}  // namespace zoetrope::wan
