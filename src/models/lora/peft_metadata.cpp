#include "models/lora/peft_metadata.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/json.h"

namespace zoetrope::lora {
namespace {

constexpr char kKey[] = "lora_adapter_metadata";
constexpr char kComponent[] = "transformer.";
constexpr size_t kLongestPattern = 256;  // std::regex goes as deep as an expression is long

bool fits(const std::string& expression, const std::string& module, const std::string& label) {
  // Most are plain ends of names; a dot matches any character, so dots need no care.
  if (module == expression || module.ends_with("." + expression)) return true;
  if (expression.find_first_of("*+?[](){}|^$\\") == std::string::npos) return false;
  if (expression.size() > kLongestPattern) fail("{}: '{}' is not a name of a module", label, expression);
  try {
    return std::regex_match(module, std::regex("(.*\\.)?(" + expression + ")"));
  } catch (const std::regex_error&) {
    fail("{}: '{}' is not a regular expression", label, expression);
  }
}

}  // namespace

PeftMetadata::PeftMetadata(const std::map<std::string, std::string>& metadata, const std::string& where)
    : where_(fmt::format("{}: metadata '{}'", where, kKey)) {
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return;
  const auto document = JsonObject::parse(found->second, where_);
  const auto number = [&](const char* name) -> std::optional<double> {
    if (!document.has(std::string(kComponent) + name)) return std::nullopt;
    return document.get_between<double>(std::string(kComponent) + name, 1e-6, 1e6);
  };
  rank_ = number("r");
  alpha_ = number("lora_alpha");
  root_ = document.get<bool>(std::string(kComponent) + "use_rslora", false);
  // Parsed once more for the order of the keys, which the checked document does not keep.
  const auto ordered = nlohmann::ordered_json::parse(found->second);
  const auto patterns = [&](const char* name, Pattern& pattern) {
    const std::string key = std::string(kComponent) + name;
    if (!document.has(key)) return;
    const JsonObject checked = document.object(key);
    for (const auto& item : ordered.at(key).items()) {
      pattern.emplace_back(item.key(), checked.get_between<double>(item.key(), 1e-6, 1e6));
    }
  };
  patterns("rank_pattern", ranks_);
  patterns("alpha_pattern", alphas_);
}

std::optional<double> PeftMetadata::match(const Pattern& pattern, const char* key, const std::string& module) const {
  for (const auto& [expression, value] : pattern) {
    if (fits(expression, module, where_ + ": " + key)) return value;
  }
  return std::nullopt;
}

double PeftMetadata::scale(const std::string& module, int64_t rank) const {
  const auto r = static_cast<double>(rank);
  std::optional<double> said = match(ranks_, "rank_pattern", module);
  if (!said) said = rank_;
  if (said && *said != r) {
    fail("{}: says rank {} of '{}', whose tensors have rank {}; the file is not whole", where_, *said, module, rank);
  }
  std::optional<double> alpha = match(alphas_, "alpha_pattern", module);
  if (!alpha) alpha = alpha_;
  return alpha.value_or(r) / (root_ ? std::sqrt(r) : r);
}

}  // namespace zoetrope::lora
