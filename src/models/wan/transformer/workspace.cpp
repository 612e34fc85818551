#include "models/wan/transformer/workspace.h"

#include "kernels/gemm/packed.h"
#include "models/wan/transformer/linear.h"

namespace zoetrope::wan {

namespace {

int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// body(buffer, dtype, shape) for each.
template <typename Body>
void for_each_buffer(const TransformerConfig& config, int64_t tokens, int64_t batch, DType dtype, Body&& body) {
  using B = TransformerBuffers;
  const int64_t d = config.inner_dim(), rows = chunk_rows(tokens), patch = config.patch_input_dim();
  const DType operand = kernels::operand_dtype({nullptr, 1, 1, dtype, kernels::packed_layout(dtype)});
  const int64_t narrow = std::max(3 * d, patch) * size_of(dtype);
  const int64_t hidden = (config.ffn_dim + kOperandPadding) * size_of(operand);
  body(&B::x, dtype, Shape{batch, tokens, d});
  body(&B::o, dtype, Shape{batch, tokens, d});
  body(&B::operand, operand, Shape{rows * (std::max(d, patch) + kOperandPadding)});
  body(&B::wide, DType::kU8, Shape{rows * std::max(narrow, hidden)});
  body(&B::sinusoid, DType::kF32, Shape{batch, config.freq_dim});
  body(&B::time_hidden, DType::kF32, Shape{batch, d});
  body(&B::time_float, DType::kF32, Shape{batch, d});
  body(&B::temb, dtype, Shape{batch, d});
  body(&B::time_act, dtype, Shape{batch, d});
  body(&B::time_proj, dtype, Shape{batch, 6 * d});
  body(&B::proj_float, DType::kF32, Shape{batch, 6, d});
  body(&B::modulation, DType::kF32, Shape{config.num_layers, batch, 6, d});
  body(&B::head_rows, DType::kF32, Shape{batch, 2, d});
}

}  // namespace

void TransformerBuffers::book(const TransformerConfig& config, int64_t tokens_local, int64_t batch, DType dtype) {
  // What was booked goes first, so that two sizes are never held at once.
  *this = {};
  for_each_buffer(config, tokens_local, batch, dtype,
                  [&](Tensor TransformerBuffers::*buffer, DType type, const Shape& shape) {
                    this->*buffer = Tensor::uninitialized(type, shape);
                  });
}

int64_t transformer_scratch_bytes(const TransformerConfig& config, int64_t tokens_local, DType dtype, int threads) {
  const int64_t d = config.inner_dim(), rows = chunk_rows(tokens_local);
  size_t most = 0;
  const auto matrix = [&](int64_t n, int64_t k) {
    const kernels::PackedMatrix packed{nullptr, n, k, dtype, kernels::packed_layout(dtype)};
    most = std::max(most, kernels::packed_gemm_scratch_bytes(packed, rows, threads));
  };
  matrix(3 * d, d);
  matrix(config.ffn_dim, d);
  matrix(d, config.ffn_dim);
  return static_cast<int64_t>(most);
}

int64_t transformer_workspace_bytes(const TransformerConfig& config, int64_t tokens_local, int64_t batch, DType dtype,
                                    int threads) {
  int64_t bytes = transformer_scratch_bytes(config, tokens_local, dtype, threads);
  bytes += tokens_local * config.attention_head_dim * size_of(DType::kF32);  // cos and sin, a half each
  for_each_buffer(config, tokens_local, batch, dtype,
                  [&](auto, DType type, const Shape& shape) { bytes += shape.size() * size_of(type); });
  return bytes;
}

}  // namespace zoetrope::wan
