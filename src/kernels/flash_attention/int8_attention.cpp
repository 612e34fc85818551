#include "kernels/flash_attention/int8_attention.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <span>

#include "base/index_range.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;
constexpr int64_t kWidth = simd::kWidth;
constexpr int64_t kRowsAhead = 8;  // asked for before they are read: too short and too far apart for hardware to guess
constexpr uint32_t kKeyOffset = 0x80808080;  // 128 in each of four bytes; what makes signed ones unsigned

// One step of the butterfly between lanes that are kHalf apart: the lower lane gets a + b, the upper a − b.
template <int kHalf>
Floats butterfly(Floats x) {
  const Floats signs = kHalf == 1   ? _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1)
                       : kHalf == 2 ? _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1)
                                    : _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  const Floats other = kHalf == 1   ? _mm256_permute_ps(x, 0xb1)
                       : kHalf == 2 ? _mm256_permute_ps(x, 0x4e)
                                    : _mm256_permute2f128_ps(x, x, 0x01);
  return simd::fma(x, signs, other);
}

// The steps of the butterfly within a vector.
Floats rotate_lanes(Floats x, int64_t block) {
  if (block > 1) x = butterfly<1>(x);
  if (block > 2) x = butterfly<2>(x);
  if (block > 4) x = butterfly<4>(x);
  return x;
}

// The steps between vectors, two at a time while there are two.
void rotate_vectors(float* row, int64_t head_dim, int64_t block) {
  int64_t half = kWidth;
  for (; 2 * half < block; half *= 4) {
    for (int64_t first = 0; first < head_dim; first += 4 * half) {
      for (int64_t i = first; i < first + half; i += kWidth) {
        float* const at[] = {row + i, row + i + half, row + i + 2 * half, row + i + 3 * half};
        const Floats a = simd::load(at[0]), b = simd::load(at[1]), c = simd::load(at[2]), d = simd::load(at[3]);
        const Floats ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        simd::store(at[0], ab + cd);
        simd::store(at[1], a_b + c_d);
        simd::store(at[2], ab - cd);
        simd::store(at[3], a_b - c_d);
      }
    }
  }
  if (half >= block) return;
  for (int64_t first = 0; first < head_dim; first += 2 * half) {
    for (int64_t i = first; i < first + half; i += kWidth) {
      const Floats a = simd::load(row + i), b = simd::load(row + i + half);
      simd::store(row + i, a + b);
      simd::store(row + i + half, a - b);
    }
  }
}

// The largest magnitude; magnitudes order as their bits do, and NaN comes last.
float largest_magnitude(const float* row, int64_t head_dim) {
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const __m256i bits = _mm256_castps_si256(simd::load(row + i));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  alignas(32) int32_t lanes[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  return std::bit_cast<float>(*std::max_element(lanes, lanes + kWidth));
}

// Rounds eight values to int8, which they fit.
__m256i rounded(Floats x, int8_t* to) {
  const __m256i words = _mm256_cvtps_epi32(x);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
  return words;
}

// The terms of a key that are multiplied in a step.
uint32_t key_word(const TileShape& shape, const int8_t* key, int64_t step) {
  if (shape.pair == 2) {
    const int16_t two[] = {key[2 * step], key[2 * step + 1]};
    return std::bit_cast<uint32_t>(two);
  }
  uint32_t four;
  std::memcpy(&four, key + 4 * step, sizeof four);
  return four ^ kKeyOffset;
}

// Sixteen words of two int16 each, one of each row.
void store_twos(const int8_t* a, const int8_t* b, void* to) {
  const auto load = [](const int8_t* x) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  };
  const __m256i low = _mm256_unpacklo_epi16(load(a), load(b)), high = _mm256_unpackhi_epi16(load(a), load(b));
  auto* const at = static_cast<__m256i*>(to);
  _mm256_storeu_si256(at, _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(low, high, 0x31));
}

