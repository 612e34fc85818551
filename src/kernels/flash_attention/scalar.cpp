// Attention one row at a time, online or about fixed offsets, sums of a block in double: the implementation that runs
// on every machine and that the vector ones are read against. No tiles, no packing, no speed.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/index_range.h"
#include "kernels/flash_attention/fixed_max.h"
#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/mask.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

class ScalarKernel final : public FlashKernel {
 public:
  explicit ScalarKernel(const FlashProblem& problem) : problem_(problem) {}

  TileCounts accumulate(Stream& stream, RowState& state, const TensorView& q, const KeyBlock& block) const override {
    return run(stream, q, block, [&](int64_t row, int) {
      return Row{state.o.data<float>() + row * state.o_stride, state.l.data<float>() + row,
                 state.m.data<float>() + row};
    });
  }

  TileCounts attend(Stream& stream, const TensorView& q, const KeyBlock& block, const Output& output) const override {
    const Arena::Scope scope(stream.scratch());
    const int64_t stride = state_row_stride(problem_) + 2;
    float* scratch = static_cast<float*>(
        stream.scratch().allocate(static_cast<size_t>(stream.team().size() * stride) * sizeof(float)));
    const auto row_of = [&](int64_t, int thread) {
      float* at = scratch + thread * stride;
      Row row{at + 2, at, at + 1};
      std::fill(row.o, row.o + problem_.head_dim, 0.0f);
      *row.l = 0;
      *row.m = RowState::kNoKeys;
      return row;
    };
    const auto finish = [&](int64_t index, const Row& row) {
      const Position at = position(index);
      with_compute_type(problem_.dtype, "o", [&](auto tag) {
        using T = typename decltype(tag)::type;
        finish_row(row.o, *row.l, *row.m, output.row<T>(at.b, at.i, at.h), problem_.head_dim);
      });
      output.write_log_sum(at.b, at.i, at.h, *row.l, *row.m);
    };
    return run(stream, q, block, row_of, finish);
  }

 private:
  // A row of the state.
  struct Row {
    float *o, *l, *m;
  };
  struct Position {
    int64_t b, h, i;
  };
  // An offset that is fixed; none where the row goes online.
  struct Offset {
    bool fixed = false;
    double center = 0, exponent = 0;
  };

  Position position(int64_t row) const {
    const int64_t tokens = problem_.query_tokens, heads = problem_.heads;
    return {row / tokens / heads, row / tokens % heads, row % tokens};
  }

