#include "io/weights/tensor_encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "io/weights/block_encoders.h"
#include "io/weights/block_formats.h"
#include "io/weights/scaled_tensor.h"
#include "tensor/convrot.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

constexpr int64_t kSmallBlock = 32, kNvRun = 16, kLeastConvRot = 4, kLargestConvRot = TensorEncoder::kTogether;
constexpr float kLargestE4M3 = 448, kLargestE5M2 = 57344, kLargestE2M1 = 6, kLargestInt8 = 127,
                kLeastInt8Scale = 1e-30f;
constexpr size_t kFloat = sizeof(float);
constexpr const char* kScale = "weight_scale";

float largest_of(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

template <typename T>
class PlainEncoder final : public TensorEncoder {
 public:
  size_t bytes(int64_t elements) const override { return static_cast<size_t>(elements) * sizeof(T); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    for (int64_t i = 0; i < range.size(); ++i) {
      const T value = from_float<T>(values[i]);
      std::memcpy(codes + bytes(i), &value, sizeof value);
    }
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    for (int64_t i = 0; i < range.size(); ++i) {
      T value;
      std::memcpy(&value, codes + bytes(i), sizeof value);
      values[i] = to_float(value);
    }
  }
};

class BlockTensorEncoder final : public TensorEncoder {
 public:
  explicit BlockTensorEncoder(const char* type)
      : format_(*find_block_format(type)), encode_(find_block_encoder(type)) {}
  size_t bytes(int64_t elements) const override {
    return static_cast<size_t>(elements) / format_.elements * format_.bytes;
  }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    for (int64_t i = 0; i < range.size(); i += kSmallBlock) encode_(values + i, codes + bytes(i));
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    format_.decode(codes, range.size() / kSmallBlock, values);
  }

 private:
  const BlockFormat& format_;
  BlockEncoder encode_;
};

// 2^exponent, of a normal float32; 0 for −127.
constexpr float power(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

// The nearest small float, ties to even. A magnitude of 2^(1 − bias) and more has its bits rounded at the last one
// that is kept; below it codes count steps of one size.
template <int kMantissa, int kBias>
std::byte small_float(float value) {
  constexpr int kShift = 23 - kMantissa;
  constexpr float kLeastNormal = power(1 - kBias), kStepsInOne = power(kBias - 1 + kMantissa);
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  uint32_t code;
  if (std::abs(value) < kLeastNormal) {
    code = static_cast<uint32_t>(std::nearbyint(std::abs(value) * kStepsInOne));
  } else {
    const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1);
    code = (rounded >> kShift) - (uint32_t{127 - kBias} << kMantissa);
  }
  return static_cast<std::byte>(code | (bits >> 31 << 7));
}

std::byte e4m3(float value) { return small_float<3, 7>(std::clamp(value, -kLargestE4M3, kLargestE4M3)); }
std::byte e5m2(float value) { return small_float<2, 15>(std::clamp(value, -kLargestE5M2, kLargestE5M2)); }
// In the low half of the byte.
std::byte e2m1(float value) {
  const std::byte code = small_float<1, 1>(std::clamp(value, -kLargestE2M1, kLargestE2M1));
  return (code & std::byte{7}) | (code & std::byte{0x80}) >> 4;
}
std::byte int8(float value) {
  return static_cast<std::byte>(static_cast<int>(std::clamp(std::nearbyint(value), -kLargestInt8, kLargestInt8)));
}

void widen_int8(const std::byte* codes, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
}

TensorEncoder::Scales float_scales(const char* suffix, const Shape& shape, const float* values) {
  TensorEncoder::Scales scales{suffix, "F32", shape,
                               std::vector<std::byte>(static_cast<size_t>(shape.size()) * kFloat)};
  std::memcpy(scales.bytes.data(), values, scales.bytes.size());
  return scales;
}

