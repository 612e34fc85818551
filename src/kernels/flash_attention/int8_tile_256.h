// The int8 tile with vectors of 256 bits, as a template over products; included by avx2_int8.cpp and avx_vnni_int8.cpp.
// Sixteen registers do not hold the scores of a panel: those of a few rows go through the first cache level, and their
// weights are computed after the products.
#pragma once

#include "kernels/flash_attention/avx2_vectors.h"
#include "kernels/flash_attention/int8_vector_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx2Int8Vectors : Avx2Vectors {
  using Ints = __m256i;
  static constexpr int kRows = 6;
  static constexpr int kValueVectors = 1;
  static constexpr int value_rows(int) { return 6; }

  static ZT_FLASH_INLINE Ints set_ints(int32_t x) { return _mm256_set1_epi32(x); }
  static ZT_FLASH_INLINE Ints load_ints(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
  static ZT_FLASH_INLINE void store_ints(void* to, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
  static ZT_FLASH_INLINE Ints broadcast_word(const void* x) {
    int32_t word;
    __builtin_memcpy(&word, x, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  static ZT_FLASH_INLINE Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {set1(x)};
    exp2_of<5>(all, kExp2Degree5Nearest);
    return _mm256_cvtss_f32(all[0]);
  }
};

// Isa has the products of scores and of values, and stores the weights of a panel in parts of four vectors: the i-th of
// a part is the panel's panel_vector(part, i).
template <typename Isa>
class Int8Tile256 : public Int8VectorTile<Isa, Int8Tile256<Isa>> {
  using Base = Int8VectorTile<Isa, Int8Tile256<Isa>>;
  using Base::factors, Base::key_panel, Base::key_scales, Base::padded_rows_, Base::query, Base::steps_, Base::t_,
      Base::tops, Base::weight_stride_, Base::weights_;
  using typename Base::Ints;
  using typename Base::Query;
  using typename Base::Vec;
  using typename Base::Weight;
  static constexpr int kLanes = Base::kLanes, kRows = Base::kRows, kPanelKeys = Base::kPanelKeys;
  static constexpr int kVectors = kPanelKeys / kLanes;
  static constexpr int kWidth = 2;     // vectors of keys that are multiplied together
  static constexpr int kTogether = 4;  // vectors of weights that are computed together
  static_assert(kRows <= kLanes);

 public:
  explicit Int8Tile256(const TileTask& task) : Base(task) {}

  // Weights of all rows with one panel of keys, of which `valid` exist, and their part of the row sums. `reference`:
  // it is the first that these rows meet, and gives them theirs.
  template <TileSoftmax kSoftmax, bool kBias, bool kPartial>
  __attribute__((noinline)) void score_panel(int64_t first, int64_t panel, int64_t valid, bool reference,
                                             const void* next) {
    Weight* const out = weights_ + panel;
    PanelPrefetch prefetch(next, int8_key_bytes(steps_) * kPanelKeys, padded_rows_ / kRows);
    alignas(32) float scores[kRows][kPanelKeys];
    for (int64_t row0 = 0; row0 < padded_rows_; row0 += kRows) {
      prefetch.share();
      multiply(scores, first + panel, row0);
      alignas(32) float scale[kLanes] = {}, top[kLanes] = {}, minus_m[kLanes] = {}, factor[kLanes];
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = row0 + r;
        scale[r] = kBias ? 1 : t_.q_scales[row];
        if (kBias) add_bias(scores[r], row, first + panel, valid);
        const float largest = maximum<kPartial>(scores[r], valid) * scale[r];
        // A NaN stays one in the factors and the sums, but no reference becomes one.
        top[r] = largest < kReferenceLowest ? kReferenceLowest : largest;
        if (reference) t_.scratch.minus_m[row] = largest > kReferenceLowest ? -largest : -kReferenceLowest;
        minus_m[r] = t_.scratch.minus_m[row];
      }
      Isa::store(factor, factors_of<kSoftmax>(Isa::load(minus_m), Isa::load(top), row0));
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = row0 + r;
        tops(panel / kPanelKeys)[row] = top[r];
        factors(panel / kPanelKeys)[row] = factor[r];
        const Ints sum = weigh<kPartial>(scores[r], scale[r], kLog2Of255 - top[r], valid, out + row * weight_stride_);
        float* tile_sum = t_.scratch.tile_sums + row * kLanes;
        Isa::store(tile_sum, Isa::fma(Isa::to_floats(sum), Isa::set1(factor[r]), Isa::load(tile_sum)));
      }
    }
  }

 private:
  // The scores of some rows with a panel of keys, without the scales of the rows.
  ZT_FLASH_INLINE void multiply(float (&scores)[kRows][kPanelKeys], int64_t key, int64_t row0) const {
    using Products = typename Isa::ScoreProducts;
    const auto* const keys = reinterpret_cast<const Query*>(key_panel(key));
    const float* const scales = key_scales(key);
    const Query* q[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) q[r] = query(row0 + r);
    for (int64_t first = 0; first < kPanelKeys; first += kWidth * kLanes) {
      Ints sums[kRows][kWidth];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int w = 0; w < kWidth; ++w) sums[r][w] = Isa::set_ints(t_.q_corrections[row0 + r]);
      multiply_steps<Products, kPanelKeys>(sums, q, keys + first * Products::kPair, steps_);
#pragma GCC unroll 2
      for (int w = 0; w < kWidth; ++w) {
        const Vec scale = Isa::load(scales + first + w * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          Isa::store(scores[r] + first + w * kLanes, Isa::mul(Isa::to_floats(sums[r][w]), scale));
      }
    }
  }

  // score·scale + bias·log₂e, in place.
  void add_bias(float (&scores)[kPanelKeys], int64_t row, int64_t key, int64_t valid) const {
    alignas(32) float bias[kPanelKeys];
    const Vec scale = this->panel_bias(bias, row, key, valid);
    for (int j = 0; j < kPanelKeys; j += kLanes)
      Isa::store(scores + j, Isa::fma(Isa::load(scores + j), scale, Isa::load(bias + j)));
  }

  // The largest score. NaN where all that exist are, as in a panel with a NaN key: of two operands of which one is NaN,
  // maxima are the second, so that is always the one with the lower lanes, and lane 0 exists.
  template <bool kPartial>
  static ZT_FLASH_INLINE float maximum(const float (&scores)[kPanelKeys], int64_t valid) {
    Vec of[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      of[v] = Isa::load(scores + v * kLanes);
      if (kPartial) of[v] = Isa::keep_lanes(of[v], static_cast<int>(valid - v * kLanes), kReferenceNoKeys);
    }
#pragma GCC unroll 3
    for (int half = kVectors / 2; half > 0; half /= 2)
#pragma GCC unroll 4
      for (int v = 0; v < half; ++v) of[v] = Isa::max(of[2 * v + 1], of[2 * v]);
    return Isa::reduce_max(of[0]);
  }

  // 2^(top − m)/255 of some rows, times two to their exponent.
  template <TileSoftmax kSoftmax>
  ZT_FLASH_INLINE Vec factors_of(Vec minus_m, Vec top, int64_t row0) const {
    Vec x[1] = {Isa::add(Isa::add(top, Isa::set1(-kLog2Of255)), minus_m)};
    if constexpr (kSoftmax == TileSoftmax::kFixedExponent) {
      alignas(32) float of[kLanes] = {};
      for (int r = 0; r < kRows; ++r) of[r] = t_.exponent[row0 + r < t_.rows ? row0 + r : t_.rows - 1];
      const Vec exponents[1] = {Isa::load(of)};
      Isa::template exp2_scaled_of<5, 1>(x, exponents, kExp2Degree5Nearest);
    } else {
      Isa::template exp2_of<5>(x, kExp2Degree5Nearest);
    }
    return x[0];
  }

  // The weights of a row: 2^(score·scale + addend), rounded. Returns their sums.
  template <bool kPartial>
  ZT_FLASH_INLINE Ints weigh(const float (&scores)[kPanelKeys], float scale, float addend, int64_t valid,
                             Weight* to) const {
    Ints sum = Isa::set_ints(0);
#pragma GCC unroll 2
    for (int part = 0; part < kVectors / kTogether; ++part) {
      Vec p[kTogether];
#pragma GCC unroll 4
      for (int i = 0; i < kTogether; ++i)
        p[i] = Isa::fma(Isa::load(scores + Isa::panel_vector(part, i) * kLanes), Isa::set1(scale), Isa::set1(addend));
      Isa::template exp2_of<3>(p, kExp2Degree3Nearest);
      if constexpr (kPartial) {
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i)
          p[i] = Isa::keep_lanes(p[i], static_cast<int>(valid - Isa::panel_vector(part, i) * kLanes), 0);
      }
      sum = _mm256_add_epi32(sum, Isa::store_weights(to + part * kTogether * kLanes, p));
    }
    return sum;
  }
};

}  // namespace
}  // namespace zoetrope::kernels
