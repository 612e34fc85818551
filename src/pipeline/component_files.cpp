#include "pipeline/component_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/encoders/config.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/config.h"
#include "models/wan/tensor_tables.h"
#include "pipeline/config_folder.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// A tensor that only this kind of file has, below any prefix; files of CLIP may have a text encoder too.
constexpr std::pair<std::string_view, FileKind> kMarks[] = {
    {"vision_model.embeddings.class_embedding", FileKind::kImageEncoder},
    {"visual.cls_embedding", FileKind::kImageEncoder},
    {"visual.class_embedding", FileKind::kImageEncoder},
    {"head.modulation", FileKind::kTransformer},
    {"condition_embedder.time_proj.weight", FileKind::kTransformer},
    {"shared.weight", FileKind::kTextEncoder},
    {"encoder.embed_tokens.weight", FileKind::kTextEncoder},
    {"token_embedding.weight", FileKind::kTextEncoder},
    {"token_embd.weight", FileKind::kTextEncoder},
    {"decoder.middle.0.residual.0.gamma", FileKind::kVae},
    {"decoder.mid_block.resnets.0.norm1.gamma", FileKind::kVae},
};

// Models that look like Wan's, by a tensor of theirs.
constexpr std::pair<std::string_view, const char*> kOthers[] = {
    {"casual_audio_encoder.", "Wan 2.2 S2V"}, {"audio_injector.", "Wan 2.2 S2V"},
    {"audio_proj.", "a talking model"},       {"ref_conv.", "Wan Fun-Control"},
    {"control_adapter.", "Wan Fun-Camera"},
};

bool has_level(const std::string& name, std::string_view levels) {
  const size_t at = name.find(levels);
  return at != std::string::npos && (at == 0 || name[at - 1] == '.');
}

bool has_mark(const std::vector<std::string>& names, std::string_view mark) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.ends_with(mark) && has_level(name, mark); });
}

// Whether a checkpoint of several components has this one too.
bool holds(const std::vector<std::string>& names, FileKind kind) {
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](const auto& mark) { return mark.second == kind && has_mark(names, mark.first); });
}

bool is_of_lora(const std::string& name) {
  for (const char* ending : {".alpha", ".diff", ".diff_b", ".diff_m"})
    if (name.ends_with(ending)) return true;
  return name.find(".lora_") != std::string::npos || name.starts_with("lora_unet_");
}

// Empty where the file does not say or says nothing of its own.
std::string architecture(const io::TensorFile& file) {
  const auto found = file.metadata().find("general.architecture");
  const std::string name = found == file.metadata().end() ? "" : found->second;
  return name == "pig" || name == "cow" ? "" : name;  // converters that give every model their own
}

void refuse_others(const std::string& file, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const auto& [part, model] : kOthers) {
      if (has_level(name, part)) fail("{}: is {} (by '{}'), which this program does not run", file, model, name);
    }
  }
}

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

// Those that must be there; of an image encoder the transformer needs a part.
io::TensorTable needed_tensors(const Component& component, const JsonObject& config) {
  if (component.name != "image_encoder") return component.tensors;
  return encoders::clip_vision_tensors(encoders::ClipVisionConfig::from_json(config), encoders::ClipTensors::kUsed);
}

