#include "cli/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/thread_team.h"
#include "kernels/flash_attention/flash_attention.h"
#include "tensor/half.h"

namespace zoetrope::cli {
namespace {

constexpr double kMostWork = 2e10;  // multiply-adds of q·k: half a minute of a core

// Tokens first, first + step, … of x [B, S, H, D].
struct Sample {
  int64_t rows, step, first;

  TensorView of(const TensorView& x) const {
    const Shape shape{x.extent(0), rows, x.extent(2), x.extent(3)};
    const Shape strides{x.stride(0), x.stride(1) * step, x.stride(2), x.stride(3)};
    auto* begin = x.data<char>() + first * x.stride(1) * static_cast<int64_t>(dtype_size(x.dtype()));
    return {begin, x.dtype(), shape, strides};
  }
};

Sample choose_rows(const AttentionData& data) {
  const auto tokens = data.query_tokens();
  const double row = static_cast<double>(data.k.size());  // multiply-adds of one token of each batch entry
  const auto most = static_cast<int64_t>(std::min(kMostWork / row, 1e18));
  const int64_t rows = std::clamp<int64_t>(most, 1, tokens);
  const int64_t step = tokens / rows;
  return {rows, step, (tokens - 1 - (rows - 1) * step) / 2};
}

kernels::MaskKind kernel_mask(attention::MaskKind kind) {
  switch (kind) {
    case attention::MaskKind::kKeyLengths:
      return kernels::MaskKind::kKeyLengths;
    case attention::MaskKind::kKeyMask:
      return kernels::MaskKind::kKeyMask;
    default:
      return kernels::MaskKind::kNone;
  }
}

struct Sums {
  double difference = 0, norm = 0, most = 0;
  int64_t nonfinite = 0, nonfinite_missed = 0;

  void add(double value, double reference) {
    if (!std::isfinite(reference)) {
      ++nonfinite;
      if (std::isfinite(value)) ++nonfinite_missed;
      return;
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double d = std::isfinite(value) ? std::abs(value - reference) : kInfinity;
    difference += d * d;
    norm += reference * reference;
    most = std::max(most, d);
  }
};

template <typename T>
Sums sums_of(const TensorView& o, const TensorView& reference) {
  Sums sums;
  for (int64_t b = 0; b < o.extent(0); ++b) {
    for (int64_t i = 0; i < o.extent(1); ++i) {
      for (int64_t h = 0; h < o.extent(2); ++h) {
        const T* value = o.data<const T>() + b * o.stride(0) + i * o.stride(1) + h * o.stride(2);
        const double* exact = reference.data<const double>() + b * reference.stride(0) + i * reference.stride(1) +
                              h * reference.stride(2);
        for (int64_t d = 0; d < o.extent(3); ++d) sums.add(static_cast<double>(to_float(value[d])), exact[d]);
      }
    }
  }
  return sums;
}

}  // namespace

ReferenceErrors compare_with_reference(const AttentionData& data, const attention::Problem& problem,
                                       const TensorView& o, int threads) {
  const Sample sample = choose_rows(data);
  const TensorView q = sample.of(data.q), value = sample.of(o);
  kernels::KeyBlock block;
  block.k = data.k;
  block.v = data.v;
  block.key_lengths = data.key_lengths;
  block.key_mask = data.key_mask;
  const Tensor exact = Tensor::uninitialized(DType::kF64, q.shape());
  std::vector<Sums> parts(static_cast<size_t>(threads));
  ThreadTeam team(threads);
  team.parallel_for(sample.rows, 1, [&](IndexRange rows, int thread) {
    kernels::FlashProblem flash;
    flash.batch = problem.batch;
    flash.query_tokens = rows.size();
    flash.key_tokens = data.key_tokens();
    flash.heads = problem.heads;
    flash.head_dim = problem.head_dim;
    flash.dtype = problem.dtype;
    flash.scale = problem.scale;
    flash.mask = kernel_mask(problem.mask);
    const TensorView part = exact.view().slice(1, rows.begin, rows.end);
    kernels::flash_attention_reference(flash, q.slice(1, rows.begin, rows.end), block, part);
    const TensorView mine = value.slice(1, rows.begin, rows.end);
    parts[static_cast<size_t>(thread)] =
        problem.dtype == DType::kF32 ? sums_of<float>(mine, part) : sums_of<BFloat16>(mine, part);
  });
  Sums all;
  for (const Sums& part : parts) {
    all.difference += part.difference;
    all.norm += part.norm;
    all.most = std::max(all.most, part.most);
    all.nonfinite += part.nonfinite;
    all.nonfinite_missed += part.nonfinite_missed;
  }
  ReferenceErrors errors;
  errors.rel_l2 = all.difference == 0 ? 0 : std::sqrt(all.difference / all.norm);
  errors.max_abs = all.most;
  errors.rows = sample.rows;
  errors.nonfinite = all.nonfinite;
  errors.nonfinite_missed = all.nonfinite_missed;
  return errors;
}

}  // namespace zoetrope::cli