  // Rows in groups that are gated together; `row_of` gives a row's place, `finish` takes it.
  template <typename RowOf, typename Finish>
  TileCounts run(Stream& stream, const TensorView& q, const KeyBlock& block, RowOf&& row_of, Finish&& finish) const {
    const Arena::Scope scope(stream.scratch());
    const TensorView statistics = statistics_of(stream, problem_, block);
    const int64_t head_dim = problem_.head_dim, groups = ceil_div(problem_.query_tokens, kGateRows);
    double* totals = static_cast<double*>(
        stream.scratch().allocate(static_cast<size_t>(stream.team().size() * head_dim) * sizeof(double)));
    std::atomic<int64_t> fixed{0}, online{0};
    stream.team().parallel_for(problem_.batch * problem_.heads * groups, 1, [&](IndexRange range, int thread) {
      for (int64_t item = range.begin; item < range.end; ++item) {
        const int64_t head = item / groups, first = item % groups * kGateRows;
        const int64_t count = std::min(kGateRows, problem_.query_tokens - first);
        float center[kGateRows], exponent[kGateRows];
        const RowMode mode = gate(statistics, q, head, first, count, center, exponent);
        if (any_key(block, head / problem_.heads)) (mode == RowMode::kOnline ? online : fixed) += 1;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t index = head * problem_.query_tokens + first + i;
          const Offset offset{mode != RowMode::kOnline, static_cast<double>(center[i]),
                              mode == RowMode::kExponent ? static_cast<double>(exponent[i]) : 0.0};
          const Row row = row_of(index, thread);
          with_compute_type(problem_.dtype, "q", [&](auto tag) {
            fold_row<typename decltype(tag)::type>(position(index), q, block, offset, row, totals + thread * head_dim);
          });
          finish(index, row);
        }
      }
    });
    return {fixed, online};
  }
  template <typename RowOf>
  TileCounts run(Stream& stream, const TensorView& q, const KeyBlock& block, RowOf&& row_of) const {
    return run(stream, q, block, row_of, [](int64_t, const Row&) {});
  }

  bool any_key(const KeyBlock& block, int64_t b) const {
    const Mask mask(problem_, block);
    for (int64_t j = 0; j < block.k.extent(1); ++j) {
      if (mask.valid(b, j)) return true;
    }
    return false;
  }

  RowMode gate(const TensorView& statistics, const TensorView& q, int64_t head, int64_t first, int64_t count,
               float* center, float* exponent) const {
    std::fill(center, center + count, 0.0f);
    std::fill(exponent, exponent + count, 0.0f);
    if (!statistics) return RowMode::kOnline;
    const int64_t b = head / problem_.heads, h = head % problem_.heads;
    const OffsetBound bound(problem_, statistics, b, h);
    const char* rows = q.data<const char>() + (b * q.stride(0) + first * q.stride(1) + h * q.stride(2)) *
                                                  static_cast<int64_t>(dtype_size(problem_.dtype));
    return bound.rows(rows, q.stride(1), count, center, exponent);
  }

  template <typename T>
  double score(const T* query, const T* key, const float* bias) const {
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) dot += static_cast<double>(to_float(query[d])) * to_float(key[d]);
    return (dot * static_cast<double>(problem_.scale) + (bias != nullptr ? static_cast<double>(*bias) : 0.0)) * kLog2E;
  }

  // Folds the valid keys of the block into one row of the state; `total` has D elements.
  template <typename T>
  void fold_row(const Position& at, const TensorView& q, const KeyBlock& block, const Offset& offset, const Row& row,
                double* total) const {
    const int64_t head_dim = problem_.head_dim;
    const auto [b, h, i] = at;
    const Mask mask(problem_, block);
    const T* query = q.data<const T>() + b * q.stride(0) + i * q.stride(1) + h * q.stride(2);
    double top = *row.m, sum = *row.l;
    std::copy(row.o, row.o + head_dim, total);
    for (int64_t j = 0; j < block.k.extent(1); ++j) {
      if (!mask.valid(b, j)) continue;
      const T* key = block.k.data<const T>() + b * block.k.stride(0) + j * block.k.stride(1) + h * block.k.stride(2);
      const T* value = block.v.data<const T>() + b * block.v.stride(0) + j * block.v.stride(1) + h * block.v.stride(2);
      const float* bias = problem_.bias ? block.bias.data<const float>() + h * block.bias.stride(0) +
                                              i * block.bias.stride(1) + j * block.bias.stride(2)
                                        : nullptr;
      const double t = score(query, key, bias);
      if (offset.fixed) {
        top = offset.center - offset.exponent;
      } else if (const double raised = std::max({top, t, double{RowState::kAllMinusInfinity}}); raised > top) {
        const double alpha = std::exp2(top - raised);
        sum *= alpha;
        for (int64_t d = 0; d < head_dim; ++d) total[d] *= alpha;
        top = raised;
      }
      const double p = std::exp2(t - top);
      sum += p;
      for (int64_t d = 0; d < head_dim; ++d) total[d] += p * static_cast<double>(to_float(value[d]));
    }
    // The reference is rounded to float32 for the state; the weights follow it.
    *row.m = static_cast<float>(top);
    const double follow = std::isfinite(top) ? std::exp2(top - static_cast<double>(*row.m)) : 1.0;
    *row.l = static_cast<float>(sum * follow);
    for (int64_t d = 0; d < head_dim; ++d) row.o[d] = static_cast<float>(total[d] * follow);
  }

  FlashProblem problem_;
};

}  // namespace

std::unique_ptr<FlashKernel> make_scalar_kernel(const FlashProblem& problem) {
  return std::make_unique<ScalarKernel>(problem);
}

}  // namespace zoetrope::kernels