// What keeps the file from being one of these tensors; empty where nothing does.
std::string defect(const io::WeightSource& stored, const Component& component, const io::TensorTable& used) {
  try {
    io::names_in_file(stored, component.tensors, used, component.files);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// "model-00002-of-00007.safetensors" alone is no component.
void refuse_parts(const fs::path& file) {
  const std::string name = file.filename().string();
  std::smatch match;
  if (!std::regex_search(name, match, std::regex("-[0-9]{5}-of-([0-9]{5})\\."))) return;
  const int files = std::stoi(match[1]);
  if (files == 1) return;
  if (file.extension() == ".gguf") {
    fail("{}: is one of {} parts, by its name; join them first, with llama-gguf-split --merge", file.string(), files);
  }
  fail("{}: is one of {} files that hold the weights together, by its name; name their folder instead", file.string(),
       files);
}

// Of each known model that has it, with those of its tensors that a file must have.
struct KnownComponent {
  std::string model;
  Component component;
  io::TensorTable needed;
};

std::vector<KnownComponent> known_components(FileKind kind) {
  std::vector<KnownComponent> known;
  const std::string name = folder_of(kind);
  for (const std::string& model : config_names()) {
    const fs::path config = config_folder() / model / name / "config.json";
    if (!fs::exists(config)) continue;
    const auto json = JsonObject::load(config);
    Component component = component_of(name, kClassOfImageEncoder, json);
    io::TensorTable needed = needed_tensors(component, json);
    known.push_back({model, std::move(component), std::move(needed)});
  }
  return known;
}

// Whether a file's name has the word by itself, or before "noise".
bool says(std::string_view name, std::string_view word) {
  constexpr std::string_view kBetween = "-_ ";
  for (size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    const std::string_view rest = name.substr(at + word.size());
    const bool apart = !rest.empty() && kBetween.find(rest[0]) != rest.npos;
    if (rest.substr(apart ? 1 : 0).starts_with("noise")) return true;
    if (at > 0 && kBetween.find(name[at - 1]) != name.npos && (apart || rest.starts_with('.'))) return true;
  }
  return false;
}

std::string lower_name(const fs::path& file) {
  std::string name = file.filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// What a file's name says of the two experts.
enum class Expertise { kUnknown, kHighNoise, kLowNoise };
Expertise expertise_of(const fs::path& file) {
  const std::string name = lower_name(file);
  const bool high = says(name, "high"), low = says(name, "low");
  if (high == low) return Expertise::kUnknown;
  return high ? Expertise::kHighNoise : Expertise::kLowNoise;
}

// The first of two patterns that a file's name or that of a folder around it has, the nearest first: 0 or 1; where a
// name has both, or none has one, -1.
int said_by_path(const fs::path& file, const char* zero, const char* one) {
  const std::regex patterns[] = {std::regex(zero), std::regex(one)};
  fs::path at = fs::absolute(file).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();  // folder/
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

bool has_two_experts(const std::string& model) {
  return wan::PipelineConfig::load(config_folder() / model / "model_index.json").has("transformer_2");
}

}  // namespace

const char* stem_of(const std::string& component) {
  return component.ends_with("_encoder") ? kTextEncoderStem : kDiffusersStem;
}

const char* kind_text(FileKind kind) {
  switch (kind) {
    case FileKind::kTransformer:
      return "a transformer";
    case FileKind::kTextEncoder:
      return "a text encoder";
    case FileKind::kVae:
      return "a VAE";
    case FileKind::kImageEncoder:
      return "an image encoder";
    case FileKind::kLora:
      return "a LoRA file";
  }
  return "";
}

Component component_of(const std::string& name, const std::string& class_name, const JsonObject& config) {
  if (name == "vae")
    return {name, kDiffusersStem, wan::vae_tensors(wan::VaeConfig::from_json(config)), wan::vae_files()};
  if (name == "text_encoder") {
    return {name, kTextEncoderStem, encoders::text_encoder_tensors(encoders::TextEncoderConfig::from_json(config)),
            encoders::text_encoder_files()};
  }
  if (name == "image_encoder") {
    const auto which = class_name == "CLIPVisionModel" ? encoders::ClipTensors::kTower : encoders::ClipTensors::kAll;
    return {name, kTextEncoderStem, encoders::clip_vision_tensors(encoders::ClipVisionConfig::from_json(config), which),
            encoders::clip_vision_files()};
  }
  ZT_CHECK(name == "transformer" || name == "transformer_2", "{}", name);
  return {name, kDiffusersStem, wan::transformer_tensors(wan::TransformerConfig::from_json(config)),
          wan::transformer_files()};
}

std::map<std::string, std::string> components_with_weights(const fs::path& configs) {
  const auto pipeline = wan::PipelineConfig::load(configs / "model_index.json");
  const bool reads_pictures =
      wan::TransformerConfig::load(configs / "transformer" / "config.json").image_dim.has_value();
  std::map<std::string, std::string> components;
  for (const char* name : {"transformer", "transformer_2", "text_encoder", "vae", "image_encoder"}) {
    const bool used = pipeline.has(name) && (reads_pictures || std::string_view(name) != "image_encoder");
    if (used) components[name] = pipeline.components.at(name).class_name;
  }
  return components;
}

io::TensorTable used_tensors(const Component& component, const fs::path& configs) {
  if (component.name != "image_encoder") return component.tensors;
  const auto config = encoders::ClipVisionConfig::load(configs / component.name / "config.json");
  return encoders::clip_vision_tensors(config, encoders::ClipTensors::kUsed);
}

FileKind kind_of(const io::Checkpoint& checkpoint) {
  const io::TensorFile& file = *checkpoint.files().front();
  if (checkpoint.files().size() == 1) refuse_parts(file.path());
  const std::string path = file.path().string(), named = architecture(file);
  const std::vector<std::string> names = checkpoint.names();
  const bool known = named.empty() || named == "wan" || named == "t5" || named == "t5encoder";
  if (!known) {
    fail("{}: holds a model of the architecture '{}'; Wan's are 'wan', and 't5' or 't5encoder' of its text encoder",
         path, named);
  }
  refuse_others(path, names);
  for (const auto& [mark, kind] : kMarks) {
    if (has_mark(names, mark)) return kind;
  }
  if (!names.empty() && std::all_of(names.begin(), names.end(), is_of_lora)) return FileKind::kLora;
  fail(
      "{}: is not a component of a Wan model: it has neither the names of a transformer, nor of umT5, of a VAE, or of "
      "a "
      "CLIP vision tower",
      path);
}

io::Checkpoint open_component(const fs::path& path, const Component& component) {
  const FileKind wanted = component.name == "vae"             ? FileKind::kVae
                          : component.name == "text_encoder"  ? FileKind::kTextEncoder
                          : component.name == "image_encoder" ? FileKind::kImageEncoder
                                                              : FileKind::kTransformer;
  if (fs::is_directory(path)) return io::Checkpoint::open(path, component.stem);
  const io::Checkpoint checkpoint = io::Checkpoint::open_file(path);
  const FileKind kind = kind_of(checkpoint);
  if (kind == wanted || holds(checkpoint.names(), wanted)) return checkpoint;
  fail("{}={}: is {}, but {} is needed{}", component.name, path.string(), kind_text(kind), kind_text(wanted),
       kind == FileKind::kLora ? "; pass it with lora=" : "");
}

ComponentAlone open_alone(const fs::path& path, const std::string& model) {
  const bool folder = fs::is_directory(path);
  if (folder && fs::exists(path / "model_index.json")) {
    fail("{}: is a whole model; name one of its components, such as {}", path.string(),
         (path / "transformer").string());
  }
  if (folder && !model.empty()) {
    fail("model={}: {} is a folder with a config of its own; leave the key out", model, path.string());
  }
  fs::path config = path / "config.json";
  const auto file = folder ? std::nullopt : std::optional(io::Checkpoint::open_file(path));
  const FileKind kind = folder ? kind_of_folder(JsonObject::load(config)) : kind_of(*file);
  if (kind == FileKind::kLora) fail("{}: is a LoRA file, not a component of a model", path.string());
  const std::string name = folder_of(kind);
  if (!folder && !model.empty()) {
    config = model_or_config(model) / name / "config.json";
  } else if (!folder) {
    const std::vector<std::string> models = models_with(*file, kind);
    if (models.empty()) fail("{}: {}", path.string(), why_of_no_model(*file, kind));
    config = config_folder() / models.front() / name / "config.json";
  }
  const auto json = JsonObject::load(config);
  io::require_unquantized(json);
  Component component = component_of(name, kClassOfImageEncoder, json);
  io::Checkpoint checkpoint = folder ? io::Checkpoint::open(path, component.stem) : *file;
  io::NamesInFile names = names_of(checkpoint, component, needed_tensors(component, json));
  return {std::move(checkpoint), std::move(component), std::move(names), std::move(config)};
}

DType main_dtype(const io::Checkpoint& checkpoint) {
  std::string name;
  uint64_t most = 0;
  for (const auto& [dtype, count] : checkpoint.dtypes()) {
    if (count.bytes <= most) continue;
    most = count.bytes;
    name = dtype;
  }
  return name == "BF16" ? DType::kBF16 : name == "F16" ? DType::kF16 : DType::kF32;
}

int64_t checkpoint_bytes(const io::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& file : checkpoint.files()) bytes += static_cast<int64_t>(fs::file_size(file->path()));
  return bytes;
}

std::vector<std::string> models_with(const io::Checkpoint& checkpoint, FileKind kind) {
  const auto stored = io::checkpoint_source(checkpoint);
  std::vector<std::string> models;
  for (const KnownComponent& known : known_components(kind))
    if (defect(*stored, known.component, known.needed).empty()) models.push_back(known.model);
  return models;
}

std::string why_of_no_model(const io::Checkpoint& checkpoint, FileKind kind) {
  const auto stored = io::checkpoint_source(checkpoint);
  const std::vector<KnownComponent> all = known_components(kind);
  const KnownComponent* nearest = nullptr;
  double most = 0.5;  // with fewer it is another model
  for (const KnownComponent& known : all) {
    const auto& [name, stem, tensors, files] = known.component;
    const size_t count = io::count_in_file(*stored, tensors, known.needed, files);
    const double part = static_cast<double>(count) / static_cast<double>(known.needed.size());
    if (part <= most) continue;
    most = part;
    nearest = &known;
  }
  const std::string text =
      "its tensors are those of none of the known models; name a folder with its configs as model=";
  if (nearest == nullptr) return text;
  std::string why = defect(*stored, nearest->component, nearest->needed);
  const std::string where = checkpoint.files().front()->path().string() + ": ";
  if (why.starts_with(where)) why.erase(0, where.size());
  return fmt::format("{}; {} is the nearest: {}", text, nearest->model, why);
}

namespace {

// Of models for other sizes, which have the same tensors, the one that the file's name says.
std::string of_its_size(const fs::path& transformer, std::vector<std::string>::const_iterator first,
                        std::vector<std::string>::const_iterator end) {
  std::vector<std::string> alike;
  std::copy_if(first, end, std::back_inserter(alike), [](const std::string& model) { return !has_two_experts(model); });
  if (alike.size() == 1) return alike.front();
  const int size = said_by_path(transformer, "480", "720");
  for (const std::string& model : alike)
    if (size >= 0 && model.ends_with(size == 0 ? "_480p" : "_720p")) return model;
  fail("transformer={}: {} have these tensors, and its name does not say 480 or 720; say which it is, as model={}",
       transformer.string(), fmt::join(alike, " and "), alike.front());
}

}  // namespace

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
    fail(
        "transformer={}: this looks like one expert of {}; name the other file too, transformer= of high noise and "
        "transformer_2= of low noise{}",
        transformer.string(), *expert,
        alone == models.end() ? "" : fmt::format(", or say model={} if that is what it is", *alone));
  }
  if (expert == models.end()) {
    fail("transformer_2={}: {} is a transformer of {}, which has one expert; leave the key out", second.string(),
         transformer.string(), *alone);
  }
  open(second, "transformer_2");
  return *expert;
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

io::NamesInFile names_of(const io::Checkpoint& checkpoint, const Component& component, const io::TensorTable& used) {
  return io::names_in_file(*io::checkpoint_source(checkpoint), component.tensors, used, component.files);
}

}  // namespace zoetrope::pipeline
