#include "kernels/narrow/narrow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/implementation.h"
#include "kernels/simd.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

constexpr int64_t kGrain = 8192;  // values per thread: below that, waking the team costs more than the work
constexpr float kMost = 127;

struct Scale {
  float scale, inverse;
};

// Of a block whose largest |x| has these bits, which of NaN and infinity are larger than those of every number.
Scale scale_of(uint32_t largest) {
  constexpr uint32_t kInfinity = 0x7f800000;
  if (largest >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const auto most = std::bit_cast<float>(largest);
  if (most < 0x1p-100F) return {0, 0};
  return {most / kMost, kMost / most};
}

int64_t blocks_of(int64_t d) { return ceil_div(d, kNarrowBlock); }

// A vector in int8: its scales, unaligned, and its values.
const char* values_of(const char* narrowed, int64_t d) { return narrowed + blocks_of(d) * int64_t{sizeof(float)}; }
char* values_of(char* narrowed, int64_t d) { return narrowed + blocks_of(d) * int64_t{sizeof(float)}; }
void set_scale(char* narrowed, int64_t block, float scale) {
  std::memcpy(narrowed + block * int64_t{sizeof scale}, &scale, sizeof scale);
}
float scale_at(const char* narrowed, int64_t block) {
  float scale = 0;
  std::memcpy(&scale, narrowed + block * int64_t{sizeof scale}, sizeof scale);
  return scale;
}

// ---- scalar ---------------------------------------------------------------------------------------------------------

void add(Rounding& sums, float x, float rounded) {
  const double change = static_cast<double>(x) - static_cast<double>(rounded);
  sums.changes += change * change;
  sums.values += static_cast<double>(x) * static_cast<double>(x);
}

struct Scalar {
  template <typename T>
  static void narrow_bfloat16(const T* x, char* narrowed, int64_t d, Rounding& sums) {
    for (int64_t i = 0; i < d; ++i) {
      const BFloat16 rounded = to_bfloat16(to_float(x[i]));
      std::memcpy(narrowed + 2 * i, &rounded, sizeof rounded);
      add(sums, to_float(x[i]), to_float(rounded));
    }
  }
  template <typename T>
  static void narrow_int8(const T* x, char* narrowed, int64_t d, Rounding& sums) {
    for (int64_t begin = 0; begin < d; begin += kNarrowBlock) {
      const int64_t end = std::min(d, begin + kNarrowBlock);
      uint32_t largest = 0;
      for (int64_t i = begin; i < end; ++i)
        largest = std::max(largest, std::bit_cast<uint32_t>(to_float(x[i])) & 0x7fffffffU);
      const Scale s = scale_of(largest);
      set_scale(narrowed, begin / kNarrowBlock, s.scale);
      for (int64_t i = begin; i < end; ++i) {
        const float value = std::isnan(s.scale) ? 0 : std::nearbyint(to_float(x[i]) * s.inverse);
        values_of(narrowed, d)[i] = static_cast<char>(static_cast<int8_t>(value));
        add(sums, to_float(x[i]), to_float(from_float<T>(value * s.scale)));
      }
    }
  }
  template <typename T>
  static void widen_bfloat16(const char* narrowed, T* x, int64_t d) {
    for (int64_t i = 0; i < d; ++i) {
      BFloat16 value;
      std::memcpy(&value, narrowed + 2 * i, sizeof value);
      x[i] = from_float<T>(to_float(value));
    }
  }
  template <typename T>
  static void widen_int8(const char* narrowed, T* x, int64_t d) {
    for (int64_t i = 0; i < d; ++i) {
      const auto value = static_cast<float>(static_cast<int8_t>(values_of(narrowed, d)[i]));
      x[i] = from_float<T>(value * scale_at(narrowed, i / kNarrowBlock));
    }
  }
};

// ---- AVX2 -----------------------------------------------------------------------------------------------------------

template <typename T>
Floats rounded_to(Floats x) {
  if constexpr (std::is_same_v<T, BFloat16>) return simd::round_to_bfloat16(x);
  else return x;
}

uint32_t largest_of(__m256i bits) {
  __m128i x = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
  x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(x));
}

