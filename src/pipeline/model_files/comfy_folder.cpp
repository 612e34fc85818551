#include "pipeline/model_files/comfy_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "io/weights/tensor_file.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/model_files/original_repository.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

struct Place {
  const char* component;
  std::string GenerateOptions::*file;
  std::vector<const char*> folders;
};
const Place kTransformer{"transformer", &GenerateOptions::transformer, {"diffusion_models", "unet"}};
const Place kSecond{"transformer_2", &GenerateOptions::transformer_2, {"diffusion_models", "unet"}};
const Place kOthers[] = {{"text_encoder", &GenerateOptions::text_encoder, {"text_encoders", "clip"}},
                         {"vae", &GenerateOptions::vae, {"vae"}},
                         {"image_encoder", &GenerateOptions::image_encoder, {"clip_vision"}}};

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
// The folder of models that a transformer's file lies in; empty for files elsewhere.
fs::path folder_around(const fs::path& transformer) {
  std::error_code ignored;
  if (transformer.empty() || !fs::is_regular_file(transformer, ignored)) return {};
  for (fs::path at = fs::absolute(transformer).lexically_normal().parent_path(); at.has_relative_path();
       at = at.parent_path()) {
    for (const char* folder : kTransformer.folders)
      if (at.filename() == folder) return at.parent_path();
  }
  return {};
}

