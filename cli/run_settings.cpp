#include "cli/run_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace zoetrope::cli {

namespace fs = std::filesystem;

OptionSet describe(RunSettings& settings) {
  OptionSet set = pipeline::describe_options(settings.run);
  set.choice("summary", settings.summary, {"full", "short", "none"},
             "the report after a run: every phase, component and prediction, ten lines at most, or nothing");
  return set;
}

fs::path config_file(const std::string& word) {
  constexpr std::string_view kConfig = "config=";
  if (word.starts_with(kConfig)) return word.substr(kConfig.size());
  const fs::path path = word;
  const bool yaml = path.extension() == ".yml" || path.extension() == ".yaml";
  return yaml && word.find('=') == std::string::npos ? path : fs::path();
}

void load_config(const fs::path& file, pipeline::GenerateOptions& options, OptionSet& set) {
  set.load_yaml(file);
  for (std::string* named : {&options.model, &options.transformer, &options.transformer_2, &options.text_encoder,
                             &options.vae, &options.image_encoder, &options.tokenizer}) {
    const fs::path path = *named;
    if (path.empty() || path.is_absolute() || fs::exists(path)) continue;
    const fs::path next_to_file = file.parent_path() / path;
    if (fs::exists(next_to_file)) *named = next_to_file.lexically_normal().string();
  }
}

std::string ignored_note(const OptionSet& set) {
  if (set.ignored_keys().empty()) return "";
  const std::vector<std::string>& keys = set.ignored_keys();
  const bool loras = std::find(keys.begin(), keys.end(), "lora_config") != keys.end();
  return fmt::format(
      "ignored, as they change nothing here: {}{}", fmt::join(keys, ", "),
      loras && set.origin("enable_lora").empty()
          ? "; without enable_lora no LoRA of lora_config is used: name its files as lora, or as lora_high and lora_low"
          : "");
}

}  // namespace zoetrope::cli
