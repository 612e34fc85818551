#include "io/weights/scaled_tensor.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/convrot.h"
#include "tensor/dispatch.h"

namespace zoetrope::io {
namespace {

int code(const std::byte* codes, int64_t at) { return static_cast<int>(codes[at]); }

// Codes are widened by way of float16, whose conversion takes subnormal numbers without delay: eight of them, each the
// upper byte of 16 bits. The bits of e4m3 are those of a float16 of another exponent.
__m256 eight_e4m3(__m128i codes) {
  constexpr auto kSignAndMagnitude = static_cast<int16_t>(0xbf80);
  const __m128i half = _mm_and_si128(_mm_srai_epi16(codes, 1), _mm_set1_epi16(kSignAndMagnitude));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(0x1p8f));
}

// e5m2 is the upper byte of a float16.
__m256 eight_e5m2(__m128i codes) { return _mm256_cvtph_ps(codes); }

template <typename Eight>
void widen_codes(const std::byte* codes, int64_t count, float* out, const Eight& eight) {
  constexpr int64_t kAtOnce = 16;
  const auto widen = [&](const std::byte* from, float* to) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), zero = _mm_setzero_si128();
    _mm256_storeu_ps(to, eight(_mm_unpacklo_epi8(zero, both)));
    _mm256_storeu_ps(to + kAtOnce / 2, eight(_mm_unpackhi_epi8(zero, both)));
  };
  int64_t at = 0;
  for (; at + kAtOnce <= count; at += kAtOnce) widen(codes + at, out + at);
  if (at == count) return;
  std::byte last[kAtOnce] = {};
  float values[kAtOnce];
  std::copy(codes + at, codes + count, last);
  widen(last, values);
  std::copy_n(values, count - at, out + at);
}

void widen_int8(const std::byte* codes, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
}

// Functions that make float32 of `count` stored elements.
using Widen = void (*)(const std::byte* from, int64_t count, float* out);

template <typename T>
void widen_numbers(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof value, sizeof value);
    out[i] = to_float(value);
  }
}

// Null for types that have none.
Widen widen_of(const std::string& type) {
  if (type == "F8_E4M3") return widen_e4m3;
  if (type == "F8_E5M2") return widen_e5m2;
  if (type == "I8") return widen_int8;
  if (type == "F32") return widen_numbers<float>;
  if (type == "F16") return widen_numbers<Float16>;
  if (type == "BF16") return widen_numbers<BFloat16>;
  return nullptr;
}

std::string shape_text(const TensorInfo& info) { return fmt::format("[{}]", fmt::join(info.extents, ", ")); }

// Float scales, read from the map when they are used.
class Scales {
 public:
  Scales(const std::string& where, const StoredPart& part) : bytes_(part.bytes) {
    const std::string& type = part.info->dtype_name;
    const bool is_float = type == "F32" || type == "F16" || type == "BF16";
    if (!is_float) {
      fail("{}: scale '{}' is stored as {}, but F32, F16 or BF16 is needed", where, part.name, type);
    }
    widen_ = widen_of(type);
    size_ = dtype_size(*part.info->dtype);
  }
  float operator[](int64_t at) const {
    float value;
    widen_(bytes_ + at * static_cast<int64_t>(size_), 1, &value);
    return value;
  }

 private:
  const std::byte* bytes_;
  Widen widen_ = nullptr;
  size_t size_ = 0;
};

// A scale of 0 is looked at where it is used: a row of zeros may have one.
float single_scale(const std::string& where, const StoredPart& part) {
  const float value = Scales(where, part)[0];
  if (!std::isfinite(value)) {
    fail("{}: scale '{}' is {}; the file is damaged, download it again", where, part.name, value);
  }
  return value;
}

// For a scale of 0: its numbers must be 0 too.
template <typename Number>
void require_zeros(std::span<const Number> numbers, const std::string& where, const std::string& scale, int64_t row) {
  if (std::all_of(numbers.begin(), numbers.end(), [](Number number) { return number == 0; })) return;
  fail("{}: scale '{}' is 0 for row {}, whose codes are not; the file is damaged, download it again", where, scale,
       row);
}

