// One query tile against all packed keys in int8, as a template over a thin instruction-set type; what the integers
// stand for is in int8_attention.h. Included by the files of implementations, with types of internal linkage.
// Structured as vector_tile.h, but for the weights:
//  - The weights of a row and a panel of keys are divided by the largest of them, which becomes 255. So the maximum of
//    the panel is taken before its weights are computed.
//  - What weights were divided by is a factor of the row and panel. It alone holds the row's reference: where lazy
//    softmax raises that, factors are computed again, and weights stay as they are.
//  - Sums over the keys of a panel are int32. They become float32 and are multiplied by their factors, and those of a
//    key tile are multiplied by the values' scales.
//
// Tile derives from it and has score_panel(), which computes the weights of all rows with one panel of keys.
#pragma once

#include "kernels/flash_attention/exp2_coefficients.h"
#include "kernels/flash_attention/int8_panel.h"
#include "kernels/flash_attention/vector_tile.h"

namespace zoetrope::kernels {

// Of Bytes, which adds products of unsigned and signed bytes: signed queries, keys that are unsigned because 128 was
// added; and unsigned weights, signed values.
template <typename Bytes>
struct ScoreBytes : Bytes {
  using Element = int8_t;
  using Ints = typename Bytes::Operand;
  static ZT_FLASH_INLINE Ints dot(Ints sum, Ints query, Ints keys) { return Bytes::add_fours(sum, keys, query); }
};
template <typename Bytes>
struct ValueBytes : Bytes {
  using Element = uint8_t;
  using Ints = typename Bytes::Operand;
  static ZT_FLASH_INLINE Ints dot(Ints sum, Ints weight, Ints values) { return Bytes::add_fours(sum, weight, values); }
};

template <typename Isa, typename Tile>
class Int8VectorTile {
 protected:
  using Vec = typename Isa::Vec;
  using Ints = typename Isa::Ints;
  using Query = typename Isa::ScoreProducts::Element;
  using Weight = typename Isa::ValueProducts::Element;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kTerms = Isa::kTerms;
  static constexpr int kRows = Isa::kRows;
  static constexpr int kPanelKeys = kInt8PanelKeys;
  static constexpr int kPanelSteps = kPanelKeys / kTerms;
  static constexpr int kChannels = kInt8ValueLanes;  // a vector of TileShape, of one or two registers

 public:
  static constexpr TileShape kShape = {DType::kI8, kChannels, kTerms, kPanelKeys, Isa::kValueVectors, kRows, 1, 1};

  static void fold(const TileTask& task) {
    Tile tile(task);
    run_tile(tile, task);
  }

  template <TileSoftmax kSoftmax, bool kBias>
  void run() {
    load_state<kSoftmax>();
    for (int64_t first = 0; first < t_.key_count; first += key_tile_) {
      const int64_t keys = t_.key_count - first < key_tile_ ? t_.key_count - first : key_tile_;
      score_tile<kSoftmax, kBias>(first, keys);
      check_tile<kSoftmax>(keys);
      apply_values(first, keys);
      fresh_ = false;
    }
    store_state<kSoftmax>();
  }

 protected:
  explicit Int8VectorTile(const TileTask& task)
      : t_(task),
        key_tile_(task.key_tile),
        weight_stride_(task.key_tile + kWeightPadding / static_cast<int64_t>(sizeof(Weight))),
        steps_(kShape.steps(task.head_dim)),
        padded_rows_((task.rows + kRows - 1) / kRows * kRows),
        channels_((task.head_dim + kChannels - 1) / kChannels * kChannels),
        weights_(static_cast<Weight*>(task.scratch.weights)),
        tops_(task.scratch.panels),
        factors_(tops_ + key_tile_ / kPanelKeys * task.weight_rows),
        weight_sums_(factors_ + key_tile_ / kPanelKeys * task.weight_rows) {}

