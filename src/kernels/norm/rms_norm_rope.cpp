#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/implementation.h"
#include "kernels/norm/norm.h"
#include "kernels/simd.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

// Where a head's rows start, and the distance to the next batch entry and token, in elements.
struct HeadTarget {
  char* data;
  int64_t batch_stride, token_stride;
};

// One head of one token. weight may be null (no norm), cos and sin too (no rotation).
template <bool kNorm, bool kRotate, typename T>
void write_head(const T* x, T* out, int64_t d, Floats scale, const float* weight, const float* cos, const float* sin) {
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  int64_t i = 0;
  const auto normed = [&](auto lanes) {
    Floats y = simd::load_at(x, i, lanes);
    if constexpr (kNorm) y = _mm256_mul_ps(_mm256_mul_ps(y, scale), simd::load_at(weight, i, lanes));
    return y;
  };
  const auto rotated = [&](Floats y, __m128 four_cos, __m128 four_sin) {
    const Floats c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(four_cos), twice);
    const Floats s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(four_sin), twice);
    const Floats swapped = _mm256_permute_ps(y, 0xb1);
    return _mm256_fmaddsub_ps(y, c, _mm256_mul_ps(swapped, s));  // even: y·c − swapped·s, odd: y·c + swapped·s
  };
  for (; i + simd::kWidth <= d; i += simd::kWidth) {
    Floats y = normed(simd::Whole{});
    if constexpr (kRotate) y = rotated(y, _mm_loadu_ps(cos + i / 2), _mm_loadu_ps(sin + i / 2));
    simd::store(out + i, y);
  }
  if (i == d) return;
  const int64_t rest = d - i;
  Floats y = normed(rest);
  if constexpr (kRotate) {
    const Floats c = simd::load(cos + i / 2, rest / 2), s = simd::load(sin + i / 2, rest / 2);
    y = rotated(y, _mm256_castps256_ps128(c), _mm256_castps256_ps128(s));
  }
  simd::store(out + i, y, rest);
}

int64_t normed_heads(const RmsNormRope& a) { return a.squares ? a.all_heads : a.x.extent(2); }

template <bool kNorm, bool kRotate, typename T>
void write_rows(Stream& stream, const RmsNormRope& a, const float* weight, const HeadTarget* targets) {
  const TensorView& x = a.x;
  const int64_t tokens = x.extent(1), heads = x.extent(2), d = x.extent(3);
  const bool one_run = heads == 1 || x.stride(2) == d;
  const int64_t count = x.extent(0) * tokens;
  stream.team().parallel_for(count, std::max<int64_t>(1, 8192 / (heads * d)), [&](IndexRange range, int) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t b = row / tokens, s = row % tokens;
      const T* from = x.data<T>() + b * x.stride(0) + s * x.stride(1);
      Floats scale = simd::set(1.0f);
      if constexpr (kNorm) {
        double squares = 0;
        if (a.squares) squares = static_cast<double>(a.squares.data<float>()[row]);
        else if (one_run) squares = simd::sum_of_squares(from, heads * d);
        else
          for (int64_t h = 0; h < heads; ++h) squares += simd::sum_of_squares(from + h * x.stride(2), d);
        const double mean = squares / static_cast<double>(normed_heads(a) * d);
        scale = simd::set(static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(a.eps))));
      }
      const float* cos = kRotate ? a.cos.data<float>() + s * a.cos.stride(0) : nullptr;
      const float* sin = kRotate ? a.sin.data<float>() + s * a.sin.stride(0) : nullptr;
      for (int64_t h = 0; h < heads; ++h) {
        const HeadTarget& target = targets[h];
        T* to = reinterpret_cast<T*>(target.data) + b * target.batch_stride + s * target.token_stride;
        write_head<kNorm, kRotate>(from + h * x.stride(2), to, d, scale, kNorm ? weight + h * d : nullptr, cos, sin);
      }
    }
  });
}

const float* float_weight(Stream& stream, const TensorView& weight) {
  if (!weight) return nullptr;
  if (weight.dtype() == DType::kF32) return weight.data<float>();
  auto* converted = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(weight.size()) * sizeof(float)));
  for (int64_t i = 0; i < weight.size(); ++i) converted[i] = to_float(weight.data<BFloat16>()[i]);
  return converted;
}

