#include "pipeline/model_files/original_repository.h"

#include <fmt/ranges.h>

#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/model_files/model_folder.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char *kHighNoise = "high_noise_model", *kLowNoise = "low_noise_model", *kConfig = "config.json";

bool has_original_class(const JsonObject& config) {
  const auto name = config.get<std::string>("_class_name", std::string());
  return name == "WanModel" || name == "VaceWanModel" || name == "WanAnimateModel";
}

}  // namespace

bool is_original_repository(const fs::path& folder) {
  if (is_there(folder / "model_index.json")) return false;
  if (is_there(folder / kHighNoise / kConfig)) return true;
  if (!is_there(folder / kConfig)) return false;
  return has_original_class(JsonObject::load(folder / kConfig));
}

bool has_original_config(const fs::path& folder) {
  if (!is_there(folder / kConfig)) return false;
  const auto config = JsonObject::load(folder / kConfig);
  return config.has("dim") || has_original_class(config);
}

GenerateOptions with_original_files(const GenerateOptions& given) {
  GenerateOptions options = given;
  const fs::path root = given.model;
  const bool two = is_there(root / kHighNoise / kConfig);
  const auto take = [](std::string& key, const fs::path& path) {
    if (key.empty()) key = path.string();
  };
  take(options.transformer, two ? root / kHighNoise : root);
  if (two) take(options.transformer_2, root / kLowNoise);
  if (const fs::path tokenizer = root / "google" / "umt5-xxl"; is_there(tokenizer)) take(options.tokenizer, tokenizer);
  options.model = (config_folder() / model_of(options.transformer, options.transformer_2, !two)).string();
  std::vector<std::string> missing;
  const auto named = named_files(options);
  for (const auto& [component, class_name] : components_with_weights(options.model))
    if (named.count(component) == 0) missing.push_back(component + "=");
  if (missing.empty()) return options;
  fail(
      "{}: is the repository of a model's authors, which has these as PyTorch pickles, and those are never opened; "
      "name safetensors or GGUF files with {}",
      root.string(), fmt::join(missing, " and "));
}

}  // namespace zoetrope::pipeline