// Sorted; of those folders of the place that are there, and the folders in them.
std::vector<fs::path> weight_files(const fs::path& root, const Place& place) {
  std::vector<fs::path> files;
  for (const char* folder : place.folders) {
    std::error_code ignored;
    const auto options =
        fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
    for (auto at = fs::recursive_directory_iterator(root / folder, options, ignored);
         at != fs::recursive_directory_iterator(); at.increment(ignored)) {
      constexpr int kDeepest = 4;  // links may lead round
      if (at.depth() == kDeepest) at.disable_recursion_pending();
      const fs::path& path = at->path();
      if (io::has_weight_file_ending(path) && at->is_regular_file(ignored)) files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string folders_text(const Place& place) {
  std::vector<std::string> names;
  for (const char* folder : place.folders) names.push_back(fmt::format("{}/", folder));
  return fmt::format("{}", fmt::join(names, " or "));
}
std::string names_text(const std::vector<fs::path>& files, const fs::path& root) {
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(file.lexically_relative(root).string());
  return fmt::format("{}", fmt::join(names, ", "));
}

// Files that are no weights of this component are passed over.
bool is_transformer(const fs::path& file) {
  try {
    return kind_of(io::Checkpoint::open_file(file)) == FileKind::kTransformer;
  } catch (const Error&) {
    return false;
  }
}

Component component_in(const fs::path& configs, const Place& place, const std::string& class_name) {
  const bool pictures = std::string_view(place.component) == "image_encoder";
  return component_of(place.component, pictures ? kClassOfImageEncoder : class_name,
                      JsonObject::load(configs / place.component / "config.json"));
}

// Why a file is not the component of the model; empty where it is.
std::string misfit(const fs::path& file, const Component& component) {
  try {
    names_of(open_component(file, component), component, component.used);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

class Search {
 public:
  Search(fs::path root, GenerateOptions options) : root_(std::move(root)), options_(std::move(options)) {}

  GenerateOptions run() {
    std::vector<Place> all{kTransformer, kSecond};
    all.insert(all.end(), std::begin(kOthers), std::end(kOthers));
    for (const Place& place : all) find_name(place);
    const bool own_configs =
        !options_.model.empty() && (!is_comfy_folder(options_.model) || has_configs(options_.model));
    if (own_configs) {
      options_.model = model_or_config(options_.model).string();
      const auto components = components_with_weights(configs());
      find_transformers(&components);
    } else {
      find_transformers(nullptr);
      options_.model = (config_folder() / model_of(options_.transformer, options_.transformer_2)).string();
    }
    find_others();
    return std::move(options_);
  }

 private:
  static bool has_configs(const fs::path& folder) { return is_there(folder / "model_index.json"); }
  fs::path configs() const { return options_.model; }

  // A file that is named without its folder.
  void find_name(const Place& place) {
    std::string& named = options_.*place.file;
    if (named.empty() || fs::path(named).is_absolute() || is_there(named)) return;
    for (const char* folder : place.folders) {
      const fs::path path = root_ / folder / named;
      if (!is_there(path)) continue;
      named = path.string();
      return;
    }
  }

  bool is_open(const Place& place) const {
    return (options_.*place.file).empty() &&
           !io::Checkpoint::exists(configs() / place.component, stem_of(place.component));
  }

  // `components`: of the model's own configs; null: any known model.
  void find_transformers(const std::map<std::string, std::string>* components) {
    const bool first = components == nullptr ? options_.transformer.empty() : is_open(kTransformer);
    const bool two = components != nullptr && components->count(kSecond.component) != 0;
    const bool second = components == nullptr ? options_.transformer_2.empty() : two && is_open(kSecond);
    if (!first && second) find_second();
    const bool missing = two && second && options_.transformer_2.empty();
    if (!first && !missing) return;
    std::vector<fs::path> files = weight_files(root_, kTransformer);
    std::optional<Component> wanted;
    if (components != nullptr) wanted = component_in(configs(), kTransformer, components->at(kTransformer.component));
    if (wanted) keep_fitting(files, *wanted, kTransformer);
    else std::erase_if(files, [](const fs::path& file) { return !is_transformer(file); });
    if (files.empty()) refuse_none(kTransformer, {});
    if (first && second && files.size() == 2 && (two || wanted == std::nullopt)) {
      for (const auto& [high, low] : {std::pair(files[0], files[1]), std::pair(files[1], files[0])}) {
        if (!are_experts(high, low)) continue;
        options_.transformer = high.string();
        options_.transformer_2 = low.string();
        return;
      }
    }
    if (files.size() == 1 && !two) {
      options_.transformer = files[0].string();
      return;
    }
    const char* keys = two ? "transformer= (high noise) and transformer_2= (low noise)" : "transformer=";
    fail("{}: several files of {} fit: {}; choose one with {}", root_.string(), folders_text(kTransformer),
         names_text(files, root_), keys);
  }

  // Beside an expert of high noise the one of low noise, where there is just one of the same shapes.
  void find_second() {
    if (options_.transformer.empty()) return;
    const auto models = [](const fs::path& file) {
      return models_with(io::Checkpoint::open_file(file), FileKind::kTransformer);
    };
    std::vector<fs::path> files = weight_files(root_, kSecond);
    std::erase_if(files, [&](const fs::path& file) {
      return !are_experts(options_.transformer, file) || !is_transformer(file) ||
             models(file) != models(options_.transformer);
    });
    if (files.size() == 1) options_.transformer_2 = files[0].string();
  }

  void find_others() {
    const auto components = components_with_weights(configs());
    for (const Place& place : kOthers) {
      const auto described = components.find(place.component);
      if (described == components.end() || !is_open(place)) continue;
      const Component wanted = component_in(configs(), place, described->second);
      std::vector<fs::path> files = weight_files(root_, place);
      keep_fitting(files, wanted, place);
      if (files.size() > 1) {
        fail("{}: several files fit the {} of this model: {}; choose one with {}=", root_.string(), place.component,
             names_text(files, root_), place.component);
      }
      options_.*place.file = files[0].string();
    }
  }

  // Throws Error where none is left.
  void keep_fitting(std::vector<fs::path>& files, const Component& wanted, const Place& place) const {
    std::string reason;
    std::erase_if(files, [&](const fs::path& file) {
      const std::string why = misfit(file, wanted);
      if (!why.empty()) reason = why;
      return !why.empty();
    });
    if (files.empty()) refuse_none(place, reason);
  }

  // `reason`: why the last file is not taken.
  [[noreturn]] void refuse_none(const Place& place, const std::string& reason) const {
    const std::vector<fs::path> files = weight_files(root_, place);
    const std::string there = files.empty() ? ""
                              : files.size() == 1 && !reason.empty()
                                  ? fmt::format(" ({})", reason)
                                  : fmt::format(" (there are {}{})", names_text(files, root_), broken_ones(files));
    fail("{}: {} holds no {} of this model{}; name its file as {}=FILE", root_.string(), folders_text(place),
         place.component, there, place.component);
  }

  // Why those of the files that cannot be opened cannot.
  static std::string broken_ones(const std::vector<fs::path>& files) {
    std::string text;
    for (const fs::path& file : files) {
      try {
        io::TensorFile::open(file);
      } catch (const Error& error) {
        text += fmt::format("; {}", error.what());
      }
    }
    return text;
  }

  fs::path root_;
  GenerateOptions options_;
};

}  // namespace

bool is_comfy_folder(const fs::path& folder) {
  return std::any_of(kTransformer.folders.begin(), kTransformer.folders.end(),
                     [&](const char* name) { return is_folder(folder / name); });
}

GenerateOptions with_found_files(const GenerateOptions& given) {
  if (given.weights == WeightSource::kRandom) return given;
  if (!given.model.empty() && is_comfy_folder(given.model)) return Search(given.model, given).run();
  if (!given.model.empty() && is_original_repository(given.model)) return with_original_files(given);
  const fs::path around = folder_around(given.transformer);
  return around.empty() ? given : Search(around, given).run();
}

}  // namespace zoetrope::pipeline
