#include "kernels/flash_attention/state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

void finish_rows(Stream& stream, const FlashProblem& problem, const RowState& state, const TensorView& o) {
  const int64_t tokens = problem.query_tokens, heads = problem.heads;
  with_compute_type(o.dtype(), "o", [&](auto tag) {
    using T = typename decltype(tag)::type;
    stream.team().parallel_for(state.rows, kRowsPerThread, [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const int64_t b = row / tokens / heads, h = row / tokens % heads, i = row % tokens;
        T* out = o.data<T>() + b * o.stride(0) + i * o.stride(1) + h * o.stride(2);
        finish_row(state.o.data<float>() + row * state.o_stride, state.l.data<float>()[row], state.m.data<float>()[row],
                   out, problem.head_dim);
      }
    });
  });
}

}  // namespace zoetrope::kernels