[[noreturn]] void refuse_scale(const std::string& where, const StoredPart& codes, const StoredPart& scale) {
  fail("{}: scale '{}' has shape {}, which does not fit the weight's {}", where, scale.name, shape_text(*scale.info),
       shape_text(*codes.info));
}

// One scale for the tensor, for each row, or for each of several parts of a row.
struct ScaleLayout {
  int64_t in_row = 0;  // 0: one for the tensor
  std::string text() const {
    return in_row == 0   ? "a scale"
           : in_row == 1 ? "a scale for each row"
                         : fmt::format("{} scales for each row", in_row);
  }
};

ScaleLayout scale_layout(const std::string& where, const StoredPart& codes, const StoredPart& scale, int64_t rows,
                         int64_t columns) {
  const std::vector<int64_t>& extents = scale.info->extents;
  const int64_t count = scale.info->shape.size();
  if (count == 1) return {0};
  const bool of_rows = !extents.empty() && extents[0] == rows;
  if (of_rows && count == rows && extents.size() <= 2) return {1};
  if (of_rows && extents.size() == 3 && extents[2] == 1 && extents[1] > 0 && columns % extents[1] == 0) {
    return {extents[1]};
  }
  refuse_scale(where, codes, scale);
}

// Codes are found again by dividing by their scale, which float32 can do between these.
constexpr float kLeastScale = 1e-34f, kLargestScale = 1e30f;

template <typename ScaleOf>
Int8Codes row_scales(const std::string& where, const std::string& name, int64_t rows, int64_t rotation,
                     const ScaleOf& scale_of) {
  Int8Codes codes{rotation, {}};
  for (int64_t row = 0; row < rows; ++row) {
    const float scale = scale_of(row);
    if (const float size = std::abs(scale); size != 0 && !(kLeastScale <= size && size <= kLargestScale))
      fail("{}: scale '{}' is {} for row {}; the file is damaged, download it again", where, name, scale, row);
    codes.scales.push_back(scale);
  }
  return codes;
}

// value = number · scale.
class LinearTensor final : public QuantisedTensor {
 public:
  LinearTensor(const std::string& where, const std::string& format, const StoredPart& codes, Widen widen,
               const std::optional<StoredPart>& scale)
      : QuantisedTensor(where, format, codes.info->shape, 1),
        codes_(codes.bytes),
        widen_(widen),
        int8_(format == "I8") {
    const int64_t count = codes.info->shape.size();
    bytes_ = count == 0 ? 1 : static_cast<int64_t>(codes.info->bytes) / count;
    if (!scale) return;
    scale_name_ = scale->name;
    layout_ = scale_layout(where, codes, *scale, rows(), columns());
    if (layout_.in_row == 0) single_ = single_scale(where, *scale);
    else scales_.emplace(where, *scale);
    add_to_format(layout_.text());
  }

  std::optional<Int8Codes> int8_codes() const override {
    if (!int8_ || layout_.in_row > 1) return {};
    return row_scales(where(), scale_name_, rows(), 0,
                      [&](int64_t row) { return scales_ ? (*scales_)[row] : single_; });
  }

 private:
  void decode(int64_t row, IndexRange columns, float* out) const override {
    widen_(codes_ + (row * this->columns() + columns.begin) * bytes_, columns.size(), out);
    if (!scales_) {
      if (single_ != 1) multiply(row, {out, static_cast<size_t>(columns.size())}, single_);
      return;
    }
    const int64_t part = this->columns() / layout_.in_row;
    for (int64_t at = columns.begin; at < columns.end;) {
      const int64_t end = std::min(columns.end, (at / part + 1) * part);
      multiply(row, {out + (at - columns.begin), static_cast<size_t>(end - at)},
               (*scales_)[row * layout_.in_row + at / part]);
      at = end;
    }
  }

  void multiply(int64_t row, std::span<float> values, float scale) const {
    if (scale == 0) require_zeros<float>(values, where(), scale_name_, row);
    for (float& value : values) value *= scale;
  }

  const std::byte* codes_;
  Widen widen_;
  bool int8_;
  int64_t bytes_ = 1;  // of a code
  std::string scale_name_;
  ScaleLayout layout_;
  float single_ = 1;
  std::optional<Scales> scales_;
};

