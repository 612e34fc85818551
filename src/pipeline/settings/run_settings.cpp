#include "pipeline/settings/run_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/utf8.h"
#include "models/sampling/published_caches.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {

namespace fs = std::filesystem;

OptionSet describe(RunSettings& settings) {
  OptionSet set = describe_options(settings.run);
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

namespace {

// A relative path that stands in a YAML file: beside that file where it is there, else as it is, from where the program
// was called.
void look_beside(const fs::path& yaml, fs::path& named) {
  if (named.empty() || named.is_absolute()) return;
  const fs::path beside = yaml.parent_path() / named;
  if (is_there(beside)) named = beside.lexically_normal();
}
bool names_file(const std::string& prompt) { return prompt.starts_with('@') && !prompt.starts_with("@@"); }

}  // namespace

void for_each_input(GenerateOptions& options, const std::function<void(const char* key, fs::path& file)>& visit) {
  const auto visit_text = [&](const char* key, std::string& named) {
    if (named.empty() || named.find('\n') != std::string::npos) return;  // lines of prompts are no file
    fs::path file = named;
    visit(key, file);
    if (file != named) named = file.string();
  };
  for (const auto& [key, named] : file_keys()) visit_text(key.c_str(), options.*named);
  for (const auto& [key, named] :
       std::initializer_list<std::pair<const char*, std::string*>>{{"model", &options.model},
                                                                   {"prompts", &options.prompts},
                                                                   {"image", &options.image},
                                                                   {"last_image", &options.last_image},
                                                                   {"control_video", &options.control_video},
                                                                   {"mask", &options.mask},
                                                                   {"pose_video", &options.pose_video},
                                                                   {"face_video", &options.face_video},
                                                                   {"background_video", &options.background_video},
                                                                   {"latents", &options.latents},
                                                                   {"hardware", &options.hardware},
                                                                   {"int8_calibration", &options.int8_calibration}})
    visit_text(key, *named);
  for (const auto& [key, named] : std::initializer_list<std::pair<const char*, std::vector<LoraFile>*>>{
           {"lora", &options.lora}, {"lora_high", &options.lora_high}, {"lora_low", &options.lora_low}})
    for (LoraFile& lora : *named) visit(key, lora.file);
  for (std::string& picture : options.reference_images) visit_text("reference_images", picture);
}

void load_config(const fs::path& file, GenerateOptions& options, OptionSet& set) {
  set.load_yaml(file);
  // Keys that an earlier file or word set are none of this file's.
  const auto beside = [&](const char* key, fs::path& named) {
    if (set.origin(key).starts_with(file.string() + " line ")) look_beside(file, named);
  };
  for_each_input(options, beside);
  for (const auto& [key, numbers] : std::initializer_list<std::pair<const char*, std::string*>>{
           {"cache_ratios", &options.cache_ratios}, {"cache_coefficients", &options.cache_coefficients}}) {
    const bool published =
        sampling::published_ratios(*numbers) != nullptr || sampling::published_coefficients(*numbers) != nullptr;
    fs::path named = *numbers;
    if (published || !fs::is_regular_file(file.parent_path() / named)) continue;
    beside(key, named);
    *numbers = named.string();
  }
  for (const auto& [key, prompt] : std::initializer_list<std::pair<const char*, std::string*>>{
           {"prompt", &options.prompt}, {"negative_prompt", &options.negative_prompt}}) {
    if (!names_file(*prompt)) continue;
    fs::path named = prompt->substr(1);
    beside(key, named);
    *prompt = fmt::format("@{}", named.string());
  }
}

void read_text_files(GenerateOptions& options) {
  constexpr size_t kMostBytes = 1 << 20;  // far more than the tokens that a model sees
  for (const auto& [key, prompt] : std::initializer_list<std::pair<const char*, std::string*>>{
           {"prompt", &options.prompt}, {"negative_prompt", &options.negative_prompt}}) {
    if (names_file(*prompt)) {
      const std::string name = prompt->substr(1);
      if (name.empty()) fail("{}=@: name the file that holds it, as {}=@prompt.txt", key, key);
      std::string text = read_file(name, kMostBytes);
      while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
      if (text.empty()) fail("{}=@{}: holds no prompt", key, name);
      decode_utf8_or_fail(text, fmt::format("{}=@{}", key, name));
      *prompt = std::move(text);
    } else if (prompt->starts_with('@')) {
      prompt->erase(0, 1);
    }
  }
  replace_cache_files(options);
}

void keep_weights_of_several(GenerateOptions& options, const OptionSet& set) {
  const bool several = !options.prompts.empty() || options.num_videos > 1;
  if (!several || !set.origin("keep_weights").empty()) return;
  options.keep_weights = KeepWeights::kAll;
  options.keeps_what_fits = true;
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

}  // namespace zoetrope::pipeline
