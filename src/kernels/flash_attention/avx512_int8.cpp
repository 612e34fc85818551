// One query tile against all packed keys in int8, on AVX512-VNNI: both products are sums of four products of bytes.
// What the bytes stand for is in int8_attention.h. Structured as vector_tile.h, but for the weights:
//  - The weights of a row and a panel of keys are divided by the largest of them, which becomes 255. So the maximum of
//    the panel is taken while the scores are in registers, those of four rows in one tree.
//  - What weights were divided by is a factor of the row and panel. It alone holds the row's reference: where lazy
//    softmax raises that, factors are computed again, and weights stay as they are.
//  - Sums over the keys of a panel are int32. They become float32 and are multiplied by their factors, and those of a
//    key tile are multiplied by the values' scales.
#include "kernels/flash_attention/avx512_common.h"
#include "kernels/flash_attention/exp2_coefficients.h"
#include "kernels/flash_attention/int8_panel.h"

namespace zoetrope::kernels {
namespace {

using Isa = Avx512Vectors;
using Vec = __m512;
using Ints = __m512i;
constexpr int kLanes = Isa::kLanes;
constexpr int kTerms = 4;  // of a product of 32-bit lanes
constexpr int kRows = 4;
constexpr int kVectors = 4;
constexpr int kValueVectors = 4;
constexpr int kPanelKeys = kLanes * kVectors;
static_assert(kPanelKeys == kInt8PanelKeys && kLanes == kInt8ValueLanes);
constexpr int kPanelSteps = kPanelKeys / kTerms;

struct Bytes {
  using Operand = Ints;
  static constexpr int kLanes = Isa::kLanes, kPair = kTerms;
  static ZT_FLASH_INLINE Operand operand(const void* x) { return _mm512_loadu_si512(x); }
  static ZT_FLASH_INLINE Operand broadcast(const void* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  // sum + unsigned · signed. Of the intrinsic GCC 12 makes a copy of every sum at every step, and keeps some in memory.
  static ZT_FLASH_INLINE Ints add_fours(Ints sum, Ints unsigned_bytes, Ints signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
    return sum;
  }
};
// Signed queries, keys that are unsigned because 128 was added.
struct ScoreProducts : Bytes {
  using Element = int8_t;
  static ZT_FLASH_INLINE Ints dot(Ints sum, Ints query, Ints keys) { return add_fours(sum, keys, query); }
};
// Unsigned weights, signed values.
struct ValueProducts : Bytes {
  using Element = uint8_t;
  static ZT_FLASH_INLINE Ints dot(Ints sum, Ints weight, Ints values) { return add_fours(sum, weight, values); }
};

class Int8Tile {
 public:
  static constexpr TileShape kShape = {DType::kI8, kLanes, kTerms, kPanelKeys, kValueVectors, kRows, 1, 1};

  static void fold(const TileTask& task) {
    Int8Tile tile(task);
    const bool bias = task.bias != nullptr;
    switch (task.softmax) {
      case TileSoftmax::kLazy:
        return bias ? tile.run<TileSoftmax::kLazy, true>() : tile.run<TileSoftmax::kLazy, false>();
      case TileSoftmax::kExact:
        return bias ? tile.run<TileSoftmax::kExact, true>() : tile.run<TileSoftmax::kExact, false>();
      case TileSoftmax::kFixed:
        return tile.run<TileSoftmax::kFixed, false>();
      case TileSoftmax::kFixedExponent:
        return tile.run<TileSoftmax::kFixedExponent, false>();
    }
  }

 private:
  explicit Int8Tile(const TileTask& task)
      : t_(task),
        key_tile_(task.key_tile),
        weight_stride_(task.key_tile + kWeightPadding),
        steps_(kShape.steps(task.head_dim)),
        padded_rows_((task.rows + kRows - 1) / kRows * kRows),
        vectors_((task.head_dim + kLanes - 1) / kLanes),
        weights_(static_cast<uint8_t*>(task.scratch.weights)),
        tops_(task.scratch.panels),
        factors_(tops_ + key_tile_ / kPanelKeys * task.weight_rows),
        weight_sums_(factors_ + key_tile_ / kPanelKeys * task.weight_rows) {}