// One scale for the tensor, by which its largest magnitude becomes the largest code.
class ScaledEncoder final : public TensorEncoder {
 public:
  ScaledEncoder(std::byte (*code)(float), void (*widen)(const std::byte*, int64_t, float*), float largest_code,
                float least_scale)
      : code_(code), widen_(widen), largest_code_(largest_code), least_scale_(least_scale) {}
  bool observes() const override { return true; }
  void observe(IndexRange range, const float* values) override {
    const float largest = largest_of(values, range.size());
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, largest);
    scale_ = std::max(largest_ / largest_code_, least_scale_);
    if (scale_ == 0) scale_ = 1;
  }
  size_t bytes(int64_t elements) const override { return static_cast<size_t>(elements); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    for (int64_t i = 0; i < range.size(); ++i) codes[i] = code_(values[i] / scale_);
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    widen_(codes, range.size(), values);
    for (int64_t i = 0; i < range.size(); ++i) values[i] *= scale_;
  }
  std::vector<Scales> scales() const override { return {float_scales(kScale, {}, &scale_)}; }

 private:
  std::byte (*code_)(float);
  void (*widen_)(const std::byte*, int64_t, float*);
  float largest_code_, least_scale_;
  std::mutex mutex_;  // of what observe() changes
  float largest_ = 0, scale_ = 1;
};

// int8 with a scale for each row.
class RowEncoder final : public TensorEncoder {
 public:
  explicit RowEncoder(const Shape& shape)
      : columns_(shape[1]), scales_(static_cast<size_t>(shape[0]), kLeastInt8Scale) {}
  bool observes() const override { return true; }
  void observe(IndexRange range, const float* values) override {
    each_row(range, [&](size_t row, IndexRange part) {
      const float scale = largest_of(values + part.begin, part.size()) / kLargestInt8;
      const std::lock_guard lock(mutex_);  // a row may be in two parts
      scales_[row] = std::max(scales_[row], scale);
    });
  }
  size_t bytes(int64_t elements) const override { return static_cast<size_t>(elements); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    each_row(range, [&](size_t row, IndexRange part) {
      for (int64_t i = part.begin; i < part.end; ++i) codes[i] = int8(values[i] / scales_[row]);
    });
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    widen_int8(codes, range.size(), values);
    each_row(range, [&](size_t row, IndexRange part) {
      for (int64_t i = part.begin; i < part.end; ++i) values[i] *= scales_[row];
    });
  }
  std::vector<Scales> scales() const override {
    return {float_scales(kScale, {std::ssize(scales_), 1}, scales_.data())};
  }

  float scale(int64_t element) const { return scales_[static_cast<size_t>(element / columns_)]; }

 private:
  // body(row, its elements counted from range.begin)
  template <typename Body>
  void each_row(IndexRange range, const Body& body) const {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t row = at / columns_, end = std::min(range.end, (row + 1) * columns_);
      body(static_cast<size_t>(row), IndexRange{at - range.begin, end - range.begin});
      at = end;
    }
  }
  int64_t columns_;
  std::mutex mutex_;  // of scales_ in observe()
  std::vector<float> scales_;
};

// int8 of rows that are rotated in groups, so that a large value is spread over its group.
class ConvRotEncoder final : public TensorEncoder {
 public:
  explicit ConvRotEncoder(const Shape& shape) : group_(group_of(shape[1])), rows_(shape) {}
  std::string layer_members() const override {
    return fmt::format(R"("convrot": true, "convrot_groupsize": {})", group_);
  }
  bool observes() const override { return true; }
  void observe(IndexRange range, const float* values) override { rows_.observe(range, rotated(range, values).data()); }
  size_t bytes(int64_t elements) const override { return rows_.bytes(elements); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    rows_.encode(range, rotated(range, values).data(), codes);
  }
  // The codes are rotated back, exactly; then come the root and the scale.
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    std::vector<int32_t> sums(static_cast<size_t>(group_));
    const auto root = static_cast<float>(convrot_root(group_));
    for (int64_t at = 0; at < range.size(); at += group_) {
      for (int64_t i = 0; i < group_; ++i) sums[static_cast<size_t>(i)] = static_cast<int8_t>(codes[at + i]);
      rotate_unscaled(sums.data(), group_);
      for (int64_t i = 0; i < group_; ++i) {
        values[at + i] = static_cast<float>(sums[static_cast<size_t>(i)]) / root * rows_.scale(range.begin + at);
      }
    }
  }
  std::vector<Scales> scales() const override { return rows_.scales(); }

 private:
  // The largest that divides a row, up to that of the format's own program.
  static int64_t group_of(int64_t columns) {
    int64_t group = kLargestConvRot;
    while (columns % group != 0) group /= 4;
    return group;
  }
  std::vector<float> rotated(IndexRange range, const float* values) const {
    ZT_CHECK(range.begin % group_ == 0 && range.size() % group_ == 0, "{} to {} of groups of {}", range.begin,
             range.end, group_);
    std::vector<float> out(static_cast<size_t>(range.size()));
    std::vector<double> group(static_cast<size_t>(group_));
    const auto root = static_cast<double>(convrot_root(group_));
    for (int64_t at = 0; at < range.size(); at += group_) {
      std::copy_n(values + at, group_, group.begin());
      rotate_unscaled(group.data(), group_);
      std::transform(group.begin(), group.end(), out.begin() + at,
                     [&](double x) { return static_cast<float>(x / root); });
    }
    return out;
  }

  int64_t group_;
  RowEncoder rows_;  // of what is rotated
};

