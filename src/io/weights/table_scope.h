// Builds the table of a component: adds tensors below a prefix, under their names in the hub's folders and elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/weights/tensor_table.h"

namespace zoetrope::io {

// A component of a name, in the hub's folders and by the other schemes.
struct TensorName {
  TensorName(const char* everywhere) : TensorName(std::string(everywhere)) {}
  TensorName(const std::string& everywhere) : TensorName(everywhere, everywhere) {}
  TensorName(const std::string& in_hub, const std::string& elsewhere) : TensorName(in_hub, elsewhere, elsewhere) {}
  TensorName(std::string in_hub, std::string in_original, std::string in_other)
      : hub(std::move(in_hub)), original(std::move(in_original)), other(std::move(in_other)) {}
  TensorName with(const std::string& ending) const { return {hub + ending, original + ending, other + ending}; }
  std::string hub, original, other;
};

// Adds tensors below a prefix ("blocks.3.").
class TableScope {
 public:
  explicit TableScope(TensorTable& table) : table_(table), prefix_("") {}

  // A level that a scheme does not have is empty there.
  TableScope in(const TensorName& name) const {
    TableScope inner = *this;
    const auto add = [](std::string& prefix, const std::string& level) {
      if (!level.empty()) prefix += level + ".";
    };
    add(inner.prefix_.hub, name.hub);
    add(inner.prefix_.original, name.original);
    add(inner.prefix_.other, name.other);
    return inner;
  }
  TableScope in(const TensorName& name, size_t index) const { return in(name.with(fmt::format(".{}", index))); }
  TableScope in_float32() const {
    TableScope inner = *this;
    inner.keep_float32_ = true;
    return inner;
  }

  // Matrices below may be multiplied in int8.
  TableScope in_int8(bool int8) const {
    TableScope inner = *this;
    inner.int8_ = int8;
    return inner;
  }

  // The functions below add what most tensors are; the caller may set further fields of the result.
  TensorSpec& tensor(const TensorName& name, const Shape& shape, TensorRole role) const {
    TensorSpec spec{.name = prefix_.hub + name.hub, .shape = shape, .role = role, .keep_float32 = keep_float32_};
    spec.int8 = int8_ && role == TensorRole::kMatrix;
    const auto set = [&](NamingScheme scheme, std::string alias) {
      if (alias != spec.name) spec.alias(scheme).name = std::move(alias);
    };
    set(NamingScheme::kOriginal, prefix_.original + name.original);
    set(NamingScheme::kOther, prefix_.other + name.other);
    return table_.emplace_back(std::move(spec));
  }
  TensorSpec& weight(const TensorName& name, const Shape& shape, TensorRole role) const {
    return tensor(name.with(".weight"), shape, role);
  }
  TensorSpec& matrix(const TensorName& name, int64_t out, int64_t in_features) const {
    return weight(name, {out, in_features}, TensorRole::kMatrix);
  }
  TensorSpec& bias(const TensorName& name, int64_t size) const {
    return tensor(name.with(".bias"), {size}, TensorRole::kBias);
  }
  void linear(const TensorName& name, int64_t out, int64_t in_features) const {
    matrix(name, out, in_features);
    bias(name, out);
  }
  // Ranks that share the layer divide its outputs, or its inputs; then each has a part of every output's sum.
  void linear_by_outputs(const TensorName& name, int64_t out, int64_t in_features, int64_t unit) const {
    matrix(name, out, in_features).shard_axis = ShardAxis{0, unit};
    bias(name, out).shard_axis = ShardAxis{0, unit};
  }
  void linear_by_inputs(const TensorName& name, int64_t out, int64_t in_features, int64_t unit) const {
    matrix(name, out, in_features).shard_axis = ShardAxis{1, unit};
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
  bool keep_float32_ = false, int8_ = false;
};

}  // namespace zoetrope::io