  static constexpr bool is_fixed(TileSoftmax softmax) {
    return softmax == TileSoftmax::kFixed || softmax == TileSoftmax::kFixedExponent;
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

  // ---- state ----

  // Inside, scores and references of a row are without the q·k̄ that is left out of its products.
  template <TileSoftmax kSoftmax>
  void load_state() {
    fresh_ = t_.m[0] == kReferenceNoKeys;
    for (int64_t r = 0; r < padded_rows_; ++r) {
      const int64_t row = r < t_.rows ? r : t_.rows - 1;
      if constexpr (!is_fixed(kSoftmax)) {
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

  ZT_FLASH_INLINE const int8_t* query(int64_t row) const {
    return static_cast<const int8_t*>(t_.q) + (row < t_.rows ? row : t_.rows - 1) * t_.q_stride;
  }
  ZT_FLASH_INLINE uint8_t* weights(int64_t row) const { return weights_ + row * weight_stride_; }
  ZT_FLASH_INLINE const int8_t* key_panel(int64_t first_key) const {
    return static_cast<const int8_t*>(t_.keys) + first_key * int8_key_bytes(steps_);
  }
  ZT_FLASH_INLINE const char* value_tile(int64_t first_key) const {
    return static_cast<const char*>(t_.values) + first_key / key_tile_ * int8_value_tile_bytes(key_tile_, channels());
  }
  ZT_FLASH_INLINE int64_t channels() const { return vectors_ * kLanes; }
  ZT_FLASH_INLINE float* tops(int64_t panel) const { return tops_ + panel * t_.weight_rows; }
  ZT_FLASH_INLINE float* factors(int64_t panel) const { return factors_ + panel * t_.weight_rows; }

  template <TileSoftmax kSoftmax, bool kBias>
  void score_tile(int64_t first, int64_t keys) {
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      const int64_t valid = keys - panel;
      const bool reference = kSoftmax == TileSoftmax::kLazy && fresh_ && panel == 0;
      const void* next = valid > kPanelKeys ? static_cast<const void*>(key_panel(first + panel + kPanelKeys))
                                            : static_cast<const void*>(value_tile(first));
      if (valid < kPanelKeys) {
        score_panel<kSoftmax, kBias, true>(first, panel, valid, reference, next);
      } else {
        score_panel<kSoftmax, kBias, false>(first, panel, kPanelKeys, reference, next);
      }
    }
  }

  // Weights of all rows with one panel of keys, of which `valid` exist, and their part of the row sums. `reference`:
  // it is the first that these rows meet, and gives them theirs. The weights of four rows are computed between the
  // products of the next four, a row at a time: these keep the multipliers busy, those what adds and converts. After
  // them, and with a vector at a time between them, scores took 174 and 161 cycles of a row and panel instead of 155,
  // of which products are 128 (Zen 4, D = 128).
  template <TileSoftmax kSoftmax, bool kBias, bool kPartial>
  __attribute__((noinline)) void score_panel(int64_t first, int64_t panel, int64_t valid, bool reference,
                                             const void* next) {
    float* const minus_m = t_.scratch.minus_m;
    float* const top_of = tops(panel / kPanelKeys);
    float* const factor_of = factors(panel / kPanelKeys);
    uint8_t* const out = weights_ + panel;
    const int64_t padded_rows = padded_rows_;
    PanelPrefetch prefetch(next, int8_key_bytes(steps_) * kPanelKeys, padded_rows / kRows);
    Scored scored;
    for (int64_t row0 = 0; row0 < padded_rows; row0 += kRows) {
      prefetch.share();
      if (panel == 0) fetch_rows(row0 + kRowsAhead);
      Ints sums[kRows][kVectors];
      if (row0 == 0) {
        multiply<false, kPartial>(sums, first + panel, row0, scored, valid, out);
      } else {
        multiply<true, kPartial>(sums, first + panel, row0, scored, valid, out);
      }
      scale_scores<kBias>(sums, first + panel, row0, valid, scored);
      const __m128 scale = kBias ? _mm_set1_ps(1) : _mm_loadu_ps(t_.q_scales + row0);
      const __m128 largest = _mm_mul_ps(maxima<kPartial>(scored.scores, valid), scale);
      // A NaN stays one in the factors and the sums, but no reference becomes one.
      const __m128 lowest = _mm_set1_ps(kReferenceLowest), top = _mm_max_ps(lowest, largest);
      _mm_storeu_ps(top_of + row0, top);
      if (reference) {
        _mm_storeu_ps(minus_m + row0, _mm_xor_ps(_mm_max_ps(largest, lowest), _mm_set1_ps(-0.0f)));
      }
      const __m128 factor = factors_of<kSoftmax>(_mm_loadu_ps(minus_m + row0), top, row0);
      _mm_storeu_ps(factor_of + row0, factor);
      _mm_store_ps(scored.scale, scale);
      _mm_store_ps(scored.addend, _mm_sub_ps(_mm_set1_ps(kLog2Of255), top));
      _mm_store_ps(scored.factor, factor);
      scored.row0 = row0;
    }
    for (int r = 0; r < kRows; ++r) weigh<kPartial>(scored, r, valid, out);
  }

  // Four rows whose scores are known and whose weights are not.
  struct Scored {
    Vec scores[kRows][kVectors];
    alignas(16) float scale[kRows];
    alignas(16) float addend[kRows];
    alignas(16) float factor[kRows];
    int64_t row0;
  };

  // The weights of a row: 255·2^(score − top), rounded.
  template <bool kPartial>
  ZT_FLASH_INLINE void weigh(const Scored& scored, int r, int64_t valid, uint8_t* out) const {
    const Vec scale = Isa::set1(scored.scale[r]), addend = Isa::set1(scored.addend[r]);
    Vec p[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) p[v] = Isa::fma(scored.scores[r][v], scale, addend);
    Isa::exp2_of<3>(p, kExp2Degree3);
    if constexpr (kPartial) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) p[v] = Isa::keep_lanes(p[v], static_cast<int>(valid - v * kLanes), 0);
    }
    const int64_t row = scored.row0 + r;
    const Ints sum = store_weights(out + row * weight_stride_, p);
    float* tile_sum = t_.scratch.tile_sums + row * kLanes;
    Isa::store(tile_sum, Isa::fma(_mm512_cvtepi32_ps(sum), Isa::set1(scored.factor[r]), Isa::load(tile_sum)));
  }

  // Queries come from memory in a tile's first panel.
  static constexpr int64_t kRowsAhead = 2 * kRows;
  ZT_FLASH_INLINE void fetch_rows(int64_t first) const {
    for (int64_t row = first; row < first + kRows; ++row) {
      for (int64_t d = 0; d < steps_ * kTerms; d += 64) __builtin_prefetch(query(row) + d);
    }
  }

  // Sums of the products of four rows with a panel of keys; in between, the weights of what was scored before.
  template <bool kWeigh, bool kPartial>
  ZT_FLASH_INLINE void multiply(Ints (&sums)[kRows][kVectors], int64_t key, int64_t row0, const Scored& scored,
                                int64_t valid, uint8_t* out) const {
    const int8_t* k = key_panel(key);
    const int8_t* q[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      q[r] = query(row0 + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_set1_epi32(t_.q_corrections[row0 + r]);
    }
    int64_t steps = steps_;
    const auto advance = [&](int64_t by) __attribute__((always_inline)) {
      multiply_steps<ScoreProducts>(sums, q, k, by);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) q[r] += by * kTerms;
      k += by * kPanelKeys * kTerms;
      steps -= by;
    };
    if constexpr (kWeigh) {
      const int64_t share = steps / kRows;
      for (int r = 0; r < kRows; ++r) {
        advance(share);
        weigh<kPartial>(scored, r, valid, out);
      }
    }
    advance(steps);
  }

  // The scores of a panel without the scale of their query; with biases, complete.
  template <bool kBias>
  ZT_FLASH_INLINE void scale_scores(const Ints (&sums)[kRows][kVectors], int64_t key, int64_t row0, int64_t valid,
                                    Scored& scored) const {
    const auto* scales = reinterpret_cast<const float*>(key_panel(key) + steps_ * kPanelKeys * kTerms);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = Isa::load(scales + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) scored.scores[r][v] = Isa::mul(_mm512_cvtepi32_ps(sums[r][v]), scale);
    }
    if constexpr (kBias) {
      for (int r = 0; r < kRows; ++r)
        add_bias(scored.scores[r], Isa::set1(t_.q_scales[row0 + r]), row0 + r, key, valid);
    }
  }