// A power of two for each run of 32 inputs, the least with which no value is above the largest code.
class MxEncoder final : public TensorEncoder {
 public:
  explicit MxEncoder(const Shape& shape)
      : runs_(shape[1] / kSmallBlock), order_(shape[0], runs_), scales_(static_cast<size_t>(order_.size())) {}
  size_t bytes(int64_t elements) const override { return static_cast<size_t>(elements); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    for (int64_t i = 0; i < range.size(); i += kSmallBlock) {
      const int exponent = exponent_of(values + i);
      scale(range.begin + i) = static_cast<std::byte>(exponent);
      const float factor = power(exponent - kBias);
      for (int64_t k = i; k < i + kSmallBlock; ++k) codes[k] = exponent == 0 ? std::byte{0} : e4m3(values[k] / factor);
    }
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    widen_e4m3(codes, range.size(), values);
    for (int64_t i = 0; i < range.size(); i += kSmallBlock) {
      const float factor = power(static_cast<int>(scales_[place(range.begin + i)]) - kBias);
      for (int64_t k = i; k < i + kSmallBlock; ++k) values[k] *= factor;
    }
  }
  std::vector<Scales> scales() const override {
    return {{kScale, "U8", {order_.extents()[0], order_.extents()[1]}, scales_}};
  }

 private:
  static constexpr int kBias = 127;

  // 0 for zeros; at least 1 otherwise, since 0 stands for a factor of zero.
  static int exponent_of(const float* values) {
    const float largest = largest_of(values, kSmallBlock);
    if (largest == 0) return 0;
    int exponent = 0;
    const float fraction = std::frexp(largest / kLargestE4M3, &exponent);  // from 0.5 to 1, or 0
    return std::max(1, exponent + kBias - (fraction == 0.5f ? 1 : 0));
  }

  size_t place(int64_t element) const {
    const int64_t run = element / kSmallBlock;
    return static_cast<size_t>(order_.place(run / runs_, run % runs_));
  }
  std::byte& scale(int64_t element) { return scales_[place(element)]; }

  int64_t runs_;
  RunOrder order_;
  std::vector<std::byte> scales_;
};

// Floats of 4 bits with an e4m3 scale for each run of 16 inputs, and a scale of these scales for the tensor.
class NvEncoder final : public TensorEncoder {
 public:
  explicit NvEncoder(const Shape& shape)
      : runs_(shape[1] / kNvRun), order_(shape[0], runs_), scales_(static_cast<size_t>(order_.size())) {}
  bool observes() const override { return true; }
  void observe(IndexRange range, const float* values) override {
    const float largest = largest_of(values, range.size());
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, largest);
    second_ = largest_ / (kLargestE4M3 * kLargestE2M1);
    if (second_ == 0) second_ = 1;
  }
  size_t bytes(int64_t elements) const override { return static_cast<size_t>(elements / 2); }
  void encode(IndexRange range, const float* values, std::byte* codes) override {
    for (int64_t i = 0; i < range.size(); i += kNvRun) {
      const std::byte stored = e4m3(largest_of(values + i, kNvRun) / kLargestE2M1 / second_);
      scales_[place(range.begin + i)] = stored;
      const float scale = factor(stored);
      const auto code = [&](int64_t k) { return scale == 0 ? std::byte{0} : e2m1(values[k] / scale); };
      for (int64_t k = i; k < i + kNvRun; k += 2) *codes++ = code(k) << 4 | code(k + 1);
    }
  }
  void decode(IndexRange range, const std::byte* codes, float* values) const override {
    for (int64_t i = 0; i < range.size(); i += kNvRun) {
      const float scale = factor(scales_[place(range.begin + i)]);
      for (int64_t k = i; k < i + kNvRun; k += 2, ++codes) {
        const auto both = std::to_integer<size_t>(*codes);
        values[k] = kE2M1Values[both >> 4] * scale;
        values[k + 1] = kE2M1Values[both & 15] * scale;
      }
    }
  }
  std::vector<Scales> scales() const override {
    return {{kScale, "F8_E4M3", {order_.extents()[0], order_.extents()[1]}, scales_},
            float_scales("weight_scale_2", {}, &second_)};
  }

 private:
  float factor(std::byte stored) const {
    float scale;
    widen_e4m3(&stored, 1, &scale);
    return scale * second_;
  }
  size_t place(int64_t element) const {
    const int64_t run = element / kNvRun;
    return static_cast<size_t>(order_.place(run / runs_, run % runs_));
  }

  int64_t runs_;
  RunOrder order_;
  std::vector<std::byte> scales_;
  std::mutex mutex_;  // of what observe() changes
  float largest_ = 0, second_ = 1;
};

}  // namespace

