// Builds the table of a component: adds tensors below a prefix, under their names in the hub's folders and in the
// original code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/tensor_table.h"

namespace zoetrope::io {

// A component of a name, in the hub's folders and in the original code.
struct TensorName {
  TensorName(const char* both) : hub(both), original(both) {}
  TensorName(std::string both) : hub(both), original(std::move(both)) {}
  TensorName(std::string in_hub, std::string in_original) : hub(std::move(in_hub)), original(std::move(in_original)) {}
  std::string hub, original;
};

// Adds tensors below a prefix ("blocks.3.").
class TableScope {
 public:
  explicit TableScope(TensorTable& table) : table_(table), prefix_("") {}

  // A level that one of the two does not have is empty there.
  TableScope in(const TensorName& name) const {
    TableScope inner = *this;
    inner.prefix_.hub += name.hub + ".";
    if (!name.original.empty()) inner.prefix_.original += name.original + ".";
    return inner;
  }
  TableScope in(const std::string& name, size_t index) const {
    return in(TensorName(fmt::format("{}.{}", name, index)));
  }
  TableScope in_float32() const {
    TableScope inner = *this;
    inner.keep_float32_ = true;
    return inner;
  }

  // The functions below add what most tensors are; the caller may set further fields of the result.
  TensorSpec& tensor(const TensorName& name, const Shape& shape, TensorRole role) const {
    TensorSpec spec{.name = prefix_.hub + name.hub, .shape = shape, .role = role, .keep_float32 = keep_float32_};
    std::string original = prefix_.original + name.original;
    if (original != spec.name) spec.aliases[static_cast<size_t>(NamingScheme::kOriginal)] = std::move(original);
    return table_.emplace_back(std::move(spec));
  }
  TensorSpec& weight(const TensorName& name, const Shape& shape, TensorRole role) const {
    return tensor({name.hub + ".weight", name.original + ".weight"}, shape, role);
  }
  TensorSpec& matrix(const TensorName& name, int64_t out, int64_t in_features) const {
    return weight(name, {out, in_features}, TensorRole::kMatrix);
  }
  void bias(const TensorName& name, int64_t size) const {
    tensor({name.hub + ".bias", name.original + ".bias"}, {size}, TensorRole::kBias);
  }
  void linear(const TensorName& name, int64_t out, int64_t in_features) const {
    matrix(name, out, in_features);
    bias(name, out);
  }
  void convolution(const TensorName& name, const Shape& shape) const {
    weight(name, shape, TensorRole::kConvolution);
    bias(name, shape[0]);
  }
  void rms_norm(const TensorName& name, int64_t size) const { weight(name, {size}, TensorRole::kNorm); }
  void layer_norm(const TensorName& name, int64_t size) const {
    rms_norm(name, size);
    bias(name, size);
  }
  // What is added to a timestep's modulation, of about its size.
  void modulation(const TensorName& name, int64_t vectors, int64_t size) const {
    in_float32().tensor(name, {1, vectors, size}, TensorRole::kModulation).variance = 1.0 / static_cast<double>(size);
  }

 private:
  TensorTable& table_;
  TensorName prefix_;
  bool keep_float32_ = false;
};

}  // namespace zoetrope::io
