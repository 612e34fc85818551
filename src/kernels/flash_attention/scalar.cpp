// Attention one row at a time, online or about fixed offsets, sums of a block in double: the implementation that runs
// on every machine and that the vector ones are read against. No tiles, no packing, no speed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include "base/index_range.h"
#include "kernels/flash_attention/fixed_max.h"
#include "kernels/flash_attention/int8_attention.h"
#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/mask.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"
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
  // The keys and values of a block in int8; those that are valid come first.
  struct Int8 {
    TensorView means;  // [B, H, 3 + D]
    int8_t* keys;      // [B·H][keys][int8_row_bytes]
    float* scales;     // [B·H][keys]
    float* values;     // [B·H][keys][D], rounded
    bool* heads;       // [B·H]: multiplied in int8
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
    TileCounts counts;
    const Int8 int8 = problem_.int8 ? int8_block(stream, q, block, counts) : Int8{};
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
            fold_row<typename decltype(tag)::type>(position(index), q, block, offset, int8, row,
                                                   totals + thread * head_dim);
          });
          finish(index, row);
        }
      }
    });
    counts.fixed = fixed;
    counts.online = online;
    return counts;
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

  Int8 int8_block(Stream& stream, const TensorView& q, const KeyBlock& block, TileCounts& counts) const {
    const int64_t keys = block.k.extent(1), head_dim = problem_.head_dim, bytes = int8_row_bytes(head_dim);
    const int64_t heads = problem_.batch * problem_.heads, key_tile = int8_key_tile();
    const auto allocate = [&](int64_t size) { return stream.scratch().allocate(static_cast<size_t>(size)); };
    const auto floats = [&](int64_t count) { return static_cast<float*>(allocate(count * int64_t{sizeof(float)})); };
    const Int8 int8{means_of(stream, problem_, block), static_cast<int8_t*>(allocate(heads * keys * bytes)),
                    floats(heads * keys), floats(heads * keys * head_dim), static_cast<bool*>(allocate(heads))};
    const int64_t padded = round_up(head_dim, kInt8ValueLanes);
    const Int8Channels channels{floats(padded), floats(padded), floats(padded)};
    std::vector<int8_t> rounded(static_cast<size_t>(padded));
    void* const sample = allocate(int8_sample_bytes());
    const Mask mask(problem_, block);
    Int8Heads taken(problem_);
    std::vector<int32_t> valid;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t b = head / problem_.heads, h = head % problem_.heads;
      valid.clear();
      for (int64_t j = 0; j < keys; ++j)
        if (mask.valid(b, j)) valid.push_back(static_cast<int32_t>(j));
      const auto source = [&](const TensorView& x, const int32_t* index, int64_t count) {
        return PackSource{row_of<BFloat16>(x, b, 0, h), x.stride(1), problem_.dtype, index, count, head_dim};
      };
      const auto count = std::ssize(valid);
      const PackSource selected_keys = source(block.k, valid.data(), count),
                       selected_values = source(block.v, valid.data(), count);
      int8.heads[head] =
          count > 0 && taken.take(int8_output_error(
                           source(q, nullptr, problem_.query_tokens), selected_keys, selected_values, mean(int8, b, h),
                           static_cast<float>(static_cast<double>(problem_.scale) * kLog2E), key_tile, sample));
      if (!int8.heads[head]) continue;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t row = head * keys + j;
        if (j % key_tile == 0)
          measure_int8_channels(selected_values, j, std::min(j + key_tile, count), kInt8ValueLanes, channels);
        int8.scales[row] = int8_row(row_of<BFloat16>(block.k, b, valid[static_cast<size_t>(j)], h), mean(int8, b, h),
                                    head_dim, int8.keys + row * bytes)
                               .scale;
        int8_value_row(row_of<BFloat16>(block.v, b, valid[static_cast<size_t>(j)], h), channels, head_dim,
                       rounded.data());
        for (int64_t d = 0; d < head_dim; ++d)
          int8.values[row * head_dim + d] =
              channels.centers[d] + channels.scales[d] * static_cast<float>(rounded[static_cast<size_t>(d)]);
      }
    }
    taken.store_in(counts);
    return int8;
  }
  // Keys whose values have one scale, as in the implementation that is read against this one.
  int64_t int8_key_tile() const { return with_tile_sizes(*vector_shape("avx512_int8"), problem_.tiles).key_tile; }

  static const float* mean(const Int8& int8, int64_t b, int64_t h) {
    return int8.means.data<const float>() + b * int8.means.stride(0) + h * int8.means.stride(1) + kStatMean;
  }

  template <typename T>
  static const T* row_of(const TensorView& x, int64_t b, int64_t token, int64_t h) {
    return x.data<const T>() + b * x.stride(0) + token * x.stride(1) + h * x.stride(2);
  }

  template <typename T>
  double product(const T* query, const T* key) const {
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) dot += static_cast<double>(to_float(query[d])) * to_float(key[d]);
    return dot;
  }

  // A query in int8, and its product with the mean key.
  struct Int8Query {
    int8_t values[kMostHeadDim];
    double scale = 0, offset = 0;
  };
  double product(const Int8Query& query, const Int8& int8, int64_t row) const {
    const int8_t* key = int8.keys + row * int8_row_bytes(problem_.head_dim);
    int32_t sum = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) sum += int32_t{query.values[d]} * int32_t{key[d]};
    return sum * static_cast<double>(int8.scales[row]) * query.scale + query.offset;
  }

  double score(double product, const float* bias) const {
    return (product * static_cast<double>(problem_.scale) + (bias != nullptr ? static_cast<double>(*bias) : 0.0)) *
           kLog2E;
  }

  const float* bias_of(const KeyBlock& block, const Position& at, int64_t key) const {
    if (!problem_.bias) return nullptr;
    const TensorView& bias = block.bias;
    return bias.data<const float>() + at.h * bias.stride(0) + at.i * bias.stride(1) + key * bias.stride(2);
  }

  // A row of the state in double, while keys are folded into it.
  class Fold {
   public:
    Fold(const Offset& offset, const Row& row, int64_t head_dim, double* total)
        : offset_(offset), row_(row), head_dim_(head_dim), total_(total), top_(*row.m), sum_(*row.l) {
      std::copy(row.o, row.o + head_dim, total);
    }
    // Scores up to t follow.
    void raise(double t) {
      if (offset_.fixed) {
        top_ = offset_.center - offset_.exponent;
      } else if (const double raised = std::max({top_, t, double{RowState::kAllMinusInfinity}}); raised > top_) {
        const double alpha = std::exp2(top_ - raised);
        sum_ *= alpha;
        for (int64_t d = 0; d < head_dim_; ++d) total_[d] *= alpha;
        top_ = raised;
      }
    }
    // A key with the weight share · 2^t.
    template <typename T>
    void add(double t, double share, const T* value) {
      const double p = share * std::exp2(t - top_);
      sum_ += p;
      for (int64_t d = 0; d < head_dim_; ++d) total_[d] += p * static_cast<double>(to_float(value[d]));
    }
    // The reference is rounded to float32 for the state; the weights follow it.
    void store() {
      *row_.m = static_cast<float>(top_);
      const double follow = std::isfinite(top_) ? std::exp2(top_ - static_cast<double>(*row_.m)) : 1.0;
      *row_.l = static_cast<float>(sum_ * follow);
      for (int64_t d = 0; d < head_dim_; ++d) row_.o[d] = static_cast<float>(total_[d] * follow);
    }

   private:
    const Offset& offset_;
    const Row& row_;
    int64_t head_dim_;
    double* total_;
    double top_, sum_;
  };

  // Folds the valid keys of the block into one row of the state; `total` has D elements.
  template <typename T>
  void fold_row(const Position& at, const TensorView& q, const KeyBlock& block, const Offset& offset, const Int8& int8,
                const Row& row, double* total) const {
    const auto [b, h, i] = at;
    const Mask mask(problem_, block);
    const T* query = row_of<T>(q, b, i, h);
    Fold fold(offset, row, problem_.head_dim, total);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (problem_.int8 && int8.heads[b * problem_.heads + h]) {
        fold_int8(at, query, block, int8, fold);
        return fold.store();
      }
    }
    for (int64_t j = 0; j < block.k.extent(1); ++j) {
      if (!mask.valid(b, j)) continue;
      const double t = score(product(query, row_of<T>(block.k, b, j, h)), bias_of(block, at, j));
      fold.raise(t);
      fold.add(t, 1, row_of<T>(block.v, b, j, h));
    }
    fold.store();
  }

  // Panel by panel, weights as bytes.
  void fold_int8(const Position& at, const BFloat16* query, const KeyBlock& block, const Int8& int8, Fold& fold) const {
    const auto [b, h, i] = at;
    const Mask mask(problem_, block);
    const int64_t keys = block.k.extent(1), first_row = (b * problem_.heads + h) * keys, head_dim = problem_.head_dim;
    Int8Query int8_query;
    const Int8Row quantised = int8_row(query, nullptr, head_dim, int8_query.values);
    int8_query.scale = static_cast<double>(quantised.scale) / static_cast<double>(rotation_size(head_dim));
    int8_query.offset = static_cast<double>(mean_product(query, mean(int8, b, h), head_dim));
    std::vector<double> scores;
    for (int64_t j = 0; j < keys; ++j) {
      if (!mask.valid(b, j)) continue;
      const int64_t row = first_row + std::ssize(scores);
      scores.push_back(score(product(int8_query, int8, row), bias_of(block, at, j)));
    }
    const int64_t count = std::ssize(scores);
    for (int64_t first = 0; first < count; first += kInt8PanelKeys) {
      const std::span<const double> panel(scores.data() + first,
                                          static_cast<size_t>(std::min(kInt8PanelKeys, count - first)));
      double top = double{RowState::kAllMinusInfinity};
      for (const double t : panel) top = std::isnan(t) ? t : std::max(top, t);
      fold.raise(top);
      for (int64_t j = 0; j < std::ssize(panel); ++j) {
        const double largest = static_cast<double>(kInt8LargestWeight);
        const double byte = std::nearbyint(largest * std::exp2(panel[static_cast<size_t>(j)] - top));
        fold.add(top, byte / largest, int8.values + (first_row + first + j) * head_dim);
      }
    }
  }

  FlashProblem problem_;
};

}  // namespace

std::unique_ptr<FlashKernel> make_scalar_kernel(const FlashProblem& problem) {
  return std::make_unique<ScalarKernel>(problem);
}

}  // namespace zoetrope::kernels
