#include "pipeline/model_files/known_models.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/words.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/model_files/original_repository.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// The folder of a component of this kind.
const char* folder_of(FileKind kind) {
  switch (kind) {
    case FileKind::kTextEncoder:
      return "text_encoder";
    case FileKind::kVae:
      return "vae";
    case FileKind::kImageEncoder:
      return "image_encoder";
    default:
      return "transformer";
  }
}

// The kind of a component's folder, by its config.
FileKind kind_of_folder(const JsonObject& config) {
  std::string name = config.get<std::string>("_class_name", std::string());
  const auto architectures = config.get<std::vector<std::string>>("architectures", std::vector<std::string>());
  if (name.empty() && !architectures.empty()) name = architectures.front();
  constexpr std::pair<const char*, FileKind> kClasses[] = {{"Transformer3D", FileKind::kTransformer},
                                                           {"AutoencoderKL", FileKind::kVae},
                                                           {"T5", FileKind::kTextEncoder},
                                                           {"CLIP", FileKind::kImageEncoder}};
  for (const auto& [part, kind] : kClasses)
    if (name.find(part) != std::string::npos) return kind;
  fail("{}: is the config of '{}', which is not a component of a Wan model with weights", config.where(), name);
}

// What keeps the file from being one of these tensors; empty where nothing does.
std::string defect(const io::WeightSource& stored, const Component& component) {
  try {
    io::names_in_file(stored, component.tensors, component.used, component.files);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// Of each known model that has it.
struct KnownComponent {
  std::string model;
  Component component;
};

std::vector<KnownComponent> known_components(FileKind kind) {
  std::vector<KnownComponent> known;
  const std::string name = folder_of(kind);
  for (const std::string& model : config_names()) {
    const fs::path config = config_folder() / model / name / "config.json";
    if (!is_there(config)) continue;
    known.push_back({model, component_of(name, kClassOfImageEncoder, JsonObject::load(config))});
  }
  return known;
}

// "a_LowPoly-v2" as {"a", "low", "poly", "v2"}.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char last = 0;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z', after_upper = last >= 'A' && last <= 'Z';
    const bool letter_or_digit = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if ((!letter_or_digit || (upper && !after_upper)) && !words.back().empty()) words.emplace_back();
    if (letter_or_digit) words.back() += c;
    last = c;
  }
  for (std::string& word : words) word = lower_case(std::move(word));
  return words;
}

// Whether the words hold `word` and "noise" next to each other, as one word too.
bool has_noise(const std::vector<std::string>& words, const std::string& word) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(word + "noise")) return true;
    if (words[i] == word && i + 1 < words.size() && words[i + 1].starts_with("noise")) return true;
  }
  return false;
}

// Whether `word` is one of the words, and does not describe the next one: "low_poly" is no expert.
bool stands_alone(const std::vector<std::string>& words, const std::string& word) {
  constexpr std::string_view kDescribed[] = {"poly",   "quality",  "res",   "resolution", "angle", "key",
                                             "detail", "contrast", "speed", "fps",        "light", "fidelity"};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != word) continue;
    if (i + 1 == words.size() || std::ranges::find(kDescribed, words[i + 1]) == std::end(kDescribed)) return true;
  }
  return false;
}

std::string lower_name(const fs::path& file) { return lower_case(file.filename().string()); }

// The first of two patterns that a file's name or that of a folder around it has, the nearest first: 0 or 1; where a
// name has both, or none has one, -1.
int said_by_path(const fs::path& file, const char* zero, const char* one) {
  const std::regex patterns[] = {std::regex(zero), std::regex(one)};
  fs::path at = without_last_slash(fs::absolute(file).lexically_normal());
  for (; at.has_relative_path(); at = at.parent_path()) {
    const std::string name = lower_name(at);
    const bool has[] = {std::regex_search(name, patterns[0]), std::regex_search(name, patterns[1])};
    if (has[0] != has[1]) return has[1] ? 1 : 0;
    if (has[0]) break;
  }
  return -1;
}