void rms_norm_rope_avx2(Stream& stream, const RmsNormRope& a) {
  const Arena::Scope scope(stream.scratch());
  const float* weight = float_weight(stream, a.weight);
  const auto heads = static_cast<size_t>(a.x.extent(2));
  auto* targets = static_cast<HeadTarget*>(stream.scratch().allocate(heads * sizeof(HeadTarget)));
  for (const HeadSlot& slot : a.slots) {
    for (int64_t h = slot.heads.begin; h < slot.heads.end; ++h) {
      const int64_t offset = (h - slot.heads.begin) * slot.out.stride(2);
      char* data = static_cast<char*>(slot.out.raw()) + offset * static_cast<int64_t>(dtype_size(slot.out.dtype()));
      targets[h] = {data, slot.out.stride(0), slot.out.stride(1)};
    }
  }
  with_compute_type(a.x.dtype(), "rms_norm_rope's x", [&](auto type) {
    using T = typename decltype(type)::type;
    if (a.weight && a.cos) write_rows<true, true, T>(stream, a, weight, targets);
    else if (a.weight) write_rows<true, false, T>(stream, a, weight, targets);
    else write_rows<false, true, T>(stream, a, weight, targets);
  });
}

void rms_norm_rope_reference(Stream&, const RmsNormRope& a) {
  const int64_t heads = a.x.extent(2), d = a.x.extent(3);
  std::vector<double> y(static_cast<size_t>(heads * d));
  for (int64_t b = 0; b < a.x.extent(0); ++b) {
    for (int64_t s = 0; s < a.x.extent(1); ++s) {
      double square = 0;
      for (int64_t i = 0; i < heads * d; ++i) {
        auto& value = y[static_cast<size_t>(i)];
        value = element(a.x, b * a.x.stride(0) + s * a.x.stride(1) + i / d * a.x.stride(2) + i % d);
        square += value * value;
      }
      if (a.squares) square = element(a.squares, b * a.x.extent(1) + s);
      const double mean = square / static_cast<double>(normed_heads(a) * d);
      const double scale = 1 / std::sqrt(mean + static_cast<double>(a.eps));
      if (a.weight)
        for (int64_t i = 0; i < heads * d; ++i) y[static_cast<size_t>(i)] *= scale * element(a.weight, i);
      if (a.cos)
        for (int64_t i = 0; i < heads * d; i += 2) {
          const double c = element(a.cos, s * a.cos.stride(0) + i % d / 2);
          const double n = element(a.sin, s * a.sin.stride(0) + i % d / 2);
          double &even = y[static_cast<size_t>(i)], &odd = y[static_cast<size_t>(i + 1)];
          const double rotated = even * c - odd * n;
          odd = even * n + odd * c;
          even = rotated;
        }
      for (const HeadSlot& slot : a.slots)
        for (int64_t h = slot.heads.begin; h < slot.heads.end; ++h)
          for (int64_t i = 0; i < d; ++i) {
            const TensorView& out = slot.out;
            const int64_t at = b * out.stride(0) + s * out.stride(1) + (h - slot.heads.begin) * out.stride(2) + i;
            set_element(out, at, y[static_cast<size_t>(h * d + i)]);
          }
    }
  }
}

void check_slots(const RmsNormRope& a) {
  const int64_t heads = a.x.extent(2);
  int64_t covered = 0;
  for (const HeadSlot& slot : a.slots) {
    const Shape expected{a.x.extent(0), a.x.extent(1), slot.heads.size(), a.x.extent(3)};
    if (slot.heads.begin < 0 || slot.heads.end > heads || slot.heads.size() < 0)
      fail("rms_norm_rope: a slot takes heads [{}, {}) of {}", slot.heads.begin, slot.heads.end, heads);
    for (const HeadSlot& other : a.slots) {
      if (&other != &slot && slot.heads.begin < other.heads.end && other.heads.begin < slot.heads.end)
        fail("rms_norm_rope: slots [{}, {}) and [{}, {}) overlap", slot.heads.begin, slot.heads.end, other.heads.begin,
             other.heads.end);
    }
    covered += slot.heads.size();
    if (slot.heads.empty()) continue;
    if (!(slot.out.shape() == expected) || slot.out.dtype() != a.x.dtype())
      fail("rms_norm_rope: a slot is {} {}, but {} {} is needed", dtype_name(slot.out.dtype()),
           slot.out.shape().to_string(), dtype_name(a.x.dtype()), expected.to_string());
    if (expected[3] > 1 && slot.out.stride(3) != 1) fail("rms_norm_rope: the last axis of a slot must be contiguous");
  }
  if (covered != heads) fail("rms_norm_rope: the slots take {} heads of {}", covered, heads);
}