  ZT_FLASH_INLINE const Query* query(int64_t row) const {
    return static_cast<const Query*>(t_.q) + (row < t_.rows ? row : t_.rows - 1) * t_.q_stride;
  }
  ZT_FLASH_INLINE Weight* weights(int64_t row) const { return weights_ + row * weight_stride_; }
  ZT_FLASH_INLINE const char* key_panel(int64_t first_key) const {
    return static_cast<const char*>(t_.keys) + first_key * int8_key_bytes(steps_);
  }
  // The scales of a panel's keys.
  ZT_FLASH_INLINE const float* key_scales(int64_t first_key) const {
    return reinterpret_cast<const float*>(key_panel(first_key) + 4 * steps_ * kPanelKeys);
  }
  ZT_FLASH_INLINE const char* value_tile(int64_t first_key) const {
    return static_cast<const char*>(t_.values) +
           first_key / key_tile_ * int8_value_tile_bytes(key_tile_, channels_, kTerms);
  }
  ZT_FLASH_INLINE float* tops(int64_t panel) const { return tops_ + panel * t_.weight_rows; }
  ZT_FLASH_INLINE float* factors(int64_t panel) const { return factors_ + panel * t_.weight_rows; }

  // The biases of a panel's keys, times log₂e, and the scale of the row's scores: NaN where a bias is, which an integer
  // could not say.
  Vec panel_bias(float (&of_panel)[kPanelKeys], int64_t row, int64_t key, int64_t valid) const {
    const float* bias = t_.bias + (row < t_.rows ? row : t_.rows - 1) * t_.bias_stride;
    bool nan = false;
    for (int64_t j = 0; j < kPanelKeys; ++j) {
      of_panel[j] = j >= valid ? 0.0f : bias[t_.key_index == nullptr ? key + j : t_.key_index[key + j]];
      nan = nan || of_panel[j] != of_panel[j];
      of_panel[j] *= kFloatLog2E;
    }
    return Isa::set1(nan ? std::numeric_limits<float>::quiet_NaN() : t_.q_scales[row]);
  }

 private:
  // ---- state ----

  // Inside, scores and references of a row are without the q·k̄ that is left out of its products.
  template <TileSoftmax kSoftmax>
  void load_state() {
    fresh_ = t_.m[0] == kReferenceNoKeys;
    for (int64_t r = 0; r < padded_rows_; ++r) {
      const int64_t row = r < t_.rows ? r : t_.rows - 1;
      if constexpr (!kReferencesGiven<kSoftmax>) {
        t_.scratch.minus_m[r] = t_.q_offsets[row] - t_.m[row];
      } else {
        t_.scratch.minus_m[r] = r < t_.rows ? t_.q_offsets[row] + t_.scratch.minus_m[r] : t_.scratch.minus_m[row];
      }
      float* sum = t_.scratch.sums + r * kLanes;
      Isa::store(sum, Isa::set1(0));
      Isa::store(t_.scratch.tile_sums + r * kLanes, Isa::set1(0));
      sum[0] = fresh_ ? 0.0f : t_.l[row];
    }
  }

  template <TileSoftmax kSoftmax>
  void store_state() {
    for (int64_t r = 0; r < t_.rows; ++r) {
      t_.m[r] = t_.q_offsets[r] - t_.scratch.minus_m[r];
      if constexpr (kSoftmax == TileSoftmax::kFixedExponent) t_.m[r] -= t_.exponent[r];
      t_.l[r] = Isa::reduce_add(Isa::load(t_.scratch.sums + r * kLanes));
    }
  }

  // ---- scores and weights ----

  template <TileSoftmax kSoftmax, bool kBias>
  void score_tile(int64_t first, int64_t keys) {
    Tile& tile = static_cast<Tile&>(*this);
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      const int64_t valid = keys - panel;
      const bool reference = kSoftmax == TileSoftmax::kLazy && fresh_ && panel == 0;
      const void* next = valid > kPanelKeys ? key_panel(first + panel + kPanelKeys) : value_tile(first);
      if (valid < kPanelKeys) {
        tile.template score_panel<kSoftmax, kBias, true>(first, panel, valid, reference, next);
      } else {
        tile.template score_panel<kSoftmax, kBias, false>(first, panel, kPanelKeys, reference, next);
      }
    }
  }