struct Vector {
  static constexpr int64_t kVectors = kNarrowBlock / simd::kWidth;
  // Of a vector of D values: float32 sums of at most D / 8 terms a lane.
  struct Sums {
    Floats changes = simd::zero(), values = simd::zero();
    void add(Floats x, Floats rounded) {
      const Floats change = x - rounded;
      changes = simd::fma(change, change, changes);
      values = simd::fma(x, x, values);
    }
    void add_to(Rounding& all) const { all += {simd::sum(changes), simd::sum(values)}; }
  };

  template <typename T>
  static void narrow_bfloat16(const T* x, char* narrowed, int64_t d, Rounding& sums) {
    auto* out = reinterpret_cast<BFloat16*>(narrowed);
    Sums own;
    simd::for_vectors(d, [&](int64_t i, auto lanes) {
      const Floats values = simd::load_at(x, i, lanes);
      own.add(values, simd::round_to_bfloat16(values));
      simd::store_at(out, i, values, lanes);
    });
    own.add_to(sums);
  }

  // 32 values into 32 bytes.
  template <typename T>
  static float narrow_block(const T* x, char* out, Sums& sums) {
    static_assert(kVectors == 4);
    Floats values[kVectors];
    __m256i bits = _mm256_setzero_si256();
    for (int64_t v = 0; v < kVectors; ++v) {
      values[v] = simd::load(x + v * simd::kWidth);
      bits = _mm256_max_epu32(bits, _mm256_and_si256(_mm256_castps_si256(values[v]), _mm256_set1_epi32(0x7fffffff)));
    }
    const Scale s = scale_of(largest_of(bits));
    __m256i whole[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      whole[v] = _mm256_cvtps_epi32(values[v] * simd::set(s.inverse));
      sums.add(values[v], rounded_to<T>(_mm256_cvtepi32_ps(whole[v]) * simd::set(s.scale)));
    }
    if (std::isnan(s.scale)) std::fill(std::begin(whole), std::end(whole), _mm256_setzero_si256());
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs work on halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(packed, order));
    return s.scale;
  }
  template <typename T>
  static void narrow_int8(const T* x, char* narrowed, int64_t d, Rounding& sums) {
    char* out = values_of(narrowed, d);
    Sums own;
    int64_t i = 0;
    for (; i + kNarrowBlock <= d; i += kNarrowBlock)
      set_scale(narrowed, i / kNarrowBlock, narrow_block(x + i, out + i, own));
    if (i < d) {
      T rest[kNarrowBlock] = {};
      char bytes[kNarrowBlock];
      std::copy(x + i, x + d, rest);
      set_scale(narrowed, i / kNarrowBlock, narrow_block(rest, bytes, own));
      std::copy(bytes, bytes + (d - i), out + i);
    }
    own.add_to(sums);
  }

  template <typename T>
  static void widen_bfloat16(const char* narrowed, T* x, int64_t d) {
    const auto* in = reinterpret_cast<const BFloat16*>(narrowed);
    simd::for_vectors(d, [&](int64_t i, auto lanes) { simd::store_at(x, i, simd::load_at(in, i, lanes), lanes); });
  }
  template <typename T>
  static void widen_int8(const char* narrowed, T* x, int64_t d) {
    const char* in = values_of(narrowed, d);
    simd::for_vectors(d, [&](int64_t i, auto lanes) {
      // kNarrowBlock is a multiple of a vector.
      const Floats scale = simd::set(scale_at(narrowed, i / kNarrowBlock));
      int64_t bytes = 0;
      if constexpr (std::is_same_v<decltype(lanes), simd::Whole>) std::memcpy(&bytes, in + i, sizeof bytes);
      else std::memcpy(&bytes, in + i, static_cast<size_t>(lanes));
      const Floats values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes)));
      simd::store_at(x, i, values * scale, lanes);
    });
  }
};

// ---- rows -----------------------------------------------------------------------------------------------------------

struct Args {
  NarrowFormat format;
  TensorView x, narrowed;
};

// body(vector of x, vector of narrowed, thread) for each.
template <typename T, typename Body>
void for_each_vector(Stream& stream, const Args& a, Body&& body) {
  const int64_t tokens = a.x.extent(1), heads = a.x.extent(2), d = a.x.extent(3);
  const auto offset = [](const TensorView& view, int64_t b, int64_t s) {
    return b * view.stride(0) + s * view.stride(1);
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, heads * d));
  stream.team().parallel_for(a.x.extent(0) * tokens, grain, [&](IndexRange rows, int thread) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      T* x = a.x.data<T>() + offset(a.x, row / tokens, row % tokens);
      char* narrowed = a.narrowed.data<char>() + offset(a.narrowed, row / tokens, row % tokens);
      for (int64_t h = 0; h < heads; ++h) body(x + h * a.x.stride(2), narrowed + h * a.narrowed.stride(2), thread);
    }
  });
}

