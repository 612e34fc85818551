// The definition of attention in float64, row by row: scores, their maximum, weights, weighted mean. Nothing is
// rounded to float32 on the way.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/mask.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

template <typename T>
const T* row_of(const TensorView& x /* [B, S, H, D] */, int64_t b, int64_t token, int64_t h) {
  return x.data<const T>() + b * x.stride(0) + token * x.stride(1) + h * x.stride(2);
}

// Returns the log-sum-exp of the row.
template <typename T>
double reference_row(const FlashProblem& problem, const TensorView& q, const KeyBlock& block, int64_t b, int64_t h,
                     int64_t i, std::vector<double>& out) {
  const Mask mask(problem, block);
  const int64_t keys = block.k.extent(1), head_dim = problem.head_dim;
  const T* query = row_of<T>(q, b, i, h);
  std::vector<double> score(static_cast<size_t>(keys));
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    if (!mask.valid(b, j)) continue;
    const T* key = row_of<T>(block.k, b, j, h);
    double dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) dot += static_cast<double>(to_float(query[d])) * to_float(key[d]);
    double s = dot * static_cast<double>(problem.scale);
    if (problem.bias) {
      const TensorView& bias = block.bias;
      s += bias.data<const float>()[h * bias.stride(0) + i * bias.stride(1) + j * bias.stride(2)];
    }
    score[static_cast<size_t>(j)] = s;
    top = std::max(top, s);
  }
  double sum = 0;
  bool any = false;
  std::fill(out.begin(), out.end(), 0.0);
  for (int64_t j = 0; j < keys; ++j) {
    if (!mask.valid(b, j)) continue;
    any = true;
    const double p = std::exp(score[static_cast<size_t>(j)] - top);
    const T* value = row_of<T>(block.v, b, j, h);
    sum += p;
    for (int64_t d = 0; d < head_dim; ++d) out[static_cast<size_t>(d)] += p * to_float(value[d]);
  }
  if (!any) return -std::numeric_limits<double>::infinity();  // no valid key: zeros
  for (double& x : out) x /= sum;
  return top + std::log(sum);
}

}  // namespace

void flash_attention_reference(const FlashProblem& problem, const TensorView& q, const KeyBlock& block,
                               const TensorView& o, const TensorView& log_sum_exp) {
  std::vector<double> out(static_cast<size_t>(problem.head_dim));
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.heads; ++h) {
      for (int64_t i = 0; i < problem.query_tokens; ++i) {
        with_compute_type(q.dtype(), "q", [&](auto tag) {
          const double log_sum = reference_row<typename decltype(tag)::type>(problem, q, block, b, h, i, out);
          if (log_sum_exp) {
            const TensorView& to = log_sum_exp;
            to.data<double>()[b * to.stride(0) + i * to.stride(1) + h * to.stride(2)] = log_sum;
          }
        });
        for (int64_t d = 0; d < problem.head_dim; ++d) {
          const int64_t at = b * o.stride(0) + i * o.stride(1) + h * o.stride(2) + d * o.stride(3);
          const double value = out[static_cast<size_t>(d)];
          if (o.dtype() == DType::kF64) {
            o.data<double>()[at] = value;
          } else {
            o.data<float>()[at] = static_cast<float>(value);
          }
        }
      }
    }
  }
}

}  // namespace zoetrope::kernels