// Sixteen words of four bytes each, one of each row.
void store_fours(const int8_t* a, const int8_t* b, const int8_t* c, const int8_t* d, void* to) {
  const auto load = [](const int8_t* x) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)); };
  const __m128i ab[] = {_mm_unpacklo_epi8(load(a), load(b)), _mm_unpackhi_epi8(load(a), load(b))};
  const __m128i cd[] = {_mm_unpacklo_epi8(load(c), load(d)), _mm_unpackhi_epi8(load(c), load(d))};
  auto* const at = static_cast<__m128i*>(to);
  for (int i = 0; i < 2; ++i) {
    _mm_storeu_si128(at + 2 * i, _mm_unpacklo_epi16(ab[i], cd[i]));
    _mm_storeu_si128(at + 2 * i + 1, _mm_unpackhi_epi16(ab[i], cd[i]));
  }
}

const BFloat16* row_of(const PackSource& source, int64_t key) {
  const int64_t row = source.index == nullptr ? key : source.index[key];
  return static_cast<const BFloat16*>(source.data) + row * source.stride;
}

// Inline, for GCC takes a function that does nothing else for one without effect, and leaves its calls out.
[[gnu::always_inline]] inline void prefetch_row(const PackSource& source, int64_t row) {
  const BFloat16* const at = row_of(source, std::min(row, source.count - 1));
  for (int64_t d = 0; d < source.head_dim; d += 32) __builtin_prefetch(at + d);
}

}  // namespace

Int8Row int8_row(const BFloat16* x, const float* mean, int64_t head_dim, int8_t* to) {
  alignas(32) float row[kMostHeadDim];
  const int64_t block = rotation_size(head_dim);
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const int64_t n = std::min(kWidth, head_dim - i);
    Floats value = n == kWidth ? simd::load(x + i) : simd::load(x + i, n);
    if (mean != nullptr) value = value - (n == kWidth ? simd::load(mean + i) : simd::load(mean + i, n));
    simd::store(row + i, rotate_lanes(value, block));
  }
  rotate_vectors(row, head_dim, block);
  const float most = largest_magnitude(row, head_dim);
  if (!std::isfinite(most)) {
    std::memset(to, 0, static_cast<size_t>(int8_row_bytes(head_dim)));
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const Int8Scale scale = int8_scale(most);
  const Floats factor = simd::set(scale.factor);
  alignas(32) int8_t bytes[kMostHeadDim];
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    sums = _mm256_add_epi32(sums, rounded(simd::load(row + i) * factor, bytes + i));
  }
  std::memcpy(to, bytes, static_cast<size_t>(int8_row_bytes(head_dim)));
  alignas(32) int32_t lanes[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return {scale.scale, sum};
}

