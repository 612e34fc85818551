#include "io/weights/random_weights.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/hash.h"

namespace zoetrope::io {
namespace {

constexpr double kNormSpread = 0.1;  // of normalisation weights about 1
constexpr double kSmall = 0.02;      // what is added

// The amplitude of a uniform distribution about 0 with this variance.
double amplitude(double variance) { return std::sqrt(3 * variance); }

Formula formula(const TensorSpec& spec) {
  using enum TensorRole;
  const Shape& shape = spec.shape;
  if (spec.role == kNorm) return {shape, 1, kNormSpread};
  if (spec.variance > 0) return {shape, 0, amplitude(spec.variance)};
  if (spec.role == kBias || spec.role == kTable) return {shape, 0, kSmall};
  // The outputs of unit inputs have unit variance.
  const auto inputs = static_cast<double>(shape.size()) / static_cast<double>(shape[0]);
  return {shape, 0, amplitude(1 / inputs)};
}

}  // namespace

std::shared_ptr<const FormulaSource> random_weights(const TensorTable& table, const std::string& component,
                                                    uint64_t seed, int threads) {
  std::map<std::string, Formula> formulas;
  for (const TensorSpec& spec : table) formulas[spec.name] = formula(spec);
  return std::make_shared<FormulaSource>("random weights of " + component, fnv1a64(component) + seed,
                                         std::move(formulas), threads);
}

}  // namespace zoetrope::io
