#include "kernels/flash_attention/pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/flash_attention/int8_panel.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

// How source elements become 32-bit words of an operand. A word is a float32, or a pair of bf16.
struct FloatWords {
  using Source = float;
  static constexpr int kElements = 1;  // of the source in a word
  static __m256i load(const Source* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
};
struct ConvertedWords {
  using Source = uint16_t;
  static constexpr int kElements = 1;
  static __m256i load(const Source* x) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16);
  }
};
struct PairWords {
  using Source = uint16_t;
  static constexpr int kElements = 2;
  static __m256i load(const Source* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
};

constexpr int64_t kWords = 8;      // of a vector
constexpr int64_t kLine = 64;      // bytes
constexpr int64_t kRowsAhead = 8;  // of values, asked for before they are read
// Packing is 3.5 % of a call over 1 024 keys of four heads (Zen 4), two thirds of it waiting for lines. Transposes of
// sixteen whole lines in AVX-512, with the same prefetches, took 1.00 to 1.01 times as long. Lost: rows of the next
// head, and of the output, prefetched between blocks of scores (0 to 0.3 % of the time at 1 024 keys).

template <typename Body>
void with_words(const TileShape& shape, DType source, Body&& body) {
  if (source == DType::kF32) {
    ZT_CHECK(shape.pair == 1);
    body(FloatWords{});
  } else if (shape.pair == 2) {
    body(PairWords{});
  } else {
    body(ConvertedWords{});
  }
}

template <typename Words>
const typename Words::Source* row_of(const PackSource& source, int64_t key) {
  const int64_t row = source.index == nullptr ? key : source.index[key];
  return static_cast<const typename Words::Source*>(source.data) + row * source.stride;
}

// The row of a key that is packed soon, so that its lines are on their way: rows are too short and too far apart for
// the hardware to guess. Keys beyond the last ask for the last once more.
template <typename Words>
const typename Words::Source* upcoming_row(const PackSource& source, int64_t key) {
  return row_of<Words>(source, std::min(key, source.count - 1));
}

// Eight words from element `d` on, zeros beyond the head.
template <typename Words>
__m256i load_words(const typename Words::Source* row, int64_t d, int64_t head_dim) {
  constexpr int64_t kElements = kWords * Words::kElements;
  if (d + kElements <= head_dim) return Words::load(row + d);
  typename Words::Source part[kElements] = {};
  if (d < head_dim) std::memcpy(part, row + d, static_cast<size_t>(head_dim - d) * sizeof(part[0]));
  return Words::load(part);
}

inline void transpose(__m256i (&x)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    x[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

int32_t* at_word(void* packed, int64_t word) { return static_cast<int32_t*>(packed) + word; }
void store_words(int32_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

// One panel of keys, [steps][panel_keys] words.
template <typename Words>
void pack_key_panel(const TileShape& shape, const PackSource& source, int64_t first, int32_t* packed) {
  const int64_t steps = shape.steps(source.head_dim);
  // The panel after this one: its lines are written in strides that the hardware does not follow.
  const char* ahead = reinterpret_cast<const char*>(packed + steps * shape.panel_keys);
  const int64_t lines_a_block = ceil_div(shape.panel_keys * kWords * 4, kLine * (shape.panel_keys / kWords));
  for (int64_t group = 0; group < shape.panel_keys; group += kWords) {
    const typename Words::Source* rows[kWords] = {};
    const typename Words::Source* next[kWords];
    for (int64_t i = 0; i < kWords; ++i) {
      if (first + group + i < source.count) rows[i] = row_of<Words>(source, first + group + i);
      next[i] = upcoming_row<Words>(source, first + group + kWords + i);
    }
    for (int64_t step = 0; step < steps; step += kWords) {
      __m256i x[kWords];
      for (int64_t i = 0; i < kWords; ++i) {
        x[i] = rows[i] == nullptr ? _mm256_setzero_si256()
                                  : load_words<Words>(rows[i], step * Words::kElements, source.head_dim);
        __builtin_prefetch(next[i] + step * Words::kElements);
      }
      for (int64_t line = 0; line < lines_a_block; ++line, ahead += kLine) __builtin_prefetch(ahead, 1);
      transpose(x);
      const int64_t n = std::min(kWords, steps - step);
      for (int64_t i = 0; i < n; ++i) store_words(packed + (step + i) * shape.panel_keys + group, x[i]);
    }
  }
}

// Values of one key: eight head dims at a time into the value panel that holds them.
template <typename Words>
void pack_value_row(const TileShape& shape, const PackSource& source, int64_t key, int64_t row_in_tile,
                    int64_t tile_keys, int32_t* packed) {
  const ValuePanels panels(source.head_dim, shape);
  const auto* row = key < source.count ? row_of<Words>(source, key) : nullptr;
  const auto* next = upcoming_row<Words>(source, key + kRowsAhead);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.first_vector(panel) * shape.lanes, width = panels.width_vectors(panel) * shape.lanes;
    int32_t* to = packed + begin * tile_keys + row_in_tile * width;
    for (int64_t d = 0; d < width; d += kWords) {
      store_words(to + d, row == nullptr ? _mm256_setzero_si256() : load_words<Words>(row, begin + d, source.head_dim));
      __builtin_prefetch(next + begin + d);
    }
  }
}

// Values of two neighbouring bf16 keys: word d holds (key, d) and (key + 1, d). Sixteen head dims at a time.
void pack_value_pair(const TileShape& shape, const PackSource& source, int64_t key, int64_t row_in_tile,
                     int64_t tile_keys, int32_t* packed) {
  const ValuePanels panels(source.head_dim, shape);
  const uint16_t* rows[2] = {};
  const uint16_t* next[2];
  for (int64_t i = 0; i < 2; ++i) {
    if (key + i < source.count) rows[i] = row_of<PairWords>(source, key + i);
    next[i] = upcoming_row<PairWords>(source, key + kRowsAhead + i);
  }
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.first_vector(panel) * shape.lanes, width = panels.width_vectors(panel) * shape.lanes;
    int32_t* to = packed + (begin * tile_keys + row_in_tile * width) / 2;
    for (int64_t d = 0; d < width; d += 2 * kWords) {
      __m256i x[2];
      for (int i = 0; i < 2; ++i) {
        x[i] = rows[i] == nullptr ? _mm256_setzero_si256() : load_words<PairWords>(rows[i], begin + d, source.head_dim);
        __builtin_prefetch(next[i] + begin + d);
      }
      const __m256i low = _mm256_unpacklo_epi16(x[0], x[1]), high = _mm256_unpackhi_epi16(x[0], x[1]);
      store_words(to + d, _mm256_permute2x128_si256(low, high, 0x20));
      store_words(to + d + kWords, _mm256_permute2x128_si256(low, high, 0x31));
    }
  }
}

}  // namespace

int64_t packed_keys_bytes(const TileShape& shape, int64_t keys, int64_t head_dim) {
  if (shape.operand == DType::kI8) return round_up(keys, shape.panel_keys) * int8_key_bytes(shape.steps(head_dim));
  return round_up(keys, shape.panel_keys) * shape.steps(head_dim) * 4;
}

int64_t packed_values_bytes(const TileShape& shape, int64_t keys, int64_t head_dim) {
  const int64_t channels = round_up(head_dim, shape.lanes);
  if (shape.operand == DType::kI8)
    return ceil_div(keys, shape.key_tile) * int8_value_tile_bytes(shape.key_tile, channels, shape.pair);
  return round_up(keys, shape.panel_keys) * channels * 4 / shape.pair;
}

void pack_keys(const TileShape& shape, const PackSource& source, int64_t tile, void* packed) {
  const int64_t begin = tile * shape.key_tile, end = std::min(begin + shape.key_tile, source.count);
  const int64_t steps = shape.steps(source.head_dim);
  with_words(shape, source.dtype, [&](auto words) {
    for (int64_t key = begin; key < end; key += shape.panel_keys) {
      pack_key_panel<decltype(words)>(shape, source, key, at_word(packed, key * steps));
    }
  });
}

void pack_values(const TileShape& shape, const PackSource& source, int64_t tile, void* packed) {
  const int64_t begin = tile * shape.key_tile;
  const int64_t keys = round_up(std::min(shape.key_tile, source.count - begin), shape.panel_keys);
  int32_t* to = at_word(packed, begin * round_up(source.head_dim, shape.lanes) / shape.pair);
  with_words(shape, source.dtype, [&](auto words) {
    using Words = decltype(words);
    for (int64_t i = 0; i < keys; i += Words::kElements) {
      if constexpr (Words::kElements == 2) {
        pack_value_pair(shape, source, begin + i, i, keys, to);
      } else {
        pack_value_row<Words>(shape, source, begin + i, i, keys, to);
      }
    }
  });
}

void pack_rows(const TileShape& shape, const PackSource& source, int64_t begin, int64_t rows, void* packed) {
  const int64_t steps = shape.steps(source.head_dim), whole = steps / kWords * kWords;
  with_words(shape, source.dtype, [&](auto words) {
    using Words = decltype(words);
    for (int64_t i = 0; i < rows; ++i) {
      const auto* row = row_of<Words>(source, begin + i);
      int32_t* to = at_word(packed, i * steps);
      for (int64_t step = 0; step < whole; step += kWords) {
        store_words(to + step, load_words<Words>(row, step * Words::kElements, source.head_dim));
      }
      if (whole == steps) continue;
      alignas(32) int32_t last[kWords];
      store_words(last, load_words<Words>(row, whole * Words::kElements, source.head_dim));
      std::memcpy(to + whole, last, static_cast<size_t>(steps - whole) * sizeof(int32_t));
    }
  });
}

}  // namespace zoetrope::kernels
