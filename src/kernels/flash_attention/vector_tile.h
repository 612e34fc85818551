// One query tile against all packed keys, as a template over a thin instruction-set type. Included once by each of the
// avx*.cpp files, with an Isa of internal linkage: nothing here may be instantiated elsewhere.
//
// Structure (the budgets are those of 512-bit cores, per 16 scores at D = 128: QK 32–64 cycles, PV the same, softmax
// about 5 exposed):
//  - keys in lanes, queries broadcast from memory; no shuffle in any loop. A register block is kQueryRows × kKeyVectors
//    accumulators; 16 to 20 of 32 leave registers for the softmax of a block while the next block is multiplied.
//  - panels of keys outside, rows inside: a key panel stays in the first cache level while the rows stream.
//  - softmax in the epilogue of the scores' register block, on values that are still in registers.
//  - lazy online softmax: a row's reference is its maximum over the first panel of keys it ever meets, and is kept. P
//    is scale free, so any reference is exact while sums stay within 2^±60. Once per key tile the row sums that exist
//    anyway are checked; a row that has left the range has its tile redone with a raised reference. Sums can only be
//    too large: the first panel's own maximum contributes 1.
//  - weights times values starts each key tile from zero and is added to o at its end: one chain over all keys would
//    lose a digit at 32 000 float32 keys.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/flash_attention/tile.h"

namespace zoetrope::kernels {

#define ZT_FLASH_INLINE inline __attribute__((always_inline))

constexpr float kSumLimit = 0x1p60f;
constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr float kFloatLog2E = 1.44269504088896340736f;
// RowState's special references, without its header (see tile.h on inline code).
constexpr float kReferenceNoKeys = -std::numeric_limits<float>::infinity();
constexpr float kReferenceLowest = std::numeric_limits<float>::lowest();

// Brings the next panel to the second cache level while this one is worked on, a share before each register block.
// While the packs sit there anyway it gains nothing; beyond, most of what there is to lose. At 16 384 float32 keys:
// 0.91 of the peak with 20 KB of each panel brought to the first level, 0.93 with all of it brought to the second,
// where it cannot push out the panel in use.
class PanelPrefetch {
 public:
  ZT_FLASH_INLINE PanelPrefetch(const void* from, int64_t bytes, int64_t blocks)
      : at_(static_cast<const char*>(from)), share_((bytes / 64 + blocks - 1) / blocks) {}
  ZT_FLASH_INLINE void share() {
    for (int64_t line = 0; line < share_; ++line) __builtin_prefetch(at_ + line * 64, 0, 2);
    at_ += share_ * 64;
  }

 private:
  const char* at_;
  int64_t share_;  // lines
};

// acc[r][w] += a[r][step] · b[step][w] over all steps: the loop that everything else waits on. Words of kStep lanes lie
// between two steps of b, 0: those of w. Lost: unrolling by 4 and 8 (0, and −5 points with sixteen registers), fetching
// the next block's rows between the steps (−3).
template <typename Ops, int kStep = 0, typename Sum, int kRows, int kWidth>
ZT_FLASH_INLINE void multiply_steps(Sum (&acc)[kRows][kWidth], const typename Ops::Element* const (&a)[kRows],
                                    const typename Ops::Element* b, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    typename Ops::Operand bw[kWidth];
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) bw[w] = Ops::operand(b + w * Ops::kLanes * Ops::kPair);
    b += (kStep == 0 ? kWidth * Ops::kLanes : kStep) * Ops::kPair;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Ops::Operand x = Ops::broadcast(a[r] + step * Ops::kPair);
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) acc[r][w] = Ops::dot(acc[r][w], x, bw[w]);
    }
  }
}

// The same, with between(r) before each of kRows equal shares of the steps; what is left follows. Of a gain of 2.1 % in
// bf16 on Zen 5 a loop over the shares leaves 1.0.
template <typename Ops, typename Sum, int kRows, int kWidth, typename Between>
ZT_FLASH_INLINE void multiply_steps_between(Sum (&acc)[kRows][kWidth], const typename Ops::Element* (&a)[kRows],
                                            const typename Ops::Element* b, int64_t steps, const Between& between) {
  const int64_t share = steps / kRows;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    between(r);
    multiply_steps<Ops>(acc, a, b, share);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) a[i] += share * Ops::kPair;
    b += share * kWidth * Ops::kLanes * Ops::kPair;
  }
  multiply_steps<Ops>(acc, a, b, steps - kRows * share);
}