  // ---- the check of lazy softmax ----

  // Fixed references need no check, their sums cannot leave the range. The textbook's are raised at every tile.
  template <TileSoftmax kSoftmax>
  void check_tile(int64_t keys) {
    for (int64_t row = 0; row < t_.rows; ++row) {
      float* sum = t_.scratch.sums + row * kLanes;
      float* tile_sum = t_.scratch.tile_sums + row * kLanes;
      Vec before = Isa::load(sum), of_tile = Isa::load(tile_sum);
      if constexpr (!kReferencesGiven<kSoftmax>) {
        // A sum that was not finite before stays so whatever is redone.
        if (kSoftmax == TileSoftmax::kExact ||
            (!Isa::all_at_most(Isa::add(before, of_tile), kSumLimit) && Isa::all_at_most(before, kFloatMax))) {
          of_tile = raise_row(keys, row, before);
        }
      }
      Isa::store(sum, Isa::add(before, of_tile));
      Isa::store(tile_sum, Isa::set1(0));
      weight_sums_[row] = Isa::reduce_add(of_tile);
    }
  }

  // Raises the reference of a row to its maximum over this tile, brings o and the sums so far along, and computes the
  // tile's factors again. Returns the tile's sums.
  __attribute__((noinline)) Vec raise_row(int64_t keys, int64_t row, Vec& before) {
    const float reference = -t_.scratch.minus_m[row];
    float highest = reference > kReferenceLowest ? reference : kReferenceLowest;
    for (int64_t panel = 0; panel * kPanelKeys < keys; ++panel) {
      const float top = tops(panel)[row];
      highest = top > highest ? top : highest;
    }
    t_.scratch.minus_m[row] = -highest;
    // Exactly 1 where the reference stays; 0 where there was none.
    if (highest != reference) {
      const Vec alpha = Isa::set1(reference > kReferenceLowest ? Isa::exp2_scalar(reference - highest) : 0.0f);
      before = Isa::mul(before, alpha);
      for (int64_t d = 0; d < channels_ && !fresh_; d += kLanes) {
        float* o = t_.o + row * t_.o_stride + d;
        Isa::store(o, Isa::mul(Isa::load(o), alpha));
      }
    }
    Vec sum = Isa::set1(0);
    for (int64_t panel = 0; panel * kPanelKeys < keys; ++panel) {
      const float factor = Isa::exp2_scalar(tops(panel)[row] - kLog2Of255 - highest);
      factors(panel)[row] = factor;
      const Ints of_panel = Isa::panel_sums(weights(row) + panel * kPanelKeys);
      sum = Isa::fma(Isa::to_floats(of_panel), Isa::set1(factor), sum);
    }
    return sum;
  }

  // ---- weights times values ----