// int8 whose rows were rotated: undone on the integers, so that only the product with the scale rounds.
class RotatedTensor final : public QuantisedTensor {
 public:
  RotatedTensor(const std::string& where, const StoredPart& codes, int64_t group, const StoredPart& scale)
      : QuantisedTensor(where, fmt::format("int8 with ConvRot of {}", group), codes.info->shape, group),
        codes_(codes.bytes),
        group_(group),
        scales_(where, scale),
        scale_name_(scale.name) {
    const bool power_of_four = group >= 4 && group <= kLargest && std::has_single_bit(static_cast<uint64_t>(group)) &&
                               std::countr_zero(static_cast<uint64_t>(group)) % 2 == 0;
    if (!power_of_four) fail("{}: its ConvRot group {} is not a power of 4 from 4 to {}", where, group, kLargest);
    if (columns() % group != 0) fail("{}: its ConvRot group {} does not divide its {} inputs", where, group, columns());
    layout_ = scale_layout(where, codes, scale, rows(), columns());
    if (layout_.in_row > 1) refuse_scale(where, codes, scale);
    if (layout_.in_row == 0) single_scale(where, scale);
    root_ = static_cast<float>(convrot_root(group));
    add_to_format(layout_.text());
  }

  std::optional<Int8Codes> int8_codes() const override {
    return row_scales(where(), scale_name_, rows(), group_,
                      [&](int64_t row) { return scales_[layout_.in_row == 0 ? 0 : row]; });
  }

 private:
  static constexpr int64_t kLargest = 65536;  // sums of int8 fit into int32

  void decode(int64_t row, IndexRange columns, float* out) const override {
    const float scale = scales_[layout_.in_row == 0 ? 0 : row];
    std::vector<int32_t> sums(static_cast<size_t>(group_));
    for (int64_t at = columns.begin; at < columns.end; at += group_) {
      const std::byte* codes = codes_ + row * this->columns() + at;
      for (int64_t i = 0; i < group_; ++i) sums[static_cast<size_t>(i)] = static_cast<int8_t>(codes[i]);
      if (scale == 0) require_zeros<int32_t>(sums, where(), scale_name_, row);
      rotate_unscaled(sums.data(), group_);
      for (const int32_t sum : sums) *out++ = static_cast<float>(sum) / root_ * scale;
    }
  }

  const std::byte* codes_;
  int64_t group_;
  Scales scales_;
  std::string scale_name_;
  ScaleLayout layout_;
  float root_ = 1;
};

// One scale, of a byte, for each run of `kRun` inputs.
class RunScales {
 public:
  RunScales(const std::string& where, const StoredPart& codes, const StoredPart& scale, int64_t rows, int64_t runs)
      : bytes_(scale.bytes), order_(rows, runs) {
    if (!std::equal(scale.info->extents.begin(), scale.info->extents.end(), order_.extents().begin(),
                    order_.extents().end())) {
      refuse_scale(where, codes, scale);
    }
  }
  std::byte operator()(int64_t row, int64_t run) const { return bytes_[order_.place(row, run)]; }

 private:
  const std::byte* bytes_;
  RunOrder order_;
};

void require_matrix(const std::string& where, const StoredPart& codes, const char* format) {
  if (codes.info->extents.size() != 2) {
    fail("{}: is {} with shape {}; only matrices can be", where, format, shape_text(*codes.info));
  }
}

void require_scale_type(const std::string& where, const StoredPart& scale, const char* type) {
  if (scale.info->dtype_name == type || scale.info->dtype_name == "U8") return;
  fail("{}: scale '{}' is stored as {}, but {} or U8 is needed", where, scale.name, scale.info->dtype_name, type);
}

class MxTensor final : public QuantisedTensor {
 public:
  MxTensor(const std::string& where, const StoredPart& codes, const StoredPart& scale)
      : QuantisedTensor(where, "mxfp8", codes.info->shape, kRun),
        codes_(codes.bytes),
        scales_(where, codes, scale, rows(), columns() / kRun) {
    require_scale_type(where, scale, "F8_E8M0");
    if (columns() % kRun != 0) fail("{}: its {} inputs are not a multiple of {}", where, columns(), kRun);
  }

 private:
  static constexpr int64_t kRun = 32;

