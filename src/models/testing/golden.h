// Recorded reference cases for the tests of this folder: inputs, intermediate values and how far they may be missed.
// For tests only. Layout and meaning: tests/golden/README.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "base/json.h"
#include "base/project_folders.h"
#include "io/weights/tensor_file.h"
#include "tensor/half.h"

namespace zoetrope::golden {

inline double element(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return static_cast<double>(tensor.data<float>()[i]);
    case DType::kBF16:
      return static_cast<double>(to_float(tensor.data<BFloat16>()[i]));
    case DType::kF64:
      return tensor.data<double>()[i];
    case DType::kI64:
      return static_cast<double>(tensor.data<int64_t>()[i]);
    default:
      fail("no test reads {}", dtype_name(tensor.dtype()));
  }
}

struct Difference {
  double max_abs = 0;
  double rel_l2 = 0;
};

// Both contiguous and of equal size.
inline Difference difference(const TensorView& value, const TensorView& reference) {
  ZT_CHECK(value.size() == reference.size() && value.contiguous() && reference.contiguous(), "{} against {}",
           value.shape().to_string(), reference.shape().to_string());
  Difference result;
  double squares = 0, norm = 0;
  for (int64_t i = 0; i < value.size(); ++i) {
    const double expected = element(reference, i), error = element(value, i) - expected;
    result.max_abs = std::isnan(error) ? error : std::max(result.max_abs, std::abs(error));
    squares += error * error;
    norm += expected * expected;
  }
  result.rel_l2 = std::sqrt(squares / norm);
  return result;
}

inline Tensor clone(const TensorView& view) {
  Tensor copy = Tensor::uninitialized(view.dtype(), view.shape());
  ZT_CHECK(view.contiguous());
  std::copy_n(view.data<std::byte>(), view.bytes(), copy.data<std::byte>());
  return copy;
}

// Both contiguous, one behind the other: [size of both].
inline Tensor joined(const TensorView& a, const TensorView& b) {
  Tensor both = Tensor::uninitialized(a.dtype(), {a.size() + b.size()});
  std::copy_n(a.data<std::byte>(), a.bytes(), both.data<std::byte>());
  std::copy_n(b.data<std::byte>(), b.bytes(), both.data<std::byte>() + a.bytes());
  return both;
}

// Recorded timesteps, [B] of samples or [B, N] of tokens, as few values and who has which.
struct RecordedTimesteps {
  std::vector<float> values;
  std::vector<int32_t> index;

  explicit RecordedTimesteps(const TensorView& recorded) {
    for (int64_t i = 0; i < recorded.size(); ++i) {
      const auto value = static_cast<float>(element(recorded, i));
      const auto found = std::find(values.begin(), values.end(), value);
      index.push_back(static_cast<int32_t>(found - values.begin()));
      if (found == values.end()) values.push_back(value);
    }
  }
  // What a model shows once for each value, [V, width], as a recording has it: a row for every index.
  Tensor rows(const TensorView& by_value) const {
    const auto bytes = static_cast<int64_t>(by_value.bytes()) / by_value.extent(0);
    Tensor all = Tensor::uninitialized(by_value.dtype(),
                                       {static_cast<int64_t>(index.size()), by_value.size() / by_value.extent(0)});
    for (size_t i = 0; i < index.size(); ++i)
      std::copy_n(by_value.data<std::byte>() + index[i] * bytes, bytes,
                  all.data<std::byte>() + static_cast<int64_t>(i) * bytes);
    return all;
  }
};

class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name, const std::string& file = "tensors.safetensors")
      : root_(kGoldenFolder),
        description_(JsonObject::load(root_ / name / "case.json").raw()),
        tensors_(io::TensorFile::open(root_ / name / file)) {}

  const std::filesystem::path& root() const { return root_; }
  const nlohmann::json& description() const { return description_; }
  bool has(const std::string& name) const { return tensors_->contains(name); }
  TensorView tensor(const std::string& name) const { return tensors_->tensor(name); }
  // What follows `prefix` in the recorded names that begin with it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const auto& [name, info] : tensors_->tensors()) {
      if (name.rfind(prefix, 0) == 0) found.push_back(name.substr(prefix.size()));
    }
    return found;
  }

  // The recorded error of `name` in a comparison ("f32_vs_f64", "bf16_vs_f32"); where it has none of its own, the
  // largest of the case.
  Difference noise(const std::string& comparison, const std::string& name) const {
    Difference largest;
    for (const auto& [key, entry] : description_.at("noise").items()) {
      if (key.rfind(comparison + ".", 0) != 0) continue;
      const Difference recorded{entry.at("max_abs").get<double>(), entry.at("rel_l2").get<double>()};
      if (key == comparison + "." + name) return recorded;
      largest = {std::max(largest.max_abs, recorded.max_abs), std::max(largest.rel_l2, recorded.rel_l2)};
    }
    return largest;
  }

 private:
  std::filesystem::path root_;
  nlohmann::json description_;
  std::shared_ptr<const io::TensorFile> tensors_;
};

}  // namespace zoetrope::golden
