// Tensors that are stored as codes and scales, not as numbers of a DType: the blocks of GGUF files, and fp8, int8,
// mxfp8 and nvfp4 of safetensors files, whose scales are tensors of their own. docs/spec/weights.md, sections 4.2
// to 5.2, defines their values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "io/weights/checkpoint.h"
#include "io/weights/int8_codes.h"

namespace zoetrope::io {

// Reads from the map, so it holds no values. Valid as long as the checkpoint; may be used from any thread.
class QuantisedTensor {
 public:
  virtual ~QuantisedTensor() = default;
  const std::string& format() const { return format_; }  // "Q4_K", "F8_E4M3 with a scale for each row"
  const Shape& shape() const { return shape_; }          // of the values

  virtual std::optional<Int8Codes> int8_codes() const { return {}; }  // nothing: it is stored otherwise
  // Elements `range` in row-major order as float32, with the bits of the format's definition. Throws Error for a value
  // that is NaN or infinite.
  void read(IndexRange range, float* out) const;

 protected:
  // `where`: "FILE: tensor 'NAME'". `unit`: consecutive elements of a row that are decoded together; it divides a row.
  // `rows`: 0 for the first extent, or one of a tensor with a single axis.
  QuantisedTensor(std::string where, std::string format, const Shape& shape, int64_t unit, int64_t rows = 0);
  void add_to_format(const std::string& text) { format_ += " with " + text; }
  const std::string& where() const { return where_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }  // elements of a row

 private:
  // Elements `columns` of a row, whole units.
  virtual void decode(int64_t row, IndexRange columns, float* out) const = 0;

  void require_finite(std::span<const float> values) const;

  std::string where_, format_;
  Shape shape_;
  int64_t rows_, columns_, unit_;
};

struct QuantisedTensors {
  std::map<std::string, std::shared_ptr<const QuantisedTensor>> tensors;
  std::set<std::string> helpers;  // scales and descriptions, which are no weights
};

// All of a checkpoint. Throws Error for formats that cannot be read, and for codes and scales that do not fit or belong
// to nothing.
QuantisedTensors quantised_tensors(const Checkpoint& checkpoint);

}  // namespace zoetrope::io