const std::vector<NumberFormatInfo>& number_formats() {
  using enum NumberFormat;
  static const std::vector<NumberFormatInfo> formats = {
      {kF32, "f32", "F32", nullptr, 1, 1, true, true},
      {kF16, "f16", "F16", nullptr, 1, 1, true, true},
      {kBF16, "bf16", "BF16", nullptr, 1, 1, true, true},
      {kFp8E4M3, "fp8_e4m3", "F8_E4M3", "float8_e4m3fn", 1, 1, true, false},
      {kFp8E5M2, "fp8_e5m2", "F8_E5M2", "float8_e5m2", 1, 1, true, false},
      {kInt8, "int8", "I8", "int8_tensorwise", 1, 1, true, false},
      {kInt8Rows, "int8_rows", "I8", "int8_tensorwise", 1, 1, true, false},
      {kInt8ConvRot, "int8_convrot", "I8", "int8_tensorwise", kLeastConvRot, 1, true, false},
      {kMxfp8, "mxfp8", "F8_E4M3", "mxfp8", kSmallBlock, 1, true, false},
      {kNvfp4, "nvfp4", "U8", "nvfp4", kNvRun, 2, true, false},
      {kQ8_0, "q8_0", "Q8_0", nullptr, kSmallBlock, 1, false, true},
      {kQ5_1, "q5_1", "Q5_1", nullptr, kSmallBlock, 1, false, true},
      {kQ5_0, "q5_0", "Q5_0", nullptr, kSmallBlock, 1, false, true},
      {kQ4_1, "q4_1", "Q4_1", nullptr, kSmallBlock, 1, false, true},
      {kQ4_0, "q4_0", "Q4_0", nullptr, kSmallBlock, 1, false, true},
  };
  return formats;
}

const NumberFormatInfo& info_of(NumberFormat format) {
  const auto& formats = number_formats();
  return *std::find_if(formats.begin(), formats.end(), [&](const auto& info) { return info.format == format; });
}

const NumberFormatInfo* find_number_format(std::string_view word) {
  for (const NumberFormatInfo& info : number_formats())
    if (word == info.word) return &info;
  return nullptr;
}

std::unique_ptr<TensorEncoder> tensor_encoder(NumberFormat format, const Shape& shape) {
  const NumberFormatInfo& info = info_of(format);
  ZT_CHECK(info.plain() || (shape.rank() == 2 && shape[1] % info.unit == 0), "{} {}", info.word, shape.to_string());
  switch (format) {
    case NumberFormat::kF32:
      return std::make_unique<PlainEncoder<float>>();
    case NumberFormat::kF16:
      return std::make_unique<PlainEncoder<Float16>>();
    case NumberFormat::kBF16:
      return std::make_unique<PlainEncoder<BFloat16>>();
    case NumberFormat::kFp8E4M3:
      return std::make_unique<ScaledEncoder>(e4m3, widen_e4m3, kLargestE4M3, 0.0f);
    case NumberFormat::kFp8E5M2:
      return std::make_unique<ScaledEncoder>(e5m2, widen_e5m2, kLargestE5M2, 0.0f);
    case NumberFormat::kInt8:
      return std::make_unique<ScaledEncoder>(int8, widen_int8, kLargestInt8, kLeastInt8Scale);
    case NumberFormat::kInt8Rows:
      return std::make_unique<RowEncoder>(shape);
    case NumberFormat::kInt8ConvRot:
      return std::make_unique<ConvRotEncoder>(shape);
    case NumberFormat::kMxfp8:
      return std::make_unique<MxEncoder>(shape);
    case NumberFormat::kNvfp4:
      return std::make_unique<NvEncoder>(shape);
    default:
      return std::make_unique<BlockTensorEncoder>(info.type);
  }
}

}  // namespace zoetrope::io
