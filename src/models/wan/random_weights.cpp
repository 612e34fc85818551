#include "models/wan/random_weights.h"

#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "io/hash.h"

namespace zoetrope::wan {
namespace {

constexpr double kNormSpread = 0.1;  // of normalisation weights about 1
constexpr double kBias = 0.02;

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

// The amplitude of a uniform distribution about 0 with this variance.
double amplitude(double variance) { return std::sqrt(3 * variance); }

// Heads of a UMT5 attention by the names' beginning: the table of its distances has a column each.
std::map<std::string, int64_t> heads_by_attention(const TensorList& list) {
  constexpr std::string_view kTable = "relative_attention_bias.weight";
  std::map<std::string, int64_t> heads;
  for (const TensorSpec& spec : list) {
    if (ends_with(spec.name, kTable)) heads[spec.name.substr(0, spec.name.size() - kTable.size())] = spec.shape[1];
  }
  return heads;
}

io::Formula formula(const TensorSpec& spec, const std::map<std::string, int64_t>& heads) {
  const std::string& name = spec.name;
  const Shape& shape = spec.shape;
  const bool norm = name.find("norm") != std::string::npos;
  if (ends_with(name, ".gamma") || (norm && shape.rank() == 1 && ends_with(name, ".weight"))) {
    return {shape, 1, kNormSpread};
  }
  if (ends_with(name, "scale_shift_table")) return {shape, 0, amplitude(1.0 / static_cast<double>(shape[2]))};
  if (ends_with(name, "pos_embed")) return {shape, 0, kBias};
  if (shape.rank() <= 1) return {shape, 0, kBias};
  if (name == kEmbedding || ends_with(name, "relative_attention_bias.weight")) return {shape, 0, amplitude(1)};
  // A matrix or a convolution: the outputs of unit inputs have unit variance.
  const auto fan_in = static_cast<double>(shape.size()) / static_cast<double>(shape[0]);
  double variance = 1 / fan_in;
  // UMT5 does not divide q·k by √d_kv; its q weights are trained to be that much smaller (and begin so).
  constexpr std::string_view kQuery = "q.weight";
  if (ends_with(name, kQuery)) {
    const auto found = heads.find(name.substr(0, name.size() - kQuery.size()));
    if (found != heads.end()) variance *= static_cast<double>(found->second) / static_cast<double>(shape[0]);
  }
  return {shape, 0, amplitude(variance)};
}

}  // namespace

std::shared_ptr<const io::FormulaSource> random_weights(const TensorList& list, const std::string& component,
                                                        uint64_t seed, int threads) {
  const std::map<std::string, int64_t> heads = heads_by_attention(list);
  std::map<std::string, io::Formula> formulas;
  for (const TensorSpec& spec : list) formulas[spec.name] = formula(spec, heads);
  return std::make_shared<io::FormulaSource>("random weights of " + component, io::fnv1a64(component) + seed,
                                             std::move(formulas), threads);
}

}  // namespace zoetrope::wan