// References that the driver gives are never raised.
template <TileSoftmax kSoftmax>
constexpr bool kReferencesGiven = kSoftmax == TileSoftmax::kFixed || kSoftmax == TileSoftmax::kFixedExponent;

// Runs a tile with the softmax and biases of its task; the driver gives no references where scores have biases.
template <typename Tile>
ZT_FLASH_INLINE void run_tile(Tile& tile, const TileTask& task) {
  const bool bias = task.bias != nullptr;
  switch (task.softmax) {
    case TileSoftmax::kLazy:
      return bias ? tile.template run<TileSoftmax::kLazy, true>() : tile.template run<TileSoftmax::kLazy, false>();
    case TileSoftmax::kExact:
      return bias ? tile.template run<TileSoftmax::kExact, true>() : tile.template run<TileSoftmax::kExact, false>();
    case TileSoftmax::kFixed:
      return tile.template run<TileSoftmax::kFixed, false>();
    case TileSoftmax::kFixedExponent:
      return tile.template run<TileSoftmax::kFixedExponent, false>();
  }
}

template <typename Isa>
class VectorTile {
  using Element = typename Isa::Element;
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;
  static constexpr int kRows = Isa::kQueryRows;
  static constexpr int kVectors = Isa::kKeyVectors;
  static constexpr int kPanelKeys = kLanes * kVectors;

 public:
  static constexpr TileShape kShape = {Isa::kOperand,      kLanes, kPair,          kPanelKeys,
                                       Isa::kValueVectors, kRows,  Isa::kStepUnit, 1};

  static void fold(const TileTask& task) {
    VectorTile<Isa> tile(task);
    run_tile(tile, task);
  }

  template <TileSoftmax kSoftmax, bool kBias>
  void run() {
    load_state<kSoftmax>();
    for (int64_t first = 0; first < t_.key_count; first += key_tile_) {
      const int64_t keys = t_.key_count - first < key_tile_ ? t_.key_count - first : key_tile_;
      if constexpr (kSoftmax == TileSoftmax::kExact) {
        score_exactly<kBias>(first, keys);
      } else {
        score_tile<kSoftmax, kBias>(first, keys);
        check_tile<kSoftmax, kBias>(first, keys);
      }
      apply_values(first, keys);
      fresh_ = false;
    }
    store_state<kSoftmax>();
  }

 protected:
  explicit VectorTile(const TileTask& task)
      : t_(task),
        key_tile_(task.key_tile),
        weight_stride_(task.key_tile + kWeightPadding / static_cast<int64_t>(sizeof(Element))),
        steps_(kShape.steps(task.head_dim)),
        padded_rows_((task.rows + kRows - 1) / kRows * kRows),
        vectors_((task.head_dim + kLanes - 1) / kLanes),
        weights_(static_cast<Element*>(task.scratch.weights)) {}

  // ---- state ----

  template <TileSoftmax kSoftmax>
  void load_state() {
    fresh_ = t_.m[0] == kReferenceNoKeys;
    for (int64_t r = 0; r < padded_rows_; ++r) {
      const int64_t row = r < t_.rows ? r : t_.rows - 1;
      if constexpr (!kReferencesGiven<kSoftmax>) {
        t_.scratch.minus_m[r] = -t_.m[row];
      } else if (r >= t_.rows) {
        t_.scratch.minus_m[r] = t_.scratch.minus_m[row];
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
      t_.m[r] = -t_.scratch.minus_m[r];
      if constexpr (kSoftmax == TileSoftmax::kFixedExponent) t_.m[r] -= t_.exponent[r];
      t_.l[r] = Isa::reduce_add(Isa::load(t_.scratch.sums + r * kLanes));
    }
  }

  // ---- scores and weights ----

  ZT_FLASH_INLINE const Element* query(int64_t row) const {
    return static_cast<const Element*>(t_.q) + (row < t_.rows ? row : t_.rows - 1) * t_.q_stride;
  }
  ZT_FLASH_INLINE Element* weights(int64_t row) const { return weights_ + row * weight_stride_; }
  ZT_FLASH_INLINE const Element* key_panel(int64_t first_key) const {
    return static_cast<const Element*>(t_.keys) + first_key * steps_ * kPair;
  }

  ZT_FLASH_INLINE const Element* value_tile(int64_t first_key) const {
    return static_cast<const Element*>(t_.values) + first_key * vectors_ * kLanes;
  }

  template <TileSoftmax kSoftmax, bool kBias>
  void score_tile(int64_t first, int64_t keys) {
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      const int64_t valid = keys - panel;
      const bool reference = !kReferencesGiven<kSoftmax> && fresh_ && panel == 0;
      const void* next = valid > kPanelKeys ? static_cast<const void*>(key_panel(first + panel + kPanelKeys))
                                            : static_cast<const void*>(value_tile(first));
      if (valid < kPanelKeys) {
        score_panel<kSoftmax, kBias, Panel::kPartial>(first, panel, valid, reference, next);
      } else if (reference) {
        score_panel<kSoftmax, kBias, Panel::kFirst>(first, panel, kPanelKeys, true, next);
      } else {
        score_panel<kSoftmax, kBias, Panel::kWhole>(first, panel, kPanelKeys, false, next);
      }
    }
  }