  // score·scale + bias·log₂e, in place; all NaN where a bias is, which a byte could not say.
  ZT_FLASH_INLINE void add_bias(Vec (&score)[kVectors], Vec scale, int64_t row, int64_t key, int64_t valid) const {
    const float* bias = t_.bias + (row < t_.rows ? row : t_.rows - 1) * t_.bias_stride;
    alignas(64) float of_panel[kPanelKeys];
    bool nan = false;
    for (int64_t j = 0; j < kPanelKeys; ++j) {
      of_panel[j] = j >= valid ? 0.0f : bias[t_.key_index == nullptr ? key + j : t_.key_index[key + j]];
      nan = nan || of_panel[j] != of_panel[j];
    }
    if (nan) scale = Isa::set1(std::numeric_limits<float>::quiet_NaN());
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec addend = Isa::mul(Isa::load(of_panel + v * kLanes), Isa::set1(kFloatLog2E));
      score[v] = Isa::fma(score[v], scale, addend);
    }
  }

  // The largest score of each row. NaN where all that exist are, as in a panel with a NaN key: of two operands of which
  // one is NaN, maxima are the second, so that is always the one with the lower lanes, and lane 0 exists.
  template <bool kPartial>
  static ZT_FLASH_INLINE __m128 maxima(const Vec (&score)[kRows][kVectors], int64_t valid) {
    Vec top[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Vec of[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        of[v] = kPartial ? Isa::keep_lanes(score[r][v], static_cast<int>(valid - v * kLanes), kReferenceNoKeys)
                         : score[r][v];
      }
      top[r] = Isa::max(Isa::max(of[3], of[2]), Isa::max(of[1], of[0]));
    }
    // Rows next to each other in each 128 bits, then the four of them.
    const Vec of01 = Isa::max(_mm512_unpackhi_ps(top[0], top[1]), _mm512_unpacklo_ps(top[0], top[1]));
    const Vec of23 = Isa::max(_mm512_unpackhi_ps(top[2], top[3]), _mm512_unpacklo_ps(top[2], top[3]));
    const __m512d low = _mm512_castps_pd(of01), high = _mm512_castps_pd(of23);
    const Vec all =
        Isa::max(_mm512_castpd_ps(_mm512_unpackhi_pd(low, high)), _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)));
    const __m256 half = _mm256_max_ps(_mm512_extractf32x8_ps(all, 1), _mm512_castps512_ps256(all));
    return _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
  }

