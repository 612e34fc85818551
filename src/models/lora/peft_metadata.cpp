#include "models/lora/peft_metadata.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/words.h"

namespace zoetrope::lora {
namespace {

constexpr char kKey[] = "lora_adapter_metadata";
constexpr char kConfigFile[] = "adapter_config.json";
constexpr char kComponent[] = "transformer.";
// How training began. With these PEFT takes the first product out of the model's weights, also when it loads the file.
constexpr char kStart[] = "init_lora_weights";
constexpr const char* kStartsThatChangeTheModel[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
// Longer ones are no names of modules.
constexpr size_t kLongestPattern = 256;
// The standard's own matching takes hours for (.*)*x, and files come from strangers. This takes a time that is a
// product of the lengths, if there are no counts and no groups of a special meaning.
constexpr auto kLinear = std::regex::ECMAScript | std::regex_constants::__polynomial;

bool fits(const std::string& expression, const std::string& module, const std::string& label) {
  // Most are plain ends of names; a dot matches any character, so dots need no care.
  if (module == expression || module.ends_with("." + expression)) return true;
  if (expression.find_first_of("*+?[](){}|^$\\") == std::string::npos) return false;
  if (expression.size() > kLongestPattern) fail("{}: '{}' is not a name of a module", label, expression);
  if (expression.find('{') != std::string::npos || expression.find("(?") != std::string::npos)
    fail("{}: '{}' has a count {{n}} or a group (?…), which are not read; write a pattern without them", label,
         expression);
  try {
    return std::regex_match(module, std::regex("(.*\\.)?(" + expression + ")", kLinear));
  } catch (const std::regex_error&) {
    fail("{}: '{}' is not a regular expression", label, expression);
  }
}

}  // namespace

PeftMetadata::PeftMetadata(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata)
    : where_(fmt::format("{}: metadata '{}'", file.string(), kKey)) {
  const auto found = metadata.find(kKey);
  if (found != metadata.end()) {
    read(found->second);
    return;
  }
  const std::filesystem::path config = file.parent_path() / kConfigFile;
  if (file.filename() != kFileOfPeft || !is_there(config)) return;
  config_file_ = config;
  where_ = config.string();
  read(read_file(config));
}

void PeftMetadata::read(const std::string& text) {
  const auto document = JsonObject::parse(text, where_);
  const std::vector<std::string> keys = document.keys();
  const auto find = [&](const auto& of) { return std::find_if(keys.begin(), keys.end(), of); };
  const bool named = find([](const std::string& key) { return key.starts_with(kComponent); }) != keys.end();
  const std::string prefix = named ? kComponent : "";
  const auto number = [&](const char* name) -> std::optional<double> {
    if (!document.has(prefix + name)) return std::nullopt;
    return document.get_between<double>(prefix + name, 1e-6, 1e6);
  };
  rank_ = number("r");
  alpha_ = number("lora_alpha");
  if (!alpha_) alpha_ = number("alpha");  // of LoHa and LoKr
  root_ = document.get<bool>(prefix + "use_rslora", false);
  // Parsed once more for the order of the keys, which the checked document does not keep.
  const auto ordered = nlohmann::ordered_json::parse(text);
  if (const auto start = ordered.find(prefix + kStart); start != ordered.end() && start->is_string()) {
    const std::string value = lower_case(start->get<std::string>());
    for (const char* changed : kStartsThatChangeTheModel) {
      if (value.starts_with(changed))
        fail(
            "{}: {} is '{}', which changes the model's own weights, too; convert it to a plain LoRA, as PEFT's "
            "path_initial_model_for_weight_conversion does",
            where_, kStart, value);
    }
  }
  const auto patterns = [&](const char* name, Pattern& pattern) {
    const std::string key = prefix + name;
    if (!document.has(key)) return;
    const JsonObject checked = document.object(key);
    for (const auto& item : ordered.at(key).items()) {
      pattern.emplace_back(item.key(), checked.get_between<double>(item.key(), 1e-6, 1e6));
    }
  };
  patterns("rank_pattern", ranks_);
  patterns("alpha_pattern", alphas_);
  if (named || rank_ || alpha_) return;
  const auto other = find([](const std::string& key) { return key.ends_with(".r") || key.ends_with(".lora_alpha"); });
  if (other != keys.end()) other_component_ = *other;
}

std::optional<double> PeftMetadata::stated(const Pattern& pattern, const char* key, std::optional<double> of_all,
                                           const Names& module) const {
  for (const auto& [expression, value] : pattern) {
    for (const std::string& name : module)
      if (fits(expression, name, where_ + ": " + key)) return value;
  }
  return of_all;
}

std::optional<double> PeftMetadata::rank_of(const Names& module) const {
  return stated(ranks_, "rank_pattern", rank_, module);
}

std::optional<double> PeftMetadata::alpha_of(const Names& module) const {
  return stated(alphas_, "alpha_pattern", alpha_, module);
}

double PeftMetadata::scale(const Names& module, int64_t rank) const {
  if (!other_component_.empty()) {
    fail(
        "{}: has '{}' and nothing under '{}', so the strength of '{}' is not known; name its keys '{}r' and "
        "'{}lora_alpha'",
        where_, other_component_, kComponent, module[0], kComponent, kComponent);
  }
  const auto r = static_cast<double>(rank);
  const std::optional<double> said = rank_of(module);
  if (said && *said != r) {
    fail("{}: says rank {} of '{}', whose tensors have rank {}; the file is not whole", where_, *said, module[0], rank);
  }
  return alpha_of(module).value_or(r) / (root_ ? std::sqrt(r) : r);
}

std::optional<double> PeftMetadata::stated_scale(const Names& module) const {
  const std::optional<double> rank = rank_of(module), alpha = alpha_of(module);
  if (!rank || !alpha) return std::nullopt;
  return *alpha / *rank;
}

}  // namespace zoetrope::lora
