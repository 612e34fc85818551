// For tests: parameters by formula, as the recorded small models have them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/weights/formula_source.h"

namespace zoetrope::io {

inline constexpr int64_t kMaxElements = int64_t{1} << 48;

inline Formula read_formula(const JsonObject& entry, const std::string& label) {
  Formula formula;
  const auto extents = entry.get<std::vector<int64_t>>("shape");
  if (extents.size() > Shape::kMaxRank) {
    fail("{} has {} axes, but at most {} are supported", label, extents.size(), Shape::kMaxRank);
  }
  int64_t elements = 1;
  for (const int64_t extent : extents) {
    if (extent < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(1, extent), &elements) ||
        elements > kMaxElements) {
      fail("{} has an impossible extent {} in its shape", label, extent);
    }
    formula.shape.append(extent);
  }
  formula.offset = entry.get<double>("offset");
  formula.amplitude = entry.get<double>("amplitude");
  return formula;
}

// The file holds {"seed": s, "tensors": {name: {"shape": […], "offset": o, "amplitude": a}}}.
inline std::shared_ptr<const WeightSource> procedural_source(const std::filesystem::path& weights_json,
                                                             int threads = 1) {
  const JsonObject document = JsonObject::load(weights_json);
  const auto seed = static_cast<uint64_t>(document.get<int64_t>("seed"));
  const JsonObject tensors = document.object("tensors");
  std::map<std::string, Formula> formulas;
  for (const std::string& name : tensors.keys()) {
    formulas[name] = read_formula(tensors.object(name), fmt::format("{}: tensor '{}'", weights_json.string(), name));
  }
  return std::make_shared<FormulaSource>(weights_json.string(), seed, std::move(formulas), threads);
}

}  // namespace zoetrope::io
