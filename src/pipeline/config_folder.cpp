#include "pipeline/config_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <system_error>

#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/options.h"

namespace zoetrope::pipeline {

namespace fs = std::filesystem;

namespace {

std::array<fs::path, 4> config_places() {
  return {own_library().parent_path() / "configs",
          (own_program().parent_path() / ZOETROPE_CONFIGS_FROM_PROGRAM).lexically_normal(), ZOETROPE_CONFIGS_INSTALLED,
          ZOETROPE_CONFIGS_SOURCE};
}

// Published as Wan-AI/Wan2.2-T2V-A14B-Diffusers, here wan2.2_t2v_a14b.
std::string name_of_published(const std::string& repository) {
  std::string name = repository.substr(repository.find_last_of('/') + 1);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view kLayout = "_diffusers";
  if (name.ends_with(kLayout)) name.resize(name.size() - kLayout.size());
  return name;
}

}  // namespace

std::optional<fs::path> find_config_folder() {
  std::error_code ignored;
  for (const fs::path& place : config_places())
    if (place.is_absolute() && fs::is_directory(place, ignored)) return place;
  return std::nullopt;
}

fs::path config_folder() {
  if (const std::optional<fs::path> folder = find_config_folder()) return *folder;
  const auto places = config_places();
  fail(
      "the configurations of known models and machines are in none of {}, {}, {} and {}; name a checkpoint folder, and "
      "a "
      "machine as hardware=FILE",
      places[0].string(), places[1].string(), places[2].string(), places[3].string());
}

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(config_folder())) {
    if (fs::exists(entry.path() / "model_index.json")) names.push_back(entry.path().filename().string());
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
