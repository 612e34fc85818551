// Online softmax one row at a time, sums of a block in double: the implementation that runs on every machine and that
// the vector ones are read against. No tiles, no packing, no speed.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/mask.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

constexpr double kLog2E = 1.4426950408889634;

class ScalarKernel final : public FlashKernel {
 public:
  explicit ScalarKernel(const FlashProblem& problem) : problem_(problem) {}

  void accumulate(Stream& stream, RowState& state, const TensorView& q, const KeyBlock& block) const override {
    with_compute_type(problem_.dtype, "q", [&](auto tag) {
      stream.team().parallel_for(state.rows, 1, [&](IndexRange range, int) {
        for (int64_t row = range.begin; row < range.end; ++row) {
          fold_row<typename decltype(tag)::type>(row, q, block, state.o.data<float>() + row * state.o_stride,
                                                 state.l.data<float>()[row], state.m.data<float>()[row]);
        }
      });
    });
  }

  void attend(Stream& stream, const TensorView& q, const KeyBlock& block, const TensorView& o) const override {
    const int64_t tokens = problem_.query_tokens, heads = problem_.heads;
    const Arena::Scope scope(stream.scratch());
    float* scratch = static_cast<float*>(stream.scratch().allocate(
        static_cast<size_t>(stream.team().size() * state_row_stride(problem_)) * sizeof(float)));
    with_compute_type(problem_.dtype, "q", [&](auto tag) {
      using T = typename decltype(tag)::type;
      stream.team().parallel_for(problem_.batch * heads * tokens, 1, [&](IndexRange range, int thread) {
        float* sum = scratch + thread * state_row_stride(problem_);
        for (int64_t row = range.begin; row < range.end; ++row) {
          std::fill(sum, sum + problem_.head_dim, 0.0f);
          float l = 0, m = RowState::kNoKeys;
          fold_row<T>(row, q, block, sum, l, m);
          const int64_t b = row / tokens / heads, h = row / tokens % heads, i = row % tokens;
          finish_row(sum, l, m, o.data<T>() + b * o.stride(0) + i * o.stride(1) + h * o.stride(2), problem_.head_dim);
        }
      });
    });
  }

 private:
  template <typename T>
  double score(const T* query, const T* key, const float* bias) const {
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) dot += static_cast<double>(to_float(query[d])) * to_float(key[d]);
    return (dot * static_cast<double>(problem_.scale) + (bias != nullptr ? static_cast<double>(*bias) : 0.0)) * kLog2E;
  }

  // Folds the valid keys of the block into one row of the state.
  template <typename T>
  void fold_row(int64_t row, const TensorView& q, const KeyBlock& block, float* o, float& l, float& m) const {
    const int64_t tokens = problem_.query_tokens, heads = problem_.heads, head_dim = problem_.head_dim;
    const int64_t b = row / tokens / heads, h = row / tokens % heads, i = row % tokens;
    const Mask mask(problem_, block);
    const T* query = q.data<const T>() + b * q.stride(0) + i * q.stride(1) + h * q.stride(2);
    double top = m, sum = l;
    thread_local std::vector<double> total;  // grows to the largest head once
    total.assign(o, o + head_dim);
    for (int64_t j = 0; j < block.k.extent(1); ++j) {
      if (!mask.valid(b, j)) continue;
      const T* key = block.k.data<const T>() + b * block.k.stride(0) + j * block.k.stride(1) + h * block.k.stride(2);
      const T* value = block.v.data<const T>() + b * block.v.stride(0) + j * block.v.stride(1) + h * block.v.stride(2);
      const float* bias = problem_.bias ? block.bias.data<const float>() + h * block.bias.stride(0) +
                                              i * block.bias.stride(1) + j * block.bias.stride(2)
                                        : nullptr;
      const double t = score(query, key, bias);
      if (const double raised = std::max({top, t, static_cast<double>(RowState::kAllMinusInfinity)}); raised > top) {
        const double alpha = std::exp2(top - raised);
        sum *= alpha;
        for (double& x : total) x *= alpha;
        top = raised;
      }
      const double p = std::exp2(t - top);
      sum += p;
      for (int64_t d = 0; d < head_dim; ++d) total[static_cast<size_t>(d)] += p * to_float(value[d]);
    }
    // The reference is rounded to float32 for the state; the weights follow it.
    m = static_cast<float>(top);
    const double follow = std::isfinite(top) ? std::exp2(top - static_cast<double>(m)) : 1.0;
    l = static_cast<float>(sum * follow);
    for (int64_t d = 0; d < head_dim; ++d) o[d] = static_cast<float>(total[static_cast<size_t>(d)] * follow);
  }

  FlashProblem problem_;
};

}  // namespace

std::unique_ptr<FlashKernel> make_scalar_kernel(const FlashProblem& problem) {
  return std::make_unique<ScalarKernel>(problem);
}

}  // namespace zoetrope::kernels