float mean_product(const BFloat16* q, const float* mean, int64_t head_dim) {
  constexpr int64_t kChains = 4;  // of additions that wait for each other
  Floats sums[kChains] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const int64_t n = std::min(kWidth, head_dim - i);
    Floats& sum = sums[i / kWidth % kChains];
    sum = n == kWidth ? simd::fma(simd::load(q + i), simd::load(mean + i), sum)
                      : simd::fma(simd::load(q + i, n), simd::load(mean + i, n), sum);
  }
  return static_cast<float>(simd::sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

void pack_int8_keys(const TileShape& shape, const PackSource& source, const float* mean, int64_t tile, void* packed) {
  const int64_t begin = tile * shape.key_tile, end = std::min(begin + shape.key_tile, source.count);
  const int64_t steps = shape.steps(source.head_dim);
  alignas(32) int8_t bytes[kMostHeadDim];
  for (int64_t panel = begin; panel < end; panel += shape.panel_keys) {
    auto* const words = reinterpret_cast<uint32_t*>(static_cast<char*>(packed) + panel * int8_key_bytes(steps));
    auto* const scales = reinterpret_cast<float*>(words + steps * shape.panel_keys);
    bool finite = true;
    for (int64_t j = 0; j < shape.panel_keys; ++j) {
      scales[j] = 0;
      if (panel + j < source.count) {
        prefetch_row(source, panel + j + kRowsAhead);
        scales[j] = int8_row(row_of(source, panel + j), mean, source.head_dim, bytes).scale;
        finite = finite && std::isfinite(scales[j]);
      } else {
        std::memset(bytes, 0, sizeof bytes);
      }
      for (int64_t step = 0; step < steps; ++step) words[step * shape.panel_keys + j] = key_word(shape, bytes, step);
    }
    if (!finite) std::fill(scales, scales + shape.panel_keys, std::numeric_limits<float>::quiet_NaN());
  }
}

void measure_int8_channels(const PackSource& values, int64_t begin, int64_t end, int64_t lanes,
                           const Int8Channels& channels) {
  constexpr int64_t kVectors = 4;  // a line of a row of bf16
  const int64_t head_dim = values.head_dim, padded = round_up(head_dim, lanes);
  for (int64_t first = 0; first < padded; first += kVectors * kWidth) {
    // Each channel's extremes, and a zero that is NaN where a value is not finite.
    Floats low[kVectors], high[kVectors], spoilt[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      low[v] = simd::set(std::numeric_limits<float>::max());
      high[v] = -low[v];
      spoilt[v] = simd::zero();
    }
    for (int64_t key = begin; key < end; ++key) {
      const BFloat16* const row = row_of(values, key);
      __builtin_prefetch(row_of(values, std::min(key + kRowsAhead, end - 1)) + first);
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t d = first + v * kWidth;
        const Floats x =
            d + kWidth <= head_dim ? simd::load(row + d) : simd::load(row + d, std::max<int64_t>(head_dim - d, 0));
        low[v] = simd::min(low[v], x);
        high[v] = simd::max(high[v], x);
        spoilt[v] = simd::fma(x, simd::zero(), spoilt[v]);
      }
    }
    const Floats half = simd::set(0.5f);  // before they are added: a sum of two could overflow
    for (int64_t v = 0; v < kVectors && first + v * kWidth < padded; ++v) {
      const int64_t d = first + v * kWidth;
      simd::store(channels.centers + d, high[v] * half + low[v] * half);
      alignas(32) float largest[kWidth];
      simd::store(largest, high[v] * half - low[v] * half + spoilt[v]);
      for (int64_t i = 0; i < kWidth; ++i) {
        const Int8Scale scale = int8_scale(largest[i]);
        channels.scales[d + i] = scale.scale;
        channels.factors[d + i] = scale.factor;
      }
    }
  }
}

void int8_value_row(const BFloat16* v, const Int8Channels& channels, int64_t head_dim, int8_t* to) {
  for (int64_t d = 0; d < head_dim; d += kWidth) {
    const int64_t n = std::min(kWidth, head_dim - d);
    const Floats x = n == kWidth ? simd::load(v + d) : simd::load(v + d, n);
    rounded((x - simd::load(channels.centers + d)) * simd::load(channels.factors + d), to + d);
  }
}

void pack_int8_values(const TileShape& shape, const PackSource& source, int64_t tile, void* packed) {
  const int64_t begin = tile * shape.key_tile, end = std::min(begin + shape.key_tile, source.count);
  const int64_t channels = round_up(source.head_dim, shape.lanes);
  char* const to = static_cast<char*>(packed) + tile * int8_value_tile_bytes(shape.key_tile, channels, shape.pair);
  auto* const scales = reinterpret_cast<float*>(to);
  alignas(32) float factors[kMostHeadDim];
  const Int8Channels of{scales, scales + channels, factors};
  measure_int8_channels(source, begin, end, shape.lanes, of);
  const int64_t key_panels = ceil_div(end - begin, shape.panel_keys), steps = shape.panel_keys / shape.pair;
  const ValuePanels panels(source.head_dim, shape);
  char* const words = to + int8_value_scale_bytes(channels);
  alignas(32) int8_t rows[4][kMostHeadDim] = {};
  for (int64_t i = 0; i < key_panels * steps; ++i) {
    const int64_t first = begin + i / steps * shape.panel_keys + int8_step_key(i % steps, shape.pair);
    for (int64_t j = 0; j < shape.pair; ++j) {
      if (first + j < end) {
        int8_value_row(row_of(source, first + j), of, source.head_dim, rows[j]);
      } else {
        std::memset(rows[j], 0, static_cast<size_t>(channels));
      }
    }
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t d = panels.first_vector(panel) * shape.lanes, width = panels.width_vectors(panel) * shape.lanes;
      char* const at = words + (d * key_panels * steps + i * width) * 4;
      for (int64_t c = 0; c < width; c += 16) {
        if (shape.pair == 2) store_twos(rows[0] + d + c, rows[1] + d + c, at + c * 4);
        else store_fours(rows[0] + d + c, rows[1] + d + c, rows[2] + d + c, rows[3] + d + c, at + c * 4);
      }
    }
  }
}