  void apply_values(int64_t first, int64_t keys) {
    const ValuePanels panels(t_.head_dim, kShape);
    const char* tile = value_tile(first);
    const auto* scales = reinterpret_cast<const float*>(tile);
    const auto* values = reinterpret_cast<const Weight*>(tile + int8_value_scale_bytes(channels_));
    const int64_t key_panels = (keys + kPanelKeys - 1) / kPanelKeys, packed_keys = key_panels * kPanelKeys;
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t channel = panels.first_vector(panel) * kChannels, width = panels.width_vectors(panel);
      const Weight* v = values + channel * packed_keys;
      const void* next = panel + 1 < panels.count ? static_cast<const void*>(v + width * kChannels * packed_keys)
                                                  : static_cast<const void*>(key_panel(first + key_tile_));
      value_panel<Isa::kValueVectors>(width, {v, scales + channel, key_panels, t_.o + channel, next});
    }
  }

  struct ValueTask {
    const Weight* values;  // [key panel][steps][width][lanes] words
    const float* scales;   // [channels]; centers are `channels_` behind them
    int64_t key_panels;
    float* o;
    const void* next;  // what is prefetched
  };

  template <int kVectors>
  ZT_FLASH_INLINE void value_panel(int64_t vectors, const ValueTask& task) {
    if constexpr (kVectors > 1) {
      if (vectors < kVectors) return value_panel<kVectors - 1>(vectors, task);
    }
    constexpr int kBlockRows = Isa::value_rows(kVectors), kWidth = kVectors * kChannels / kLanes;
    if (fresh_) {
      value_rows<kWidth, kBlockRows, true>(task);
    } else {
      value_rows<kWidth, kBlockRows, false>(task);
    }
  }

  template <int kWidth, int kBlockRows, bool kFresh>
  __attribute__((noinline)) void value_rows(const ValueTask& task) {
    const int64_t rows = t_.rows, stride = t_.o_stride;
    PanelPrefetch prefetch(task.next,
                           static_cast<int64_t>(sizeof(Weight)) * task.key_panels * kPanelKeys * kWidth * kLanes,
                           (rows + kBlockRows - 1) / kBlockRows);
    Vec scale[kWidth], center[kWidth];
    const float* centers = task.scales + channels_;
    alignas(64) float total[kBlockRows][kWidth * kLanes] = {};
    for (int64_t row = 0; row < rows; row += kBlockRows) {
      prefetch.share();
      for (int64_t panel = 0; panel < task.key_panels; ++panel) add_panel(total, task, panel, row);
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) {
        scale[w] = Isa::load(task.scales + w * kLanes);
        center[w] = Isa::load(centers + w * kLanes);
      }
      for (int64_t r = 0; r < kBlockRows && row + r < rows; ++r) {
        float* o = task.o + (row + r) * stride;
        const Vec sum = Isa::set1(weight_sums_[row + r]);
#pragma GCC unroll 4
        for (int w = 0; w < kWidth; ++w) {
          const Vec before = kFresh ? Isa::set1(0) : Isa::load(o + w * kLanes);
          const Vec centered = Isa::fma(sum, center[w], before);
          Isa::store(o + w * kLanes, Isa::fma(Isa::load(total[r] + w * kLanes), scale[w], centered));
        }
      }
    }
  }

  // total[r] (+)= factor · weights · values, of one panel of keys. Rows beyond the tile repeat its last one.
  template <int kBlockRows, int kFloats>
  ZT_FLASH_INLINE void add_panel(float (&total)[kBlockRows][kFloats], const ValueTask& task, int64_t panel,
                                 int64_t row) const {
    constexpr int kWidth = kFloats / kLanes;
    const Weight* p[kBlockRows];
    const float* factor[kBlockRows];
    Ints sums[kBlockRows][kWidth];
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const int64_t at = row + r < t_.rows ? row + r : t_.rows - 1;
      p[r] = weights(at) + panel * kPanelKeys;
      factor[r] = factors(panel) + at;
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) sums[r][w] = Isa::set_ints(0);
    }
    multiply_steps<typename Isa::ValueProducts>(sums, p, task.values + panel * kPanelKeys * kFloats, kPanelSteps);
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const Vec by = Isa::set1(*factor[r]);
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) {
        float* to = total[r] + w * kLanes;
        const Vec sum = Isa::to_floats(sums[r][w]);
        Isa::store(to, panel == 0 ? Isa::mul(sum, by) : Isa::fma(sum, by, Isa::load(to)));
      }
    }
  }

 protected:
  const TileTask& t_;
  const int64_t key_tile_;
  const int64_t weight_stride_;
  const int64_t steps_;        // products of a score
  const int64_t padded_rows_;  // whole register blocks; rows beyond the tile are those behind it, and never stored
  const int64_t channels_;     // D rounded up
  Weight* weights_;            // of the key tile at hand, each panel in the order of int8_step_key()
  float* tops_;                // [panel][rows]: the largest score of each, to base 2
  float* factors_;             // [panel][rows]: what its weights are multiplied by
  float* weight_sums_;         // [rows], of the key tile
  bool fresh_ = false;         // no key has been folded into these rows yet
};

}  // namespace zoetrope::kernels