// 1 or 2 of Wan 2.1 and 2.2: "wan2.1", "Wan2_1", "wan21", "2.1"; -1 where the path does not say.
int version_by_path(const fs::path& file) {
  const int said = said_by_path(file, "wan[-_ ]?2[._-]?1(?![0-9])|(^|[^0-9])2\\.1(?![0-9])",
                                "wan[-_ ]?2[._-]?2(?![0-9])|(^|[^0-9])2\\.2(?![0-9])|a14b");
  return said < 0 ? said : said + 1;
}

bool has_two_experts(const std::string& model) { return model_index(config_folder() / model).has("transformer_2"); }

// Of models for other sizes, which have the same tensors, the one that the file's name says.
std::string of_its_size(const fs::path& transformer, std::vector<std::string>::const_iterator first,
                        std::vector<std::string>::const_iterator end) {
  std::vector<std::string> alike;
  std::copy_if(first, end, std::back_inserter(alike), [](const std::string& model) { return !has_two_experts(model); });
  if (alike.size() == 1) return alike.front();
  // Not within a date or the hash of a snapshot.
  const int size = said_by_path(transformer, "(^|[^0-9])480(?![0-9a-f])", "(^|[^0-9])720(?![0-9a-f])");
  for (const std::string& model : alike)
    if (size >= 0 && model.ends_with(size == 0 ? "_480p" : "_720p")) return model;
  fail("transformer={}: {} have these tensors, and its name does not say 480 or 720; say which it is, as model={}",
       transformer.string(), fmt::join(alike, " and "), alike.front());
}

}  // namespace

ComponentAlone open_alone(const fs::path& path, const std::string& model) {
  const bool folder = is_folder(path);
  if (folder && is_there(path / "model_index.json")) {
    fail("{}: is a whole model; name one of its components, such as {}", path.string(),
         (path / "transformer").string());
  }
  fs::path config = path / "config.json";
  const bool original = folder && is_original_repository(path);  // its config has other keys
  if (original && !is_there(config)) {
    fail("{}: is a whole model; name one of its transformers, such as {}", path.string(),
         (path / "high_noise_model").string());
  }
  const bool described = folder && !original && is_there(config);
  if (described && !model.empty()) {
    fail("model={}: {} is a folder with a config of its own; leave the key out", model, path.string());
  }
  const auto file = described  ? std::nullopt
                    : original ? std::optional(io::Checkpoint::open(path, kDiffusersStem))
                    : folder   ? std::optional(open_folder(path))
                               : std::optional(io::Checkpoint::open_file(path));
  const FileKind kind = described ? kind_of_folder(JsonObject::load(config)) : kind_of(*file);
  if (kind == FileKind::kLora) fail("{}: is a LoRA file, not a component of a model", path.string());
  const std::string name = folder_of(kind);
  if (!described && !model.empty()) {
    config = model_or_config(model) / name / "config.json";
  } else if (!described) {
    const std::vector<std::string> models = models_with(*file, kind);
    if (models.empty()) fail("{}: {}", path.string(), why_of_no_model(*file, kind));
    config = config_folder() / models.front() / name / "config.json";
  }
  const auto json = JsonObject::load(config);
  io::require_unquantized(json);
  Component component = component_of(name, kClassOfImageEncoder, json);
  io::Checkpoint checkpoint = described ? io::Checkpoint::open(path, component.stem) : *file;
  io::NamesInFile names = names_of(checkpoint, component, component.used);
  return {std::move(checkpoint), std::move(component), std::move(names), std::move(config)};
}

std::vector<std::string> models_with(const io::Checkpoint& checkpoint, FileKind kind) {
  const auto stored = io::checkpoint_source(checkpoint);
  std::vector<std::string> models;
  for (const KnownComponent& known : known_components(kind))
    if (defect(*stored, known.component).empty()) models.push_back(known.model);
  return models;
}

