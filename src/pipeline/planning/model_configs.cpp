#include "pipeline/planning/model_configs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/model_files/convert_plan.h"

namespace zoetrope::pipeline {
namespace {

// Of the model's own folder nothing where files are not whole yet: an index whose shards are still to come.
std::optional<io::Checkpoint> weights_there(const std::filesystem::path& path, const std::string& component,
                                            bool named) {
  try {
    return open_component(path, {.name = component, .stem = stem_of(component), .tensors = {}});
  } catch (const Error&) {
    if (named) throw;
    return std::nullopt;
  }
}

// Calls use(name, tensor) for those of a component, in files that may have others as well. False: they have no prefix.
template <typename Use>
bool each_with_prefix(const io::Checkpoint& files, const io::FileRules& rules, Use&& use) {
  for (const std::string_view prefix : rules.prefixes) {
    bool any = false;
    for (const auto& file : files.files()) {
      for (const auto& [name, info] : file->tensors()) {
        if (!name.starts_with(prefix)) continue;
        any = true;
        use(name.substr(prefix.size()), info);
      }
    }
    if (any) return true;
  }
  return false;
}

int64_t transformer_bytes(const io::Checkpoint& files) {
  uint64_t bytes = 0;
  const bool named =
      each_with_prefix(files, wan::transformer_files(), [&](const auto&, const auto& info) { bytes += info.bytes; });
  return named ? static_cast<int64_t>(bytes) : checkpoint_bytes(files);
}

int64_t used_bytes(const io::Checkpoint& files, double share) {
  return std::llround(static_cast<double>(transformer_bytes(files)) * share);
}

wan::TextLayers text_layers_of(const io::Checkpoint& files, const encoders::TextEncoderConfig& config) {
  const io::FileRules rules = encoders::text_encoder_files();
  uint64_t bytes = 0;
  bool decoded = false;
  const auto add = [&](const std::string& name, const io::TensorInfo& info) {
    if (rules.ignored(name) || info.shape.size() == config.vocab_size * config.d_model) return;
    bytes += info.bytes;
    const bool in_place = info.aligned && (info.dtype == DType::kF32 || info.dtype == DType::kBF16);
    decoded = decoded || (!in_place && info.extents.size() > 1);
  };
  if (!each_with_prefix(files, rules, add))
    for (const auto& file : files.files())
      for (const auto& [name, info] : file->tensors()) add(name, info);
  return {static_cast<int64_t>(bytes), decoded};
}

}  // namespace

wan::ModelConfigs model_configs(const ModelFolder& model) {
  wan::ModelConfigs configs;
  for (const Expert& expert : model.experts) configs.experts.push_back(expert.config);
  configs.text_encoder = model.text_encoder_config;
  configs.vae = model.vae_config;
  configs.stored.transformer = model.experts[0].weights.stored_dtype();
  configs.stored.text_encoder = model.text_encoder.stored_dtype();
  configs.stored.vae = model.vae.stored_dtype();
  if (const io::Checkpoint* files = model.text_encoder.checkpoint())
    configs.text_layers = text_layers_of(*files, model.text_encoder_config);
  for (const Expert& expert : model.experts) {
    if (const io::Checkpoint* files = expert.weights.checkpoint())
      configs.transformer_file_bytes = std::max(configs.transformer_file_bytes, used_bytes(*files, expert.share));
  }
  if (model.image_encoder) {
    configs.image_encoder = model.image_encoder->config;
    configs.stored.image_encoder = model.image_encoder->weights.stored_dtype();
  }
  for (const Expert& expert : model.experts) {
    for (const lora::Lora& lora : expert.loras) {
      // Changes without a matrix product need almost no memory but the sum.
      configs.merge_scratch = std::max({configs.merge_scratch, lora.scratch_elements, int64_t{1}});
    }
  }
  configs.mapped = model.text_encoder.checkpoint() != nullptr;
  configs.takes_pictures = model.kind.image.taken || model.kind.control.taken;
  return configs;
}

std::vector<std::string> use_stored_weights(const GenerateOptions& options, const std::filesystem::path& folder,
                                            wan::ModelConfigs& configs) {
  std::vector<std::string> missing;
  const std::map<std::string, std::filesystem::path> files = named_files(options);
  for (const auto& [name, class_name] : components_with_weights(folder)) {
    auto& stored = configs.stored;
    DType& dtype = name == "text_encoder"    ? stored.text_encoder
                   : name == "image_encoder" ? stored.image_encoder
                   : name == "vae"           ? stored.vae
                                             : stored.transformer;
    const auto named = files.find(name);
    const std::filesystem::path path = named != files.end() ? named->second : folder / name;
    const bool there = named != files.end() ? is_there(path) : io::Checkpoint::exists(path, stem_of(name));
    const std::optional<io::Checkpoint> file =
        there ? weights_there(path, name, named != files.end()) : std::optional<io::Checkpoint>();
    if (!file) {
      if (there || named != files.end()) missing.push_back(fmt::format("{}={}", name, path.string()));
      dtype = published_dtype(JsonObject::load(config_of(folder, files, name)));
      continue;
    }
    dtype = main_dtype(*file);
    if (name == "text_encoder") configs.text_layers = text_layers_of(*file, configs.text_encoder);
    if (!name.starts_with("transformer")) continue;
    const wan::TransformerConfig& used = name == "transformer" ? configs.experts.front() : configs.experts.back();
    const auto whole = wan::TransformerConfig::load(config_of(folder, files, name));
    configs.transformer_file_bytes =
        std::max(configs.transformer_file_bytes, used_bytes(*file, wan::share_of(used, whole)));
  }
  return missing;
}

int64_t transformer_file_bytes(const wan::ModelConfigs& configs) {
  if (configs.transformer_file_bytes > 0) return configs.transformer_file_bytes;
  int64_t bytes = 0;
  for (const wan::TransformerConfig& config : configs.experts) {
    const io::TensorTotals totals = io::totals(wan::transformer_tensors(config));
    bytes = std::max(bytes, static_cast<int64_t>(totals.bytes(configs.stored.transformer)));
  }
  return bytes;
}

int64_t converted_file_bytes(const wan::ModelConfigs& configs, const io::NumberFormatInfo& format) {
  int64_t bytes = 0;
  for (const wan::TransformerConfig& config : configs.experts) {
    const io::TensorTable tensors = wan::transformer_tensors(config);
    bytes = std::max(bytes, converted_bytes(tensors, format, configs.stored.transformer));
  }
  return bytes;
}

}  // namespace zoetrope::pipeline
