#include "kernels/gemm/stored_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

// Stored matrices may lie at any address.
template <typename From>
void widen_row(const std::byte* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    if constexpr (std::is_same_v<From, double>) {
      to[i] = static_cast<float>(value);
    } else {
      to[i] = to_float(value);
    }
  }
}

template <typename From>
void round_row(const std::byte* from, BFloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    if constexpr (std::is_same_v<From, double>) {
      to[i] = to_bfloat16(static_cast<float>(value));
    } else {
      to[i] = to_bfloat16(to_float(value));
    }
  }
}

// One by one they took four times as long as what a vector instruction widens.
template <>
void round_row<Float16>(const std::byte* from, BFloat16* to, int64_t count) {
  constexpr int64_t kAtOnce = 8;
  const auto round_eight = [](const std::byte* eight, BFloat16* rounded) {
    float values[kAtOnce];
    _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(eight))));
    for (int64_t j = 0; j < kAtOnce; ++j) rounded[j] = to_bfloat16(values[j]);
  };
  int64_t at = 0;
  for (; at + kAtOnce <= count; at += kAtOnce) round_eight(from + at * static_cast<int64_t>(sizeof(Float16)), to + at);
  std::byte last[kAtOnce * sizeof(Float16)] = {};
  BFloat16 rounded[kAtOnce];
  std::memcpy(last, from + at * static_cast<int64_t>(sizeof(Float16)),
              static_cast<size_t>(count - at) * sizeof(Float16));
  round_eight(last, rounded);
  std::copy_n(rounded, count - at, to + at);
}

}  // namespace

StoredRows::StoredRows(std::span<const TensorView> stored, int64_t k) : k_(k), dtype_(stored[0].dtype()) {
  const bool alike =
      std::all_of(stored.begin(), stored.end(), [&](const TensorView& part) { return part.dtype() == dtype_; });
  direct_ = alike && (dtype_ == DType::kF32 || dtype_ == DType::kBF16);
  for (const TensorView& part : stored) {
    const int64_t row_bytes = k * static_cast<int64_t>(dtype_size(part.dtype()));
    for (int64_t row = 0; row < part.extent(0); ++row)
      rows_.push_back(static_cast<const std::byte*>(part.raw()) + row * row_bytes);
    with_stored_type(part.dtype(), "pack: a matrix", [&](auto tag) {
      using From = typename decltype(tag)::type;
      widen_.resize(rows_.size(), widen_row<From>);
      round_.resize(rows_.size(), round_row<From>);
    });
  }
}

void StoredRows::widen(int64_t row, float* to) const {
  widen_[static_cast<size_t>(row)](rows_[static_cast<size_t>(row)], to, k_);
}

void StoredRows::round(int64_t first, int64_t count, BFloat16* to) const {
  for (int64_t row = first; row < first + count; ++row, to += k_)
    round_[static_cast<size_t>(row)](rows_[static_cast<size_t>(row)], to, k_);
}

void StoredRows::pack(int64_t first, int64_t count, const PairBlocks& blocks, BFloat16* out) const {
  if (direct_) {
    const auto rows = std::span(rows_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    return pack_pairs(rows, dtype_, k_, blocks, out);
  }
  std::vector<BFloat16> rounded(static_cast<size_t>(blocks.columns * k_));
  std::vector<const std::byte*> rows;
  for (int64_t row = 0; row < count; row += blocks.columns, out += blocks.column_stride) {
    const int64_t here = std::min(blocks.columns, count - row);
    round(first + row, here, rounded.data());
    rows.clear();
    for (int64_t i = 0; i < here; ++i) rows.push_back(reinterpret_cast<const std::byte*>(rounded.data() + i * k_));
    pack_pairs(rows, DType::kBF16, k_, blocks, out);
  }
}

}  // namespace zoetrope::kernels