void pack_int8_queries(const TileShape& shape, const PackSource& source, const float* mean, float scale_log2e,
                       int64_t begin, int64_t rows, const Int8Queries& to) {
  const float factor = std::abs(scale_log2e) / static_cast<float>(rotation_size(source.head_dim));
  const int64_t terms = shape.steps(source.head_dim) * shape.pair;
  alignas(32) int8_t values[kMostHeadDim];
  for (int64_t i = 0; i < rows; ++i) {
    const BFloat16* q = row_of(source, begin + i);
    prefetch_row(source, begin + i + kRowsAhead);
    Int8Row row = int8_row(q, nullptr, source.head_dim, values);
    if (scale_log2e < 0) {
      for (int64_t d = 0; d < terms; ++d) values[d] = static_cast<int8_t>(-values[d]);
      row.sum = -row.sum;
    }
    to.scales[i] = row.scale * factor;
    to.corrections[i] = shape.pair == 2 ? 0 : -128 * row.sum;
    if (shape.pair == 2) std::copy(values, values + terms, static_cast<int16_t*>(to.rows) + i * terms);
    else std::copy(values, values + terms, static_cast<int8_t*>(to.rows) + i * terms);
    // An infinite one would look like a row that has seen no key.
    const float offset = mean_product(q, mean, source.head_dim) * scale_log2e;
    to.offsets[i] =
        std::isfinite(row.scale) && std::isfinite(offset) ? offset : std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t i = rows; i < round_up(rows, shape.query_rows); ++i) {
    to.scales[i] = to.scales[rows - 1];
    to.corrections[i] = to.corrections[rows - 1];
    to.offsets[i] = to.offsets[rows - 1];
  }
}

namespace {

constexpr int64_t kEvenRows = 8, kMostEvenKeys = 256, kFewestEvenKeys = 16, kEvenShare = 8;
constexpr int64_t kLongest = 4;  // of q, and of k
constexpr int64_t kSampleRows = kEvenRows + kLongest, kMostSampleKeys = kMostEvenKeys + kLongest;

struct SampleRow {
  const BFloat16* q;
  int8_t values[kMostHeadDim];
  float scale, offset;
  float exact[kMostSampleKeys], rounded[kMostSampleKeys];  // scores to base 2, then weights
  alignas(32) float o[kMostHeadDim], rounded_o[kMostHeadDim];
};

// Writes the rows of the largest ‖row − mean‖ (null: 0), at most kLongest, the largest first; returns how many.
int64_t longest_rows(const PackSource& source, const float* mean, int64_t* rows) {
  float norms[kLongest] = {};
  int64_t found = 0;
  for (int64_t i = 0; i < source.count; ++i) {
    const BFloat16* const row = row_of(source, i);
    prefetch_row(source, i + kRowsAhead);
    Floats sum = simd::zero();
    for (int64_t d = 0; d < source.head_dim; d += kWidth) {
      const int64_t n = std::min(kWidth, source.head_dim - d);
      Floats x = n == kWidth ? simd::load(row + d) : simd::load(row + d, n);
      if (mean != nullptr) x = x - (n == kWidth ? simd::load(mean + d) : simd::load(mean + d, n));
      sum = simd::fma(x, x, sum);
    }
    const auto norm = static_cast<float>(simd::sum(sum));
    int64_t at = found;
    while (at > 0 && norms[at - 1] < norm) --at;
    if (at == kLongest) continue;
    found = std::min(found + 1, kLongest);
    for (int64_t j = found - 1; j > at; --j) {
      norms[j] = norms[j - 1];
      rows[j] = rows[j - 1];
    }
    norms[at] = norm;
    rows[at] = i;
  }
  return found;
}

// Rows of a source: `even` from the middles of equal parts, each for its part, then the longest of the others for
// themselves, of which few may be all that matters.
struct Sample {
  int64_t rows[kMostSampleKeys];
  int64_t count, even;
  double share;  // how many rows an even one is for