template <typename Code>
Rounding narrow_all(Stream& stream, const Args& a) {
  const int64_t d = a.x.extent(3), bytes = a.narrowed.extent(3);
  const int64_t used = a.format == NarrowFormat::kBFloat16 ? 2 * d : blocks_of(d) * int64_t{sizeof(float)} + d;
  const Arena::Scope scope(stream.scratch());
  const auto threads = static_cast<size_t>(stream.team().size());
  auto* sums = static_cast<Rounding*>(stream.scratch().allocate(threads * sizeof(Rounding)));
  std::fill(sums, sums + threads, Rounding());
  with_compute_type(a.x.dtype(), "narrow's x", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_vector<T>(stream, a, [&](const T* x, char* narrowed, int thread) {
      Rounding of_vector;
      if (a.format == NarrowFormat::kBFloat16) Code::narrow_bfloat16(x, narrowed, d, of_vector);
      else Code::narrow_int8(x, narrowed, d, of_vector);
      if (std::isfinite(of_vector.changes + of_vector.values)) sums[thread] += of_vector;
      std::fill(narrowed + used, narrowed + bytes, char{0});
    });
  });
  Rounding all;
  for (size_t thread = 0; thread < threads; ++thread) all += sums[thread];
  return all;
}

template <typename Code>
void widen_all(Stream& stream, const Args& a) {
  const int64_t d = a.x.extent(3);
  with_compute_type(a.x.dtype(), "widen's x", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_vector<T>(stream, a, [&](T* x, const char* narrowed, int) {
      if (a.format == NarrowFormat::kBFloat16) Code::widen_bfloat16(narrowed, x, d);
      else Code::widen_int8(narrowed, x, d);
    });
  });
}

constexpr Implementation<Args, Rounding (*)(Stream&, const Args&)> kNarrow[] = {
    {"avx2", nullptr, narrow_all<Vector>},
    {"reference", nullptr, narrow_all<Scalar>},
};
constexpr Implementation<Args, void (*)(Stream&, const Args&)> kWiden[] = {
    {"avx2", nullptr, widen_all<Vector>},
    {"reference", nullptr, widen_all<Scalar>},
};

void check(const char* op, const Args& a) {
  const Shape& x = a.x.shape();
  if (x.rank() != 4) fail("{}: {} must be [B, S, H, D]", op, x.to_string());
  const Shape narrowed{x[0], x[1], x[2], narrow_bytes(a.format, x[3])};
  if (a.narrowed.dtype() != DType::kU8 || !(a.narrowed.shape() == narrowed)) {
    fail("{}: {} needs U8 {}, not {} {}", op, x.to_string(), narrowed.to_string(), dtype_name(a.narrowed.dtype()),
         a.narrowed.shape().to_string());
  }
  for (const TensorView* view : {&a.x, &a.narrowed})
    if (view->extent(3) > 1 && view->stride(3) != 1)
      fail("{}: the last axis of {} must be contiguous", op, view->shape().to_string());
}

}  // namespace

int64_t narrow_bytes(NarrowFormat format, int64_t head_dim) {
  const int64_t bytes = format == NarrowFormat::kBFloat16 ? head_dim * int64_t{sizeof(BFloat16)}
                                                          : blocks_of(head_dim) * int64_t{sizeof(float)} + head_dim;
  return round_up(bytes, int64_t{sizeof(float)});
}

Rounding narrow(Stream& stream, NarrowFormat format, const TensorView& x, const TensorView& narrowed,
                std::string_view implementation) {
  const Args args{format, x, narrowed};
  check("narrow", args);
  return choose("narrow", kNarrow, args, implementation).function(stream, args);
}

void widen(Stream& stream, NarrowFormat format, const TensorView& narrowed, const TensorView& x,
           std::string_view implementation) {
  const Args args{format, x, narrowed};
  check("widen", args);
  choose("widen", kWiden, args, implementation).function(stream, args);
}

}  // namespace zoetrope::kernels
