// Writes tensors in the number formats whose codes follow from the values by a definition: plain floats, fp8 and int8
// with a scale, int8 with ConvRot, mxfp8, nvfp4, and ggml's formats of 32 elements. Those whose scales are searched for
// (K-quants, IQ4) can only be read: quantised_tensor.h. docs/spec/weights.md, section 11, has the definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/index_range.h"

namespace zoetrope::io {

enum class NumberFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kFp8E4M3,
  kFp8E5M2,
  kInt8,
  kInt8Rows,
  kInt8ConvRot,
  kMxfp8,
  kNvfp4,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0
};

struct NumberFormatInfo {
  NumberFormat format;
  const char* word;        // "fp8_e4m3"
  const char* type;        // of the codes, as files spell it: "F8_E4M3"
  const char* layer;       // what a layer's configuration calls it in safetensors files: "float8_e4m3fn"; null: nothing
  int64_t unit;            // elements of a row that are encoded together; it must divide a row
  int64_t in_code;         // elements of a row in one stored code
  bool safetensors, gguf;  // which containers have it
  bool plain() const { return unit == 1 && layer == nullptr; }  // one number for each element, without scales
};
const std::vector<NumberFormatInfo>& number_formats();
const NumberFormatInfo& info_of(NumberFormat format);
const NumberFormatInfo* find_number_format(std::string_view word);  // null for any other word

// For one tensor. observe(), encode() and decode() may be called by several threads for parts of their own.
class TensorEncoder {
 public:
  // A multiple of what any format encodes together: ranges begin and end at multiples of it, or at the tensor's end.
  static constexpr int64_t kTogether = 256;

  TensorEncoder() = default;
  TensorEncoder(const TensorEncoder&) = delete;
  TensorEncoder& operator=(const TensorEncoder&) = delete;
  virtual ~TensorEncoder() = default;

  // Whether observe() must be called before encode(), with all elements, in as many calls as wanted.
  virtual bool observes() const { return false; }
  virtual void observe(IndexRange, const float*) {}

  virtual size_t bytes(int64_t elements) const = 0;  // of codes
  // What a layer's configuration says in addition to its format, as members of JSON; empty: nothing.
  virtual std::string layer_members() const { return {}; }
  // Elements `range` of the tensor in row-major order. `values` are finite; those that the format cannot
  // hold have codes that decode() turns into infinity or NaN.
  virtual void encode(IndexRange range, const float* values, std::byte* codes) = 0;
  // The values of what encode() made, with the bits that a reader of the file gets.
  virtual void decode(IndexRange range, const std::byte* codes, float* values) const = 0;

  // The tensors of scales, after everything was encoded; none for formats without any.
  struct Scales {
    const char* suffix;  // behind the layer's name: "weight_scale"
    const char* type;    // "F32", "F8_E4M3", "U8"
    Shape shape;
    std::vector<std::byte> bytes;
  };
  virtual std::vector<Scales> scales() const { return {}; }
};

// `shape`: [rows, columns] for formats with a unit or a scale.
std::unique_ptr<TensorEncoder> tensor_encoder(NumberFormat format, const Shape& shape);

}  // namespace zoetrope::io