  // 2^(top − m)/255 of four rows, times two to their exponent.
  template <TileSoftmax kSoftmax>
  ZT_FLASH_INLINE __m128 factors_of(__m128 minus_m, __m128 top, int64_t row0) const {
    const __m128 exponent = _mm_add_ps(_mm_sub_ps(top, _mm_set1_ps(kLog2Of255)), minus_m);
    Vec x[1] = {_mm512_zextps128_ps512(exponent)};
    if constexpr (kSoftmax == TileSoftmax::kFixedExponent) {
      alignas(16) float of[kRows];
      for (int r = 0; r < kRows; ++r) of[r] = t_.exponent[row0 + r < t_.rows ? row0 + r : t_.rows - 1];
      const Vec exponents[1] = {_mm512_zextps128_ps512(_mm_load_ps(of))};
      Isa::exp2_scaled_of<5, 1>(x, exponents, kExp2Degree5);
    } else {
      Isa::exp2_of<5>(x, kExp2Degree5);
    }
    return _mm512_castps512_ps128(x[0]);
  }

  // Rounds the weights of a panel to bytes, in the order of int8_step_key(). Returns their sums by fours.
  static ZT_FLASH_INLINE Ints store_weights(uint8_t* to, const Vec (&p)[kVectors]) {
    const Ints low = _mm512_packs_epi32(_mm512_cvtps_epi32(p[0]), _mm512_cvtps_epi32(p[1]));
    const Ints high = _mm512_packs_epi32(_mm512_cvtps_epi32(p[2]), _mm512_cvtps_epi32(p[3]));
    const Ints bytes = _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(to, bytes);
    return sum_of(bytes);
  }
  static ZT_FLASH_INLINE Ints sum_of(Ints bytes) {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_set1_epi8(1));
  }

  // ---- the check of lazy softmax ----

  // Fixed references need no check, their sums cannot leave the range. The textbook's are raised at every tile.
  template <TileSoftmax kSoftmax>
  void check_tile(int64_t keys) {
    for (int64_t row = 0; row < t_.rows; ++row) {
      float* sum = t_.scratch.sums + row * kLanes;
      float* tile_sum = t_.scratch.tile_sums + row * kLanes;
      Vec before = Isa::load(sum), of_tile = Isa::load(tile_sum);
      if constexpr (!is_fixed(kSoftmax)) {
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
      const Vec alpha = Isa::set1(reference > kReferenceLowest ? exp2_scalar(reference - highest) : 0.0f);
      before = Isa::mul(before, alpha);
      for (int64_t v = 0; v < vectors_ && !fresh_; ++v) {
        float* o = t_.o + row * t_.o_stride + v * kLanes;
        Isa::store(o, Isa::mul(Isa::load(o), alpha));
      }
    }
    Vec sum = Isa::set1(0);
    for (int64_t panel = 0; panel * kPanelKeys < keys; ++panel) {
      const float factor = exp2_scalar(tops(panel)[row] - kLog2Of255 - highest);
      factors(panel)[row] = factor;
      const Ints bytes = _mm512_loadu_si512(weights(row) + panel * kPanelKeys);
      sum = Isa::fma(_mm512_cvtepi32_ps(sum_of(bytes)), Isa::set1(factor), sum);
    }
    return sum;
  }

  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {Isa::set1(x)};
    Isa::exp2_of<5>(all, kExp2Degree5);
    return _mm512_cvtss_f32(all[0]);
  }

  // ---- weights times values ----

  void apply_values(int64_t first, int64_t keys) {
    const ValuePanels panels(t_.head_dim, kShape);
    const char* tile = value_tile(first);
    const auto* scales = reinterpret_cast<const float*>(tile);
    const auto* values = reinterpret_cast<const uint8_t*>(tile + int8_value_scale_bytes(channels()));
    const int64_t key_panels = (keys + kPanelKeys - 1) / kPanelKeys, packed_keys = key_panels * kPanelKeys;
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t vector = panels.first_vector(panel), width = panels.width_vectors(panel);
      const uint8_t* v = values + vector * kLanes * packed_keys;
      const void* next = panel + 1 < panels.count ? static_cast<const void*>(v + width * kLanes * packed_keys)
                                                  : static_cast<const void*>(key_panel(first + key_tile_));
      value_panel<kValueVectors>(width, {v, scales + vector * kLanes, key_panels, t_.o + vector * kLanes, next});
    }
  }

  struct ValueTask {
    const uint8_t* values;  // [key panel][steps][width][lanes] words
    const float* scales;    // [channels]; centers are `channels()` behind them
    int64_t key_panels;
    float* o;
    const void* next;  // what is prefetched
  };

  template <int kWidth>
  ZT_FLASH_INLINE void value_panel(int64_t width, const ValueTask& task) {
    if constexpr (kWidth > 1) {
      if (width < kWidth) return value_panel<kWidth - 1>(width, task);
    }
    constexpr int kBlockRows = kWidth <= 2 ? 8 : 4;
    if (fresh_) {
      value_rows<kWidth, kBlockRows, true>(task);
    } else {
      value_rows<kWidth, kBlockRows, false>(task);
    }
  }

  template <int kWidth, int kBlockRows, bool kFresh>
  __attribute__((noinline)) void value_rows(const ValueTask& task) {
    const int64_t rows = t_.rows, stride = t_.o_stride;
    PanelPrefetch prefetch(task.next, task.key_panels * kPanelKeys * kWidth * kLanes,
                           (rows + kBlockRows - 1) / kBlockRows);
    Vec scale[kWidth], center[kWidth];
    const float* centers = task.scales + channels();
    alignas(64) float total[kBlockRows][kWidth * kLanes];
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
  template <int kBlockRows, int kWidth>
  ZT_FLASH_INLINE void add_panel(float (&total)[kBlockRows][kWidth], const ValueTask& task, int64_t panel,
                                 int64_t row) const {
    constexpr int kWords = kWidth / kLanes;
    const uint8_t* p[kBlockRows];
    const float* factor[kBlockRows];
    Ints sums[kBlockRows][kWords];
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const int64_t at = row + r < t_.rows ? row + r : t_.rows - 1;
      p[r] = weights(at) + panel * kPanelKeys;
      factor[r] = factors(panel) + at;
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) sums[r][w] = _mm512_setzero_si512();
    }
    multiply_steps<ValueProducts>(sums, p, task.values + panel * kPanelKeys * kWidth, kPanelSteps);
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r) {
      const Vec by = Isa::set1(*factor[r]);
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) {
        float* to = total[r] + w * kLanes;
        const Vec sum = _mm512_cvtepi32_ps(sums[r][w]);
        Isa::store(to, panel == 0 ? Isa::mul(sum, by) : Isa::fma(sum, by, Isa::load(to)));
      }
    }
  }

  const TileTask& t_;
  const int64_t key_tile_;
  const int64_t weight_stride_;
  const int64_t steps_;        // products of a score
  const int64_t padded_rows_;  // whole register blocks; rows beyond the tile are those behind it, and never stored
  const int64_t vectors_;      // of D
  uint8_t* weights_;           // of the key tile at hand, each panel in the order of int8_step_key()
  float* tops_;                // [panel][rows]: the largest score of each, to base 2
  float* factors_;             // [panel][rows]: what its weights are multiplied by
  float* weight_sums_;         // [rows], of the key tile
  bool fresh_ = false;         // no key has been folded into these rows yet
};

constexpr TileKernel kTile = {Int8Tile::kShape, Int8Tile::fold};

}  // namespace

const TileKernel& avx512_int8_tile() { return kTile; }

}  // namespace zoetrope::kernels