void check(const RmsNormRope& a) {
  if (a.x.rank() != 4) fail("rms_norm_rope: x is {}, but [B, S, H, D] is needed", a.x.shape().to_string());
  if (a.x.dtype() != DType::kF32 && a.x.dtype() != DType::kBF16)
    fail("rms_norm_rope: x has dtype {}, but F32 or BF16 is needed", dtype_name(a.x.dtype()));
  const int64_t tokens = a.x.extent(1), heads = a.x.extent(2), d = a.x.extent(3);
  if (d > 1 && a.x.stride(3) != 1) fail("rms_norm_rope: the last axis of x must be contiguous");
  const bool compute = a.weight.dtype() == DType::kF32 || a.weight.dtype() == DType::kBF16;
  if (a.weight && (!(a.weight.shape() == Shape{heads * d}) || !a.weight.contiguous() || !compute))
    fail("rms_norm_rope: the weight must be contiguous F32 or BF16 [{}], not {} {}", heads * d,
         dtype_name(a.weight.dtype()), a.weight.shape().to_string());
  if (static_cast<bool>(a.cos) != static_cast<bool>(a.sin)) fail("rms_norm_rope: cos and sin must come together");
  if (a.cos && d % 2 != 0) fail("rms_norm_rope: head_dim {} is odd, pairs cannot be rotated", d);
  for (const TensorView* t : {&a.cos, &a.sin}) {
    if (*t &&
        (t->dtype() != DType::kF32 || !(t->shape() == Shape{tokens, d / 2}) || (t->extent(1) > 1 && t->stride(1) != 1)))
      fail("rms_norm_rope: cos and sin must be F32 [{}, {}], not {} {}", tokens, d / 2, dtype_name(t->dtype()),
           t->shape().to_string());
  }
  const int64_t rows = a.x.extent(0) * tokens;
  if (a.squares && (!a.weight || a.squares.dtype() != DType::kF32 || !(a.squares.shape() == Shape{rows}) ||
                    !a.squares.contiguous() || a.all_heads < heads)) {
    fail(
        "rms_norm_rope: the sums of squares must be contiguous F32 [{}] of at least {} heads, next to a weight, not {} "
        "{} of {}",
        rows, heads, dtype_name(a.squares.dtype()), a.squares.shape().to_string(), a.all_heads);
  }
  check_slots(a);
}

constexpr Implementation<RmsNormRope, void (*)(Stream&, const RmsNormRope&)> kImplementations[] = {
    {"avx2", nullptr, rms_norm_rope_avx2},
    {"reference", nullptr, rms_norm_rope_reference},
};

}  // namespace

void rms_norm_rope(Stream& stream, const RmsNormRope& args) {
  check(args);
  const auto& implementation = choose("rms_norm_rope", kImplementations, args, args.implementation);
  if (args.x.size() == 0) return;
  if (!args.weight && !args.cos) {  // nothing is computed: a copy, and counted as one
    for (const HeadSlot& slot : args.slots)
      if (!slot.heads.empty()) copy(stream, slot.out, args.x.slice(2, slot.heads.begin, slot.heads.end));
    return;
  }
  implementation.function(stream, args);
}

void sum_of_squares(Stream& stream, const TensorView& x, const TensorView& out) {
  ZT_CHECK(x.rank() == 2 && (x.extent(1) < 2 || x.stride(1) == 1), "x is {}", x.shape().to_string());
  ZT_CHECK(out.dtype() == DType::kF32 && out.shape() == Shape{x.extent(0)} && out.contiguous());
  with_compute_type(x.dtype(), "sum_of_squares' x", [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int64_t kGrain = 16;
    stream.team().parallel_for(x.extent(0), kGrain, [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const T* from = x.data<T>() + row * x.stride(0);
        out.data<float>()[row] = static_cast<float>(simd::sum_of_squares(from, x.extent(1)));
      }
    });
  });
}

}  // namespace zoetrope::kernels