  void decode(int64_t row, IndexRange columns, float* out) const override {
    widen_e4m3(codes_ + row * this->columns() + columns.begin, columns.size(), out);
    for (int64_t at = columns.begin; at < columns.end; at += kRun) {
      const float factor = power(scales_(row, at / kRun));
      for (int64_t i = 0; i < kRun; ++i) *out++ *= factor;
    }
  }

  // 2^(e − 127); 0 where e is 0, as the definition's own code has it. 255 is NaN.
  static float power(std::byte exponent) {
    if (exponent == std::byte{255}) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23);
  }

  const std::byte* codes_;
  RunScales scales_;
};

// The values of two 4-bit floats in a byte, the high half first.
class NvTensor final : public QuantisedTensor {
 public:
  NvTensor(const std::string& where, const StoredPart& codes, const StoredPart& scale, const StoredPart& second)
      : QuantisedTensor(where, "nvfp4", {codes.info->shape[0], 2 * codes.info->shape[1]}, kRun),
        codes_(codes.bytes),
        scales_(where, codes, scale, rows(), columns() / kRun),
        second_(single_scale(where, second)),
        second_name_(second.name) {
    require_scale_type(where, scale, "F8_E4M3");
    if (columns() % kRun != 0) fail("{}: its {} inputs are not a multiple of {}", where, columns(), kRun);
    if (second.info->shape.size() != 1) refuse_scale(where, codes, second);
  }

 private:
  static constexpr int64_t kRun = 16;

  void decode(int64_t row, IndexRange columns, float* out) const override {
    const std::byte* codes = codes_ + (row * this->columns() + columns.begin) / 2;
    if (second_ == 0) require_zero_codes(codes, columns.size() / 2, row);
    for (int64_t at = columns.begin; at < columns.end; at += kRun) {
      const std::byte stored = scales_(row, at / kRun);
      float scale;
      widen_e4m3(&stored, 1, &scale);
      scale *= second_;
      for (int64_t i = 0; i < kRun / 2; ++i, ++codes) {
        *out++ = kE2M1Values[code(codes, 0) >> 4] * scale;
        *out++ = kE2M1Values[code(codes, 0) & 15] * scale;
      }
    }
  }

  void require_zero_codes(const std::byte* codes, int64_t bytes, int64_t row) const {
    std::vector<float> values;
    for (int64_t i = 0; i < bytes; ++i)
      values.insert(values.end(), {kE2M1Values[code(codes, i) >> 4], kE2M1Values[code(codes, i) & 15]});
    require_zeros<float>(values, where(), second_name_, row);
  }

  const std::byte* codes_;
  RunScales scales_;
  float second_;
  std::string second_name_;
};

// A weight W whose layer multiplies its inputs by a scale first, W·(x ⊙ p): as the weight W·diag(p).
class FoldedTensor final : public QuantisedTensor {
 public:
  FoldedTensor(const std::string& where, std::shared_ptr<const QuantisedTensor> weight, const StoredPart& scale)
      : QuantisedTensor(where, weight->format(), weight->shape(), 1), weight_(std::move(weight)) {
    const Scales stored(where, scale);
    if (scale.info->extents != std::vector<int64_t>{columns()}) {
      fail("{}: scale '{}' of its inputs has shape {}, but [{}] is needed", where, scale.name, shape_text(*scale.info),
           columns());
    }
    for (int64_t column = 0; column < columns(); ++column) {
      scales_.push_back(stored[column]);
      if (std::isfinite(scales_.back()) && scales_.back() != 0) continue;
      fail("{}: scale '{}' is {} for input {}; the file is damaged, download it again", where, scale.name,
           scales_.back(), column);
    }
    add_to_format("a scale for each input");
  }

 private:
  void decode(int64_t row, IndexRange columns, float* out) const override {
    const int64_t begin = row * this->columns();
    weight_->read({begin + columns.begin, begin + columns.end}, out);
    for (int64_t column = columns.begin; column < columns.end; ++column) *out++ *= scales_[static_cast<size_t>(column)];
  }

  std::shared_ptr<const QuantisedTensor> weight_;
  std::vector<float> scales_;  // of the inputs
};

}  // namespace

