#include "kernels/flash_attention/state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kRowsPerThread = 64;  // fewer are not worth waking a thread for

}  // namespace

int64_t state_row_stride(const FlashProblem& problem) { return round_up(problem.head_dim, 16); }

size_t row_state_bytes(const FlashProblem& problem) {
  const int64_t rows = problem.batch * problem.heads * problem.query_tokens;
  return static_cast<size_t>(rows * (state_row_stride(problem) + 2)) * sizeof(float);
}

RowState::RowState(const FlashProblem& problem)
    : rows(problem.batch * problem.heads * problem.query_tokens),
      o_stride(state_row_stride(problem)),
      o(Tensor::uninitialized(DType::kF32, {rows, o_stride})),
      l(Tensor::uninitialized(DType::kF32, {rows})),
      m(Tensor::uninitialized(DType::kF32, {rows})) {}

void init_rows(Stream& stream, RowState& state) {
  stream.team().parallel_for(state.rows, kRowsPerThread, [&](IndexRange range, int) {
    std::memset(state.o.data<float>() + range.begin * state.o_stride, 0,
                static_cast<size_t>(range.size() * state.o_stride) * sizeof(float));
    std::fill(state.l.data<float>() + range.begin, state.l.data<float>() + range.end, 0.0f);
    std::fill(state.m.data<float>() + range.begin, state.m.data<float>() + range.end, RowState::kNoKeys);
  });
}

template <typename T>
void finish_row(const float* o, float l, float m, T* out, int64_t head_dim) {
  const float factor = m == RowState::kNoKeys ? 0.0f : 1.0f / l;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = from_float<T>(o[d] * factor);
}

template void finish_row<float>(const float*, float, float, float*, int64_t);
template void finish_row<BFloat16>(const float*, float, float, BFloat16*, int64_t);

void Output::write_log_sum(int64_t b, int64_t i, int64_t h, float l, float m) const {
  if (!log_sum_exp) return;
  const TensorView& to = log_sum_exp;
  const double sum = m == RowState::kNoKeys ? 0.0 : static_cast<double>(l);
  to.data<float>()[b * to.stride(0) + i * to.stride(1) + h * to.stride(2)] =
      static_cast<float>(std::numbers::ln2 * (static_cast<double>(m) + std::log2(sum)));
}

void finish_rows(Stream& stream, const FlashProblem& problem, const RowState& state, const Output& output) {
  const int64_t tokens = problem.query_tokens, heads = problem.heads;
  with_compute_type(output.o.dtype(), "o", [&](auto tag) {
    using T = typename decltype(tag)::type;
    stream.team().parallel_for(state.rows, kRowsPerThread, [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const int64_t b = row / tokens / heads, h = row / tokens % heads, i = row % tokens;
        const float l = state.l.data<float>()[row], m = state.m.data<float>()[row];
        finish_row(state.o.data<float>() + row * state.o_stride, l, m, output.row<T>(b, i, h), problem.head_dim);
        output.write_log_sum(b, i, h, l, m);
      }
    });
  });
}

}  // namespace zoetrope::kernels
