// The int8 tile on AVX512-VNNI: both products are sums of four products of bytes. The maximum of a panel of keys is
// taken while the scores are in registers, those of four rows in one tree.
#include "kernels/flash_attention/avx512_common.h"
#include "kernels/flash_attention/int8_vector_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx512Int8 : Avx512Vectors {
  using Ints = __m512i;
  static constexpr int kTerms = 4;  // of a product of 32-bit lanes
  static constexpr int kRows = 4;
  static constexpr int kValueVectors = 4;
  static constexpr int value_rows(int vectors) { return vectors <= 2 ? 8 : 4; }

  struct Bytes {
    using Operand = Ints;
    static constexpr int kLanes = Avx512Vectors::kLanes, kPair = kTerms;
    static ZT_FLASH_INLINE Operand operand(const void* x) { return _mm512_loadu_si512(x); }
    static ZT_FLASH_INLINE Operand broadcast(const void* x) {
      int32_t four;
      __builtin_memcpy(&four, x, sizeof(four));
      return _mm512_set1_epi32(four);
    }
    // sum + unsigned · signed. Of the intrinsic GCC 12 makes a copy of every sum at every step, and keeps some in
    // memory.
    static ZT_FLASH_INLINE Ints add_fours(Ints sum, Ints unsigned_bytes, Ints signed_bytes) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
      return sum;
    }
  };
  using ScoreProducts = ScoreBytes<Bytes>;
  using ValueProducts = ValueBytes<Bytes>;

  static ZT_FLASH_INLINE Ints set_ints(int32_t x) { return _mm512_set1_epi32(x); }
  static ZT_FLASH_INLINE Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {set1(x)};
    exp2_of<5>(all, kExp2Degree5);
    return _mm512_cvtss_f32(all[0]);
  }

  // Rounds the weights of a panel to bytes, in the order of int8_step_key(). Returns their sums by fours.
  static ZT_FLASH_INLINE Ints store_weights(uint8_t* to, const Vec (&p)[4]) {
    const Ints low = _mm512_packs_epi32(_mm512_cvtps_epi32(p[0]), _mm512_cvtps_epi32(p[1]));
    const Ints high = _mm512_packs_epi32(_mm512_cvtps_epi32(p[2]), _mm512_cvtps_epi32(p[3]));
    const Ints bytes = _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(to, bytes);
    return sum_of(bytes);
  }
  static ZT_FLASH_INLINE Ints panel_sums(const uint8_t* weights) { return sum_of(_mm512_loadu_si512(weights)); }
  static ZT_FLASH_INLINE Ints sum_of(Ints bytes) {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_set1_epi8(1));
  }
};

class Avx512Int8Tile : public Int8VectorTile<Avx512Int8, Avx512Int8Tile> {
  using Isa = Avx512Int8;
  static constexpr int kVectors = 4;
  static_assert(kPanelKeys == kLanes * kVectors);

 public:
  explicit Avx512Int8Tile(const TileTask& task) : Int8VectorTile(task) {}

  // Weights of all rows with one panel of keys, of which `valid` exist, and their part of the row sums. `reference`:
  // it is the first that these rows meet, and gives them theirs. The weights of four rows are computed between the
  // products of the next four, a row at a time: these keep the multipliers busy, those what adds and converts. After
  // them, and with a vector at a time between them, scores took 174 and 161 cycles of a row and panel instead of 155,
  // of which products are 128 (Zen 4, D = 128). Lost: the maxima between them too (0.98 of the speed, Emerald Rapids,
  // where a row and panel take about 109 cycles, products 64 and what else the two ports do 26).
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

 private:
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
    const Ints sum = Isa::store_weights(out + row * weight_stride_, p);
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
    const auto* k = reinterpret_cast<const int8_t*>(key_panel(key));
    const int8_t* q[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      q[r] = query(row0 + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_set1_epi32(t_.q_corrections[row0 + r]);
    }
    int64_t steps = steps_;
    const auto advance = [&](int64_t by) __attribute__((always_inline)) {
      multiply_steps<Isa::ScoreProducts>(sums, q, k, by);
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
    const float* scales = key_scales(key);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = Isa::load(scales + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) scored.scores[r][v] = Isa::mul(_mm512_cvtepi32_ps(sums[r][v]), scale);
    }
    if constexpr (kBias) {
      for (int r = 0; r < kRows; ++r) add_bias(scored.scores[r], row0 + r, key, valid);
    }
  }

  // score·scale + bias·log₂e, in place.
  ZT_FLASH_INLINE void add_bias(Vec (&score)[kVectors], int64_t row, int64_t key, int64_t valid) const {
    alignas(64) float bias[kPanelKeys];
    const Vec scale = panel_bias(bias, row, key, valid);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) score[v] = Isa::fma(score[v], scale, Isa::load(bias + v * kLanes));
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
};

constexpr TileKernel kTile = {Avx512Int8Tile::kShape, Avx512Int8Tile::fold};

}  // namespace

const TileKernel& avx512_int8_tile() { return kTile; }

}  // namespace zoetrope::kernels