void widen_e4m3(const std::byte* codes, int64_t count, float* out) {
  widen_codes(codes, count, out, eight_e4m3);
  constexpr uint8_t kNone = 0x7f;  // the largest magnitude is not a number
  const auto magnitude = [&](int64_t i) { return static_cast<uint8_t>(static_cast<uint8_t>(codes[i]) & kNone); };
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(i));
  if (largest != kNone) return;
  for (int64_t i = 0; i < count; ++i)
    if (magnitude(i) == kNone) out[i] = std::copysign(std::numeric_limits<float>::quiet_NaN(), out[i]);
}
void widen_e5m2(const std::byte* codes, int64_t count, float* out) { widen_codes(codes, count, out, eight_e5m2); }

bool holds_codes(const TensorInfo& info) {
  return info.dtype_name == "F8_E4M3" || info.dtype_name == "F8_E5M2" || info.dtype_name == "I8";
}

namespace {

// But for the scale of its inputs.
std::shared_ptr<const QuantisedTensor> plain_tensor(const std::string& where, const StoredPart& codes,
                                                    const ScaledLayer& layer) {
  const auto need = [&](const std::optional<StoredPart>& part, const std::string& format) -> const StoredPart& {
    if (!part) fail("{}: is {} but has no scale", where, format);
    return *part;
  };
  std::string type = codes.info->dtype_name;
  const std::string& format = layer.format;
  if ((layer.rotation_group || layer.names_group) && type != "I8") {
    fail("{}: is {} but has a ConvRot group, which only int8 has", where,
         format.empty() || format == "int8_tensorwise" ? "stored as " + type : format);
  }
  const bool mx = layer.scale && layer.scale->info->dtype_name == "F8_E8M0";
  if (format.empty() && (mx || (type == "U8" && layer.second_scale))) {
    fail(
        "{}: has the tensors of {}, but nothing says in which order, and programs differ; a file whose layers have a "
        "'comfy_quant' tensor or a line in '_quantization_metadata' is needed",
        where, mx ? "mxfp8" : "nvfp4");
  }
  if (format == "nvfp4") {
    require_matrix(where, codes, "nvfp4");
    if (type != "U8") fail("{}: is nvfp4 but stored as {}; U8 is needed", where, type);
    return std::make_shared<NvTensor>(where, codes, need(layer.scale, "nvfp4"), need(layer.second_scale, "nvfp4"));
  }
  if (layer.second_scale) {
    fail("{}: has a second scale '{}', which only nvfp4 has", where, layer.second_scale->name);
  }
  if (format == "mxfp8") {
    require_matrix(where, codes, "mxfp8");
    if (type != "F8_E4M3" && type != "U8") fail("{}: is mxfp8 but stored as {}; F8_E4M3 is needed", where, type);
    return std::make_shared<MxTensor>(where, codes, need(layer.scale, "mxfp8"));
  }
  // The stored type decides; a configuration may only say what bytes without one are.
  if (type == "U8" && format == "float8_e4m3fn") type = "F8_E4M3";
  if (type == "U8" && format == "float8_e5m2") type = "F8_E5M2";
  const bool known =
      format.empty() || format == "float8_e4m3fn" || format == "float8_e5m2" || format == "int8_tensorwise";
  const Widen widen = widen_of(type);
  if (!known || widen == nullptr) {
    fail("{}: is stored as {}, which this program cannot read; {}", where, known ? type : format, kReadableFormats);
  }
  if (type == "I8" && codes.info->shape.size() > 0) need(layer.scale, "int8");
  if (!layer.rotation_group) return std::make_shared<LinearTensor>(where, type, codes, widen, layer.scale);
  require_matrix(where, codes, "int8 with ConvRot");
  return std::make_shared<RotatedTensor>(where, codes, *layer.rotation_group, need(layer.scale, "int8"));
}

}  // namespace

std::shared_ptr<const QuantisedTensor> scaled_tensor(const std::string& file, const StoredPart& codes,
                                                     const ScaledLayer& layer) {
  const std::string where = fmt::format("{}: tensor '{}'", file, codes.name);
  auto plain = plain_tensor(where, codes, layer);
  if (!layer.input_scale) return plain;
  require_matrix(where, codes, "a weight with a scale for its inputs");
  return std::make_shared<FoldedTensor>(where, std::move(plain), *layer.input_scale);
}

}  // namespace zoetrope::io