  Sample(const PackSource& source, const float* mean, int64_t even_rows) : count(even_rows), even(even_rows) {
    for (int64_t i = 0; i < even; ++i) rows[i] = (2 * i + 1) * source.count / (2 * even);
    int64_t longest[kLongest];
    const int64_t found = longest_rows(source, mean, longest);
    for (int64_t i = 0; i < found; ++i)
      if (std::find(rows, rows + count, longest[i]) == rows + count) rows[count++] = longest[i];
    share = static_cast<double>(source.count - (count - even)) / static_cast<double>(even);
  }
  double weight(int64_t i) const { return i < even ? share : 1; }
};

// Scores of a row become weights that add up to 1; `rounds`: in panels, as bytes.
void weigh(float* scores, const Sample& keys, bool rounds) {
  const float top = *std::max_element(scores, scores + keys.count);
  double sum = 0;
  for (int64_t first = 0; first < keys.count; first += kInt8PanelKeys) {
    const int64_t end = std::min(first + kInt8PanelKeys, keys.count);
    const float largest = *std::max_element(scores + first, scores + end);
    const float factor = std::exp2(largest - top) / kInt8LargestWeight;
    for (int64_t j = first; j < end; ++j) {
      const float byte = std::nearbyint(kInt8LargestWeight * std::exp2(scores[j] - largest));
      scores[j] = (rounds ? byte * factor : std::exp2(scores[j] - top)) * static_cast<float>(keys.weight(j));
      sum += static_cast<double>(scores[j]);
    }
  }
  for (int64_t j = 0; j < keys.count; ++j) scores[j] /= static_cast<float>(sum);
}

// Adds weight times value to the outputs of the rows, exactly and as rounded: with the scales of the tiles, which have
// the range of keys that are not in the sample too.
void add_values(std::span<SampleRow> rows, const Sample& keys, const PackSource& values, int64_t key_tile) {
  const int64_t head_dim = values.head_dim;
  alignas(32) float scales[kMostHeadDim], centers[kMostHeadDim], factors[kMostHeadDim];
  alignas(32) float value[kMostHeadDim] = {}, rounded_value[kMostHeadDim] = {};
  int8_t bytes[kMostHeadDim];
  for (int64_t begin = 0; begin < values.count; begin += key_tile) {
    const int64_t end = std::min(begin + key_tile, values.count);
    bool measured = false;
    for (int64_t j = 0; j < keys.count; ++j) {
      if (keys.rows[j] < begin || keys.rows[j] >= end) continue;
      if (!measured) measure_int8_channels(values, begin, end, kWidth, {scales, centers, factors});
      measured = true;
      const BFloat16* v = row_of(values, keys.rows[j]);
      int8_value_row(v, {scales, centers, factors}, head_dim, bytes);
      for (int64_t d = 0; d < head_dim; ++d) {
        value[d] = to_float(v[d]);
        rounded_value[d] = centers[d] + scales[d] * static_cast<float>(bytes[d]);
      }
      for (SampleRow& row : rows) {
        const Floats weight = simd::set(row.exact[j]), byte = simd::set(row.rounded[j]);
        for (int64_t d = 0; d < head_dim; d += kWidth) {
          simd::store(row.o + d, simd::fma(simd::load(value + d), weight, simd::load(row.o + d)));
          simd::store(row.rounded_o + d, simd::fma(simd::load(rounded_value + d), byte, simd::load(row.rounded_o + d)));
        }
      }
    }
  }
}

}  // namespace

