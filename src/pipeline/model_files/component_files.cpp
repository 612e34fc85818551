#include "pipeline/model_files/component_files.h"

#include <algorithm>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "pipeline/model_files/original_repository.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

// A tensor that only this kind of file has, below any prefix; files of CLIP may have a text encoder too.
constexpr std::pair<std::string_view, FileKind> kMarks[] = {
    {"head.modulation", FileKind::kTransformer},
    {"condition_embedder.time_proj.weight", FileKind::kTransformer},
    {"embeddings.class_embedding", FileKind::kImageEncoder},
    {"visual.cls_embedding", FileKind::kImageEncoder},
    {"visual.class_embedding", FileKind::kImageEncoder},
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
  for (const char* ending : {".alpha", ".diff", ".diff_b", ".diff_m", ".dora_scale"})
    if (name.ends_with(ending)) return true;
  for (const char* part : {".lora_", ".lora.", ".hada_w", ".lokr_w"})
    if (name.find(part) != std::string::npos) return true;
  return name.starts_with("lora_unet_") || name.starts_with("lycoris_");
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
  for (const std::string& name : names) {
    if (!has_level(name, "vace_blocks.")) continue;
    fail("{}: is a VACE module without its model (by '{}'); name a file that holds both, such as ComfyUI's", path,
         name);
  }
  fail(
      "{}: is not a component of a Wan model: it has neither the names of a transformer, nor of umT5, of a VAE, or of "
      "a CLIP vision tower",
      path);
}

io::Checkpoint open_folder(const fs::path& folder) {
  return io::Checkpoint::open(folder,
                              io::Checkpoint::exists(folder, kTextEncoderStem) ? kTextEncoderStem : kDiffusersStem);
}

io::Checkpoint open_component(const fs::path& path, const Component& component) {
  const FileKind wanted = component.name == "vae"             ? FileKind::kVae
                          : component.name == "text_encoder"  ? FileKind::kTextEncoder
                          : component.name == "image_encoder" ? FileKind::kImageEncoder
                                                              : FileKind::kTransformer;
  if (is_folder(path)) {
    const fs::path config = path / kConfig;
    if (is_there(config)) io::require_unquantized(JsonObject::load(config));
    return io::Checkpoint::open(path, component.stem);
  }
  const io::Checkpoint checkpoint = io::Checkpoint::open_file(path);
  const FileKind kind = kind_of(checkpoint);
  if (kind == wanted || holds(checkpoint.names(), wanted)) return checkpoint;
  fail("{}={}: is {}, but {} is needed{}", component.name, path.string(), kind_text(kind), kind_text(wanted),
       kind == FileKind::kLora ? "; pass it with lora=" : "");
}

fs::path config_of(const fs::path& folder, const std::map<std::string, fs::path>& named, const std::string& component) {
  const auto found = named.find(component);
  if (found != named.end() && is_there(found->second / kConfig) && !has_original_config(found->second))
    return found->second / kConfig;
  return folder / component / kConfig;
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

io::NamesInFile names_of(const io::Checkpoint& checkpoint, const Component& component, const io::TensorTable& used) {
  return io::names_in_file(*io::checkpoint_source(checkpoint), component.tensors, used, component.files);
}

}  // namespace zoetrope::pipeline