  enum class Panel {
    kWhole,
    kFirst,    // the first that these rows meet: it gives them their reference
    kPartial,  // only `valid` keys of it exist; perhaps the first as well
  };

  // Rows of a register block whose scores are known and whose weights are not.
  struct Scored {
    Vec scores[kRows][kVectors];
    int64_t row0;
  };

  // Scores of all rows with one panel of keys, their weights, and their part of the row sums. With kWeighBetween the
  // weights of a register block are computed between the products of the next, a row at a time: these keep the
  // multipliers busy, those mostly what adds and converts. On Zen 5 that takes 2 % off bf16 attention of 4 096 keys,
  // and adds 1 to 4 % where the other hyper-thread is busy.
  template <TileSoftmax kSoftmax, bool kBias, Panel kPanel>
  __attribute__((noinline)) void score_panel(int64_t first, int64_t panel, int64_t valid, bool reference,
                                             const void* next) {
    constexpr bool kTail = kPanel == Panel::kPartial;
    const Vec scale = Isa::set1(t_.scale_log2e);
    float* const minus_m = t_.scratch.minus_m;
    Element* const out = weights(0) + panel;
    const int64_t padded_rows = padded_rows_;
    PanelPrefetch prefetch(next, steps_ * kPanelKeys * kPair * int64_t{sizeof(Element)}, padded_rows / kRows);
    [[maybe_unused]] Scored scored;
    const auto weigh_scored = [&](int r) __attribute__((always_inline)) {
      weigh_row<kSoftmax, kBias, kTail>(scored.scores[r], scale, scored.row0 + r, first + panel, valid, out);
    };
    for (int64_t row0 = 0; row0 < padded_rows; row0 += kRows) {
      prefetch.share();
      if constexpr (kPanel == Panel::kFirst) fetch_rows(row0 + kRowsAhead);
      Vec acc[kRows][kVectors];
      if (!Isa::kWeighBetween || row0 == 0) {
        products<kRows>(acc, first + panel, row0);
      } else {
        products<kRows>(acc, first + panel, row0, weigh_scored);
      }
      if (kPanel == Panel::kFirst || (kTail && reference)) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const float top = panel_maximum<kBias, kTail>(acc[r], scale, row0 + r, first + panel, valid);
          minus_m[row0 + r] = -valid_reference(top);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        if constexpr (Isa::kWeighBetween) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) scored.scores[r][v] = acc[r][v];
        } else {
          weigh_row<kSoftmax, kBias, kTail>(acc[r], scale, row0 + r, first + panel, valid, out);
        }
      }
      scored.row0 = row0;
    }
    if constexpr (Isa::kWeighBetween) {
      for (int r = 0; r < kRows; ++r) weigh_scored(r);
    }
  }

  // Queries come from memory in a tile's first panel, and from the second cache level in the others, where asking for
  // them costs more than it gains.
  static constexpr int64_t kRowsAhead = 2 * kRows;
  ZT_FLASH_INLINE void fetch_rows(int64_t first) const {
    constexpr int64_t kLine = 64 / int64_t{sizeof(Element)};
    for (int64_t row = first; row < first + kRows; ++row) {
      for (int64_t d = 0; d < steps_ * kPair; d += kLine) __builtin_prefetch(query(row) + d);
    }
  }

  struct NothingBetween {};

  template <int kBlockRows, typename Between = NothingBetween>
  ZT_FLASH_INLINE void products(Vec (&acc)[kBlockRows][kVectors], int64_t key, int64_t row0,
                                const Between& between = {}) const {
    const Element* k = key_panel(key);
    const Element* q[kBlockRows];
#pragma GCC unroll 16
    for (int r = 0; r < kBlockRows; ++r) {
      q[r] = query(row0 + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Isa::set1(0);
    }
    if constexpr (std::is_same_v<Between, NothingBetween>) {
      multiply_steps<Isa>(acc, q, k, steps_);
    } else {
      multiply_steps_between<Isa>(acc, q, k, steps_, between);
    }
  }

  // score·scale·log₂e + bias·log₂e + addend
  template <bool kBias>
  static ZT_FLASH_INLINE Vec exponent(Vec score, Vec scale, const float* bias, Vec addend) {
    if constexpr (kBias) addend = Isa::fma(Isa::load(bias), Isa::set1(kFloatLog2E), addend);
    return Isa::fma(score, scale, addend);
  }

  // The panel's biases in the order of the packed keys; in place where that is memory order and no lane is missing.
  ZT_FLASH_INLINE const float* bias_of(int64_t row, int64_t key, int64_t valid, bool tail, float* buffer) const {
    const float* bias = t_.bias + (row < t_.rows ? row : t_.rows - 1) * t_.bias_stride;
    if (t_.key_index == nullptr && !tail) return bias + key;
    for (int64_t j = 0; j < kPanelKeys; ++j) {
      const bool exists = !tail || j < valid;
      const int64_t column = t_.key_index == nullptr ? key + j : exists ? t_.key_index[key + j] : 0;
      buffer[j] = exists ? bias[column] : 0.0f;
    }
    return buffer;
  }

  // The largest exponent of one row of a panel; NaN scores may hide in it.
  template <bool kBias, bool kTail>
  ZT_FLASH_INLINE float panel_maximum(const Vec (&score)[kVectors], Vec scale, int64_t row, int64_t key,
                                      int64_t valid) const {
    alignas(64) float buffer[kPanelKeys];
    const float* bias = kBias ? bias_of(row, key, valid, kTail, buffer) : nullptr;
    Vec top = Isa::set1(kReferenceNoKeys);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec t = exponent<kBias>(score[v], scale, kBias ? bias + v * kLanes : nullptr, Isa::set1(0));
      if constexpr (kTail) t = Isa::keep_lanes(t, static_cast<int>(valid - v * kLanes), kReferenceNoKeys);
      top = Isa::max(top, t);
    }
    return Isa::reduce_max(top);
  }

  // Never −∞ and never NaN: differences to the reference stay clean, and a NaN score makes its own weight NaN.
  static ZT_FLASH_INLINE float valid_reference(float top) { return top > kReferenceLowest ? top : kReferenceLowest; }

  // The weights of one row of a panel, stored as operands, and their part of the row's sum. `out`: those of row 0.
  template <TileSoftmax kSoftmax, bool kBias, bool kTail>
  ZT_FLASH_INLINE void weigh_row(const Vec (&score)[kVectors], Vec scale, int64_t row, int64_t key, int64_t valid,
                                 Element* out) const {
    float* tile_sum = t_.scratch.tile_sums + row * kLanes;
    const Vec sum = weigh<kSoftmax, kBias, kTail>(score, scale, row, key, valid, out + row * weight_stride_);
    Isa::store(tile_sum, Isa::add(Isa::load(tile_sum), sum));
  }

  // Returns the sums of the weights by lanes.
  template <TileSoftmax kSoftmax, bool kBias, bool kTail>
  ZT_FLASH_INLINE Vec weigh(const Vec (&score)[kVectors], Vec scale, int64_t row, int64_t key, int64_t valid,
                            Element* out) const {
    alignas(64) float buffer[kPanelKeys];
    const float* bias = kBias ? bias_of(row, key, valid, kTail, buffer) : nullptr;
    const Vec minus_m = Isa::set1(t_.scratch.minus_m[row]);
    Vec p[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      p[v] = exponent<kBias>(score[v], scale, kBias ? bias + v * kLanes : nullptr, minus_m);
    if constexpr (kSoftmax == TileSoftmax::kFixedExponent) {
      const Vec exponents[1] = {Isa::set1(t_.exponent[row < t_.rows ? row : t_.rows - 1])};
      Isa::template exp2_scaled<kVectors>(p, exponents);
    } else {
      Isa::exp2(p);
    }
    if constexpr (kTail) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) p[v] = Isa::keep_lanes(p[v], static_cast<int>(valid - v * kLanes), 0.0f);
    }
    return Isa::store_weights(out, p);
  }

  // ---- the check of lazy softmax ----

  // Fixed references need no check, their sums cannot leave the range.
  template <TileSoftmax kSoftmax, bool kBias>
  void check_tile(int64_t first, int64_t keys) {
    for (int64_t row = 0; row < t_.rows; ++row) {
      float* sum = t_.scratch.sums + row * kLanes;
      float* tile_sum = t_.scratch.tile_sums + row * kLanes;
      const Vec before = Isa::load(sum);
      Vec after = Isa::add(before, Isa::load(tile_sum));
      if constexpr (!kReferencesGiven<kSoftmax>) {
        if (!Isa::all_at_most(after, kSumLimit)) [[unlikely]] {
          // A sum that was not finite before stays so whatever is redone.
          if (Isa::all_at_most(before, kFloatMax)) after = redo_row<kBias>(first, keys, row);
        }
      }
      Isa::store(sum, after);
      Isa::store(tile_sum, Isa::set1(0));
    }
  }

  // Rows of trained models need this a handful of times, so it runs one row at a time. Returns the sums with this
  // tile's.
  template <bool kBias>
  __attribute__((noinline)) Vec redo_row(int64_t first, int64_t keys, int64_t row) {
    Vec score[1][kVectors];
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      products<1>(score, first + panel, row);
      for (int v = 0; v < kVectors; ++v) Isa::store(t_.scratch.scores + panel + v * kLanes, score[0][v]);
    }
    return raise_row<kBias>(t_.scratch.scores, first, keys, row);
  }

  // Raises the reference of a row to its maximum over this tile, brings o and the sums along, and makes the tile's
  // weights from its scores. Returns the sums with this tile's.
  template <bool kBias>
  ZT_FLASH_INLINE Vec raise_row(const float* scores, int64_t first, int64_t keys, int64_t row) {
    const Vec scale = Isa::set1(t_.scale_log2e);
    const float reference = -t_.scratch.minus_m[row];
    float top = valid_reference(reference);
    Vec score[1][kVectors];
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      for (int v = 0; v < kVectors; ++v) score[0][v] = Isa::load(scores + panel + v * kLanes);
      const float highest = panel_maximum<kBias, true>(score[0], scale, row, first + panel, keys - panel);
      top = highest > top ? highest : top;
    }
    t_.scratch.minus_m[row] = -top;
    Vec sum = Isa::load(t_.scratch.sums + row * kLanes);
    // Exactly 1 where the reference stays; 0 where there was none.
    if (top != reference) {
      const float alpha = reference > kReferenceLowest ? Isa::exp2_scalar(reference - top) : 0.0f;
      sum = Isa::mul(sum, Isa::set1(alpha));
      for (int64_t v = 0; v < vectors_ && !fresh_; ++v) {
        float* o = t_.o + row * t_.o_stride + v * kLanes;
        Isa::store(o, Isa::mul(Isa::load(o), Isa::set1(alpha)));
      }
    }
    Vec tile_sum = Isa::set1(0);
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      for (int v = 0; v < kVectors; ++v) score[0][v] = Isa::load(scores + panel + v * kLanes);
      tile_sum = Isa::add(tile_sum, weigh<TileSoftmax::kExact, kBias, true>(score[0], scale, row, first + panel,
                                                                            keys - panel, weights(row) + panel));
    }
    return Isa::add(sum, tile_sum);
  }

  // ---- exact online softmax, in sequence: scores of the tile, then softmax, then values ----

  // The textbook form, kept to be compared with. It costs a pass over the scores in the second cache level, and a
  // rescale of o wherever a maximum rises.
  template <bool kBias>
  void score_exactly(int64_t first, int64_t keys) {
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      for (int64_t row0 = 0; row0 < padded_rows_; row0 += kRows) {
        Vec acc[kRows][kVectors];
        products<kRows>(acc, first + panel, row0);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            Isa::store(t_.scratch.scores + (row0 + r) * key_tile_ + panel + v * kLanes, acc[r][v]);
          }
        }
      }
    }
    raise_rows<kBias>(first, keys);
  }

  template <bool kBias>
  void raise_rows(int64_t first, int64_t keys) {
    for (int64_t row = 0; row < t_.rows; ++row) {
      const Vec sum = raise_row<kBias>(t_.scratch.scores + row * key_tile_, first, keys, row);
      Isa::store(t_.scratch.sums + row * kLanes, sum);
    }
  }

  // ---- weights times values ----

  void apply_values(int64_t first, int64_t keys) {
    const ValuePanels panels(t_.head_dim, kShape);
    const Element* tile = value_tile(first);
    // A key tile is packed for whole panels; only pairs that exist are multiplied.
    const int64_t packed_keys = (keys + kPanelKeys - 1) / kPanelKeys * kPanelKeys;
    const int64_t pairs = (keys + kPair - 1) / kPair;
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t vector = panels.first_vector(panel), width = panels.width_vectors(panel);
      const Element* v = tile + vector * kLanes * packed_keys;
      float* o = t_.o + vector * kLanes;
      const void* next = panel + 1 < panels.count ? static_cast<const void*>(v + width * kLanes * packed_keys)
                                                  : static_cast<const void*>(key_panel(first + key_tile_));
      value_panel<Isa::kValueVectors>(width, v, pairs, o, next);
    }
  }

  template <int kWidth>
  ZT_FLASH_INLINE void value_panel(int64_t width, const Element* v, int64_t pairs, float* o, const void* next) {
    if constexpr (kWidth > 1) {
      if (width < kWidth) return value_panel<kWidth - 1>(width, v, pairs, o, next);
    }
    constexpr int kBlockRows = Isa::value_rows(kWidth);
    if (fresh_) {
      value_rows<kWidth, kBlockRows, true>(v, pairs, o, next);
    } else {
      value_rows<kWidth, kBlockRows, false>(v, pairs, o, next);
    }
  }

  template <int kWidth, int kBlockRows, bool kFresh>
  __attribute__((noinline)) void value_rows(const Element* v, int64_t pairs, float* o, const void* next) {
    const int64_t rows = t_.rows, stride = t_.o_stride;
    PanelPrefetch prefetch(next, pairs * kWidth * kLanes * kPair * int64_t{sizeof(Element)},
                           (rows + kBlockRows - 1) / kBlockRows);
    int64_t row = 0;
    for (; row + kBlockRows <= rows; row += kBlockRows) {
      prefetch.share();
      Vec acc[kBlockRows][kWidth];
      value_products(acc, v, pairs, weights(row), kBlockRows - 1);
#pragma GCC unroll 16
      for (int r = 0; r < kBlockRows; ++r) add_to_row<kFresh>(o + (row + r) * stride, acc[r]);
    }
    if (row == rows) return;
    Vec acc[kBlockRows][kWidth];
    value_products(acc, v, pairs, weights(row), rows - 1 - row);
    for (int r = 0; r < kBlockRows && row + r < rows; ++r) add_to_row<kFresh>(o + (row + r) * stride, acc[r]);
  }

  // Rows of weights beyond `last` repeat it.
  template <int kBlockRows, int kWidth>
  ZT_FLASH_INLINE void value_products(Vec (&acc)[kBlockRows][kWidth], const Element* v, int64_t pairs,
                                      const Element* weights, int64_t last) const {
    const Element* p[kBlockRows];
#pragma GCC unroll 16
    for (int r = 0; r < kBlockRows; ++r) {
      p[r] = weights + (r < last ? r : last) * weight_stride_;
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) acc[r][w] = Isa::set1(0);
    }
    multiply_steps<Isa>(acc, p, v, pairs);
  }

  template <bool kFresh, int kWidth>
  static ZT_FLASH_INLINE void add_to_row(float* o, const Vec (&acc)[kWidth]) {
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) {
      Isa::store(o + w * kLanes, kFresh ? acc[w] : Isa::add(Isa::load(o + w * kLanes), acc[w]));
    }
  }

  const TileTask& t_;
  const int64_t key_tile_;
  const int64_t weight_stride_;  // elements
  const int64_t steps_;          // products of a score: ⌈D/pair⌉, rounded up to the step unit
  const int64_t padded_rows_;    // whole register blocks; rows beyond the tile repeat the last one and are never stored
  const int64_t vectors_;        // of D
  Element* weights_;             // of the key tile whose scores are at hand
  bool fresh_ = false;           // no key has been folded into these rows yet
};

}  // namespace zoetrope::kernels
