#include "pipeline/model_files/config_folder.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/options.h"
#include "base/words.h"

namespace zoetrope::pipeline {

namespace fs = std::filesystem;

namespace {

// `way` goes from the folder of `file`. Links are followed first: the system's /lib may be one to /usr/lib.
fs::path from(const fs::path& file, const char* way) {
  std::error_code ignored;
  return file.empty() ? fs::path() : fs::weakly_canonical(file.parent_path() / way, ignored);
}

std::vector<std::string> config_places() {
  std::vector<std::string> places;
  for (const fs::path& place : {from(own_library(), "configs"), from(own_library(), ZOETROPE_CONFIGS_FROM_LIBRARY),
                                from(own_program(), ZOETROPE_CONFIGS_FROM_PROGRAM),
                                fs::path(ZOETROPE_CONFIGS_INSTALLED), fs::path(ZOETROPE_CONFIGS_SOURCE)})
    if (!place.empty()) places.push_back(place.string());
  return places;
}

// Published as Wan-AI/Wan2.2-T2V-A14B-Diffusers, here wan2.2_t2v_a14b.
std::string name_of_published(const std::string& repository) {
  std::string name = lower_case(repository.substr(repository.find_last_of('/') + 1));
  std::replace(name.begin(), name.end(), '-', '_');
  constexpr std::string_view kLayout = "_diffusers";
  if (name.ends_with(kLayout)) name.resize(name.size() - kLayout.size());
  return name;
}

}  // namespace

std::optional<fs::path> find_config_folder() {
  std::error_code ignored;
  for (const std::string& place : config_places())
    if (fs::is_directory(place, ignored)) return place;
  return std::nullopt;
}

fs::path config_folder() {
  if (const std::optional<fs::path> folder = find_config_folder()) return *folder;
  fail(
      "the configurations of known models and machines are in none of {}; name a checkpoint folder, and a machine as "
      "hardware=FILE",
      fmt::join(config_places(), ", "));
}

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(config_folder())) {
    if (is_there(entry.path() / "model_index.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path model_or_config(const std::string& model) {
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) return model;
  const std::vector<std::string> names = config_names();
  for (const std::string& name : {model, name_of_published(model)})
    if (std::find(names.begin(), names.end(), name) != names.end()) return config_folder() / name;
  const std::string nearest = nearest_name(model, names);
  fail("model: {} is neither a folder nor the name of a known configuration{}; there are {}", model,
       nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest), fmt::join(names, ", "));
}

std::optional<fs::path> yaml_of_config(const fs::path& model) {
  const std::optional<fs::path> configs = find_config_folder();
  std::error_code ignored;
  if (!configs || !fs::equivalent(model.parent_path(), *configs, ignored)) return std::nullopt;
  fs::path yaml = model;
  yaml += ".yml";
  return is_there(yaml) ? std::optional(yaml) : std::nullopt;
}

}  // namespace zoetrope::pipeline