std::string why_of_no_model(const io::Checkpoint& checkpoint, FileKind kind) {
  const auto stored = io::checkpoint_source(checkpoint);
  const std::vector<KnownComponent> all = known_components(kind);
  const KnownComponent* nearest = nullptr;
  double most = 0.5;  // with fewer it is another model
  for (const KnownComponent& known : all) {
    const Component& component = known.component;
    const size_t count = io::count_in_file(*stored, component.tensors, component.used, component.files);
    const double part = static_cast<double>(count) / static_cast<double>(component.used.size());
    if (part <= most) continue;
    most = part;
    nearest = &known;
  }
  const std::string text =
      "its tensors are those of none of the known models; name a folder with its configs as model=";
  if (nearest == nullptr) return text;
  std::string why = defect(*stored, nearest->component);
  const std::string where = checkpoint.files().front()->path().string() + ": ";
  if (why.starts_with(where)) why.erase(0, where.size());
  return fmt::format("{}; {} is the nearest: {}", text, nearest->model, why);
}

std::string model_of(const fs::path& transformer, const fs::path& second, bool whole) {
  const auto open = [](const fs::path& path, const char* key) {
    return open_component(path, {.name = key, .stem = kDiffusersStem, .tensors = {}});
  };
  const io::Checkpoint file = open(transformer, "transformer");
  const std::vector<std::string> models = models_with(file, FileKind::kTransformer);
  if (models.empty()) fail("transformer={}: {}", transformer.string(), why_of_no_model(file, FileKind::kTransformer));
  const auto expert = std::find_if(models.begin(), models.end(), has_two_experts);
  const auto alone = std::find_if_not(models.begin(), models.end(), has_two_experts);
  const Expertise expertise = expertise_of(transformer);
  if (second.empty()) {
    const int version = version_by_path(transformer);
    const bool of_two = !whole && (expertise != Expertise::kUnknown || version == 2);
    if (alone != models.end() && expert != models.end() && !of_two && !whole && version != 1) {
      fail(
          "transformer={}: {} and each expert of {} have these tensors, and its name does not say 2.1 or 2.2; say "
          "model={}, or name both experts, transformer= of high noise and transformer_2= of low noise",
          transformer.string(), *alone, *expert, *alone);
    }
    if (alone != models.end() && (expert == models.end() || !of_two))
      return of_its_size(transformer, alone, models.end());
    const std::string other =
        alone != models.end()
            ? fmt::format(", or say model={} if that is what it is", *alone)
            : fmt::format(
                  "; a merge of both in one file needs a copy of {} as model=, whose model_index.json has "
                  "neither transformer_2 nor boundary_ratio",
                  (config_folder() / *expert).string());
    fail(
        "transformer={}: this looks like one expert of {}; name the other file too, transformer= of high noise and "
        "transformer_2= of low noise{}",
        transformer.string(), *expert, other);
  }
  if (expert == models.end()) {
    fail("transformer_2={}: {} is a transformer of {}, which has one expert; leave the key out", second.string(),
         transformer.string(), *alone);
  }
  open(second, "transformer_2");
  return *expert;
}

Expertise expertise_of(const fs::path& file) {
  const std::vector<std::string> words = words_of(file.filename().string());
  for (const auto& says : {has_noise, stands_alone}) {
    const bool high = says(words, "high"), low = says(words, "low");
    if (high != low) return high ? Expertise::kHighNoise : Expertise::kLowNoise;
    if (high) break;
  }
  return Expertise::kUnknown;
}

bool are_experts(const fs::path& high, const fs::path& low) {
  return expertise_of(high) == Expertise::kHighNoise && expertise_of(low) == Expertise::kLowNoise;
}

void require_experts_in_order(const fs::path& transformer, const fs::path& second) {
  std::error_code unknown;
  if (fs::equivalent(transformer, second, unknown)) {
    fail("transformer= and transformer_2= are the same file, {}; name the experts of high and of low noise",
         transformer.string());
  }
  if (expertise_of(transformer) == Expertise::kLowNoise) {
    fail("transformer={}: is of low noise by its name; that of high noise belongs here, and this one to transformer_2=",
         transformer.string());
  }
  if (expertise_of(second) == Expertise::kHighNoise) {
    fail("transformer_2={}: is of high noise by its name; that of low noise belongs here, and this one to transformer=",
         second.string());
  }
}

}  // namespace zoetrope::pipeline
