// A look inside a model while it runs: called with the name of an intermediate value and the value itself, which is
// valid during the call only. An empty probe costs one test per value. For tests and dumps, not for computing.
#pragma once

#include <functional>
#include <string_view>

#include "zoetrope/tensor.h"

namespace zoetrope {

using Probe = std::function<void(std::string_view name, const TensorView& value)>;

inline void observe(const Probe& probe, std::string_view name, const TensorView& value) {
  if (probe) probe(name, value);
}

}  // namespace zoetrope