int64_t int8_sample_bytes() { return kSampleRows * int64_t{sizeof(SampleRow)}; }

double int8_output_error(const PackSource& queries, const PackSource& keys, const PackSource& values, const float* mean,
                         float scale_log2e, int64_t key_tile, void* scratch) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const int64_t head_dim = queries.head_dim;
  const Sample of_queries(queries, nullptr, std::min(kEvenRows, queries.count));
  const int64_t even_keys = std::clamp(keys.count / kEvenShare, kFewestEvenKeys, kMostEvenKeys);
  const Sample of_keys(keys, mean, std::min(even_keys, keys.count));
  const std::span<SampleRow> rows(new (scratch) SampleRow[kSampleRows], static_cast<size_t>(of_queries.count));
  for (size_t i = 0; i < rows.size(); ++i) {
    SampleRow& row = rows[i];
    row.q = row_of(queries, of_queries.rows[i]);
    row.scale = int8_row(row.q, nullptr, head_dim, row.values).scale / static_cast<float>(rotation_size(head_dim));
    row.offset = mean_product(row.q, mean, head_dim);
    std::fill(row.o, row.o + round_up(head_dim, kWidth), 0.0f);
    std::fill(row.rounded_o, row.rounded_o + round_up(head_dim, kWidth), 0.0f);
  }
  alignas(32) float key[kMostHeadDim];
  int8_t bytes[kMostHeadDim];
  for (int64_t j = 0; j < of_keys.count; ++j) {
    const BFloat16* k = row_of(keys, of_keys.rows[j]);
    for (int64_t d = 0; d < head_dim; ++d) key[d] = to_float(k[d]);
    const float scale = int8_row(k, mean, head_dim, bytes).scale;
    for (SampleRow& row : rows) {
      int32_t sum = 0;
      for (int64_t d = 0; d < head_dim; ++d) sum += int32_t{row.values[d]} * int32_t{bytes[d]};
      row.exact[j] = mean_product(row.q, key, head_dim) * scale_log2e;
      row.rounded[j] = (static_cast<float>(sum) * scale * row.scale + row.offset) * scale_log2e;
    }
  }
  for (SampleRow& row : rows) {
    weigh(row.exact, of_keys, false);
    weigh(row.rounded, of_keys, true);
  }
  add_values(rows, of_keys, values, key_tile);
  double error = 0, norm = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double weight = of_queries.weight(static_cast<int64_t>(i));
    for (int64_t d = 0; d < head_dim; ++d) {
      const double exact = static_cast<double>(rows[i].o[d]), off = static_cast<double>(rows[i].rounded_o[d]) - exact;
      error += weight * off * off;
      norm += weight * exact * exact;
    }
  }
  return error == 0 ? 0 : std::sqrt(error / norm);  // values may all be zero
}

bool Int8Heads::take(double error) {
  if (std::isfinite(limit_) && !(error <= limit_)) {
    ++counts_.bf16_heads;
    return false;
  }
  ++counts_.int8_heads;
  counts_.int8_error = std::max(counts_.int8_error, error);
  return true;
}

void Int8Heads::store_in(TileCounts& counts) const {
  counts.int8_heads = counts_.int8_heads;
  counts.bf16_heads = counts_.bf16_heads;
  counts.int8_error = counts_.int8_error;
}

double int8_score_growth(int64_t head_dim) {
  const double rounding = std::sqrt(static_cast<double>(head_dim)) / (2 * static_cast<double>(kInt8Most));
  return 2 * ((1 + rounding) * (1 + rounding) - 1);
}

}  // namespace zoetrope::kernels
