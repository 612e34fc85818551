#include "pipeline/model_files/model_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/run_files.h"
#include "io/weights/random_weights.h"
#include "io/weights/tensor_file.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "pipeline/model_files/comfy_folder.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/gguf_tokenizer.h"
#include "pipeline/model_files/int8_budget.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/model_files/original_repository.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWithWeights[] = {"transformer", "transformer_2", "text_encoder", "vae", "image_encoder"};

Component component_with(std::string name, io::TensorTable tensors, io::FileRules files) {
  std::string stem = stem_of(name);
  io::TensorTable used = tensors;
  return {std::move(name), std::move(stem), std::move(tensors), std::move(used), std::move(files)};
}

Component transformer_component(std::string name, const wan::TransformerConfig& config) {
  return component_with(std::move(name), wan::transformer_tensors(config), wan::transformer_files());
}

Component vae_component(const wan::VaeConfig& config) {
  return component_with("vae", wan::vae_tensors(config), wan::vae_files());
}

Component text_component(const encoders::TextEncoderConfig& config) {
  return component_with("text_encoder", encoders::text_encoder_tensors(config), encoders::text_encoder_files());
}

Component image_component(const encoders::ClipVisionConfig& config, encoders::ClipTensors which) {
  Component component =
      component_with("image_encoder", encoders::clip_vision_tensors(config, which), encoders::clip_vision_files());
  component.used = encoders::clip_vision_tensors(config, encoders::ClipTensors::kUsed);
  return component;
}

template <typename T>
void require_value(const JsonObject& json, const char* key, const T& needed) {
  const T said = json.get<T>(key, needed);
  if (said != needed)
    fail("{}: {} is {}, but must be {}, as in the model that these weights are for", json.where(), key, said, needed);
}

// Of a transformer's config as its authors publish it, as far as it says what `config` has.
void check_original_config(const fs::path& file, const wan::TransformerConfig& config) {
  const auto json = JsonObject::load(file);
  require_value(json, "dim", config.inner_dim());
  require_value(json, "num_heads", config.num_attention_heads);
  require_value(json, "num_layers", config.num_layers);
  require_value(json, "ffn_dim", config.ffn_dim);
  require_value(json, "freq_dim", config.freq_dim);
  require_value(json, "eps", config.eps);
  require_value(json, "cross_attn_norm", config.cross_attn_norm);
  require_value(json, "qk_norm", true);
  require_value(json, "vace_layers", config.vace_layers);
}

// Files that are named one by one, by their component.
using NamedFiles = std::map<std::string, fs::path>;

// Which part of a model is used, and where it comes from.
struct ModelSource {
  fs::path folder;
  NamedFiles files = {};
  std::optional<uint64_t> seed = {};   // of random weights; without one they are read
  std::optional<int64_t> layers = {};  // of each transformer; unset: all

  fs::path config(const std::string& component) const { return config_of(folder, files, component); }
  // For messages of a transformer: the model's folder, or the config elsewhere.
  std::string where(const std::string& component) const {
    const fs::path file = config(component);
    return (file == config_of(folder, {}, component) ? folder : file).string();
  }

  // `used`: of the component's tensors.
  ComponentWeights open(const Component& component, io::TensorTable used) const {
    if (seed) return {std::move(used), component.name, *seed};
    const auto file = files.find(component.name);
    if (file == files.end()) {
      const fs::path own = folder / component.name;
      if (!io::Checkpoint::exists(own, component.stem)) {
        io::Checkpoint::refuse_shards_alone(own, component.stem);
        fail("{}: holds no weights ({}.safetensors or its index); name their file as {}=FILE", own.string(),
             component.stem, component.name);
      }
      io::Checkpoint checkpoint = io::Checkpoint::open(own, component.stem);
      const auto stored = io::checkpoint_source(checkpoint);
      io::require_tensors(*stored, used);
      io::refuse_unexpected(*stored, component.tensors, component.files);
      return {std::move(used), std::move(checkpoint)};
    }
    io::Checkpoint checkpoint = open_component(file->second, component);
    io::NamesInFile names = names_of(checkpoint, component, used);
    return {std::move(used), std::move(checkpoint), std::move(names)};
  }

  Expert open_expert(const char* component) const {
    const fs::path described = config(component);
    const auto whole = wan::TransformerConfig::load(described);
    wan::require_supported(whole, described.parent_path().string());
    const auto named = files.find(component);
    if (named != files.end() && has_original_config(named->second))
      check_original_config(named->second / "config.json", whole);
    const wan::TransformerConfig config = layers ? whole.with_layers(*layers) : whole;
    return {config, open(transformer_component(component, whole), wan::transformer_tensors(config)), whole.num_layers,
            wan::share_of(config, whole)};
  }
};

void require_same(const char* what, int64_t a, const std::string& where_a, int64_t b, const std::string& where_b,
                  const fs::path& folder) {
  if (a != b) fail("{}: {} is {} in {} but {} in {}", folder.string(), what, a, where_a, b, where_b);
}

// "transformer/config.json", or where it is instead; with a key or what else is said of it behind.
std::string config_name(const ModelFolder& model, const std::string& component, const char* key = "") {
  const fs::path& file = model.config_files.at(component);
  const fs::path own = fs::path(component) / file.filename();
  return (file == model.folder / own ? own : file).string() + key;
}

// The experts take turns on the same latents, tokens and attention plan: what shapes those must not differ. Depth and
// feed-forward width may.
void require_interchangeable(const ModelFolder& model) {
  const wan::TransformerConfig &first = model.experts[0].config, &second = model.experts[1].config;
  const auto same = [&](const char* what, int64_t a, int64_t b) {
    require_same(what, a, config_name(model, "transformer"), b, config_name(model, "transformer_2"), model.folder);
  };
  same("the number of heads", first.num_attention_heads, second.num_attention_heads);
  same("the head size", first.attention_head_dim, second.attention_head_dim);
  same("the number of control layers", std::ssize(first.vace_layers), std::ssize(second.vace_layers));
  same("the width of an image row", first.image_dim.value_or(0), second.image_dim.value_or(0));
  same("the number of image rows", first.pos_embed_seq_len.value_or(0), second.pos_embed_seq_len.value_or(0));
  same("patch_size[0]", first.patch_size[0], second.patch_size[0]);
  same("patch_size[1]", first.patch_size[1], second.patch_size[1]);
  same("patch_size[2]", first.patch_size[2], second.patch_size[2]);
  same("rope_max_seq_len", first.rope_max_seq_len, second.rope_max_seq_len);
}

// Control layers see two halves of a video as latents, and a mask whose cells are channels.
void require_control_channels(const ModelFolder& model) {
  const wan::TransformerConfig& config = model.experts[0].config;
  const int64_t cell = model.vae_config.scale_factor_spatial;
  require_same("the number of control channels", config.vace_in_channels,
               config_name(model, "transformer", " (vace_in_channels)"), 2 * model.vae_config.z_dim + cell * cell,
               "what " + config_name(model, "vae", " makes (2 z_dim + scale_factor_spatial²)"), model.folder);
}

void require_image_rows(const ModelFolder& model) {
  const wan::TransformerConfig& config = model.experts[0].config;
  const encoders::ClipVisionConfig& encoder = model.image_encoder->config;
  require_same("the width of an image row", *config.image_dim, config_name(model, "transformer", " (image_dim)"),
               encoder.hidden_size, config_name(model, "image_encoder", " (hidden_size)"), model.folder);
  if (!config.pos_embed_seq_len) return;
  constexpr int64_t kPictures = 2;
  require_same("the number of image rows", *config.pos_embed_seq_len,
               config_name(model, "transformer", " (pos_embed_seq_len)"), kPictures * encoder.tokens(),
               config_name(model, "image_encoder", " (of two pictures)"), model.folder);
}

// Of a component, in model_index.json and in its own config.
void require_same_class(const ModelFolder& model, const std::string& component, const std::string& config,
                        const std::string& class_name) {
  const std::string& named = model.pipeline.components.at(component).class_name;
  if (named == class_name) return;
  fail("{}: model_index.json names {} for {}, but {} is of {}; both must name the same class", model.folder.string(),
       named, component, config, class_name);
}

// What one component says of another must be true.
void check_agreement(const ModelSource& source, const ModelFolder& model) {
  require_same_class(model, "scheduler", "scheduler/scheduler_config.json", model.scheduler.class_name);
  for (size_t i = 0; i < model.experts.size(); ++i) {
    const wan::TransformerConfig& config = model.experts[i].config;
    const char* const name = expert_name(static_cast<int>(i));
    require_same_class(model, name, config_name(model, name), config.class_name);
    // Also that it takes as many channels as its kind has: the second expert is of the first one's kind.
    const wan::ModelClass kind = wan::model_class(model.pipeline, config, model.vae_config, source.where(name));
    if (kind.conditioning != model.kind.conditioning) {
      fail("{}: transformer is one for {}, but transformer_2 for {}; experts must be of one kind",
           model.folder.string(), model.kind.name, kind.name);
    }
    require_same("the text width", config.text_dim, config_name(model, name, " (text_dim)"),
                 model.text_encoder_config.d_model, config_name(model, "text_encoder", " (d_model)"), model.folder);
    require_same("the number of latent channels", config.out_channels, config_name(model, name, " (out_channels)"),
                 model.vae_config.z_dim, config_name(model, "vae", " (z_dim)"), model.folder);
  }
  if (model.experts.size() == 2) require_interchangeable(model);
  if (model.kind.conditioning == wan::Conditioning::kControl) require_control_channels(model);
  if (model.image_encoder) require_image_rows(model);
}

// The tower that a transformer with image rows reads; none for others.
std::optional<ImageEncoder> open_image_encoder(const ModelSource& source, const wan::PipelineConfig& pipeline,
                                               const wan::TransformerConfig& transformer) {
  if (!transformer.image_dim) return std::nullopt;
  const fs::path& folder = source.folder;
  for (const char* component : {"image_encoder", "image_processor"}) {
    if (!pipeline.has(component)) {
      fail("{}: component {} is missing, but {} asks for rows of an image encoder (image_dim)",
           (folder / "model_index.json").string(), component, source.config("transformer").string());
    }
  }
  const auto config = encoders::ClipVisionConfig::load(source.config("image_encoder"));
  const auto processor = encoders::ImageProcessorConfig::load(folder / "image_processor" / "preprocessor_config.json");
  const Component component = image_component(config, encoders::ClipTensors::kAll);
  return ImageEncoder{config, processor, source.open(component, component.used)};
}

// What the run will read later is spared by what it writes now.
void note_files(const ModelSource& source, const wan::PipelineConfig& pipeline) {
  for (const auto& [component, description] : pipeline.components) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(source.folder / component, none)) note_input(entry.path());
  }
  for (const auto& [component, file] : source.files) note_input(file);
}

// SentencePiece's model in a tensor, behind any prefix, or what a GGUF file has; nothing in other files.
std::optional<text::Tokenizer> tokenizer_in(const io::TensorFile& file) {
  const auto is_tokenizer = [](const auto& tensor) {
    return ("." + tensor.first).ends_with(std::string(".") + encoders::kTokenizerTensor);
  };
  const auto found = std::ranges::find_if(file.tensors(), is_tokenizer);
  if (found == file.tensors().end()) return gguf_tokenizer(file);
  const std::string& name = found->first;
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes(name)), file.info(name).bytes);
  return text::Tokenizer::from_sentencepiece(bytes, fmt::format("{}: tensor '{}'", file.path().string(), name));
}

// Also of a text encoder's file.
text::Tokenizer load_tokenizer(const fs::path& path) {
  if (!io::has_weight_file_ending(path)) return text::Tokenizer::load(path);
  if (auto tokenizer = tokenizer_in(*io::TensorFile::open(path))) return std::move(*tokenizer);
  fail("tokenizer={}: holds no tokenizer; name tokenizer.json or spiece.model of google/umt5-xxl", path.string());
}

struct NamedTokenizer {
  fs::path path;
  text::Tokenizer tokenizer;
};

// That of config_folder(), which serves models of random weights.
text::Tokenizer stand_in() { return text::Tokenizer::load(config_folder() / "tokenizer"); }

// Of another T5's tokenizer the ids are other words, and no id would be out of range. umT5's have 256000 (spiece.model)
// to 256384 ids for 256384 rows, T5 v1.1's and Flux's 32100: anything between tells them apart.
void require_vocabulary(const std::string& what, const text::Tokenizer& tokenizer, int64_t rows) {
  if (2 * tokenizer.vocab_size() >= rows) return;
  fail(
      "{}: has {} ids, but the text encoder's embedding {} rows, so it is of another model; name tokenizer.json or "
      "spiece.model of google/umt5-xxl as tokenizer=FILE",
      what, tokenizer.vocab_size(), rows);
}

// The one that is named, of the folder, or within the text encoder's file.
NamedTokenizer open_tokenizer(const ModelSource& source, const ComponentWeights& text_encoder, int64_t vocab_size) {
  const auto of_text_encoder = [&](const fs::path& path, text::Tokenizer tokenizer,
                                   const char* key = "") -> NamedTokenizer {
    require_vocabulary(key + path.string(), tokenizer, vocab_size);
    return {path, std::move(tokenizer)};
  };
  const auto named = source.files.find("tokenizer");
  if (named != source.files.end()) return of_text_encoder(named->second, load_tokenizer(named->second), "tokenizer=");
  const fs::path folder = source.folder / "tokenizer";
  if (is_folder(folder)) {
    text::Tokenizer tokenizer = text::Tokenizer::load(folder);
    // A synthesized model has a copy.
    const bool copied = find_config_folder() && tokenizer.vocab_size() == stand_in().vocab_size();
    return copied ? NamedTokenizer{folder, std::move(tokenizer)} : of_text_encoder(folder, std::move(tokenizer));
  }
  if (source.seed) return {config_folder() / "tokenizer", stand_in()};
  if (const io::Checkpoint* checkpoint = text_encoder.checkpoint()) {
    // Not compared: recorded files have one of fewer ids.
    for (const auto& file : checkpoint->files())
      if (auto tokenizer = tokenizer_in(*file)) return {file->path(), std::move(*tokenizer)};
  }
  fail(
      "{}: holds no tokenizer, and neither does the text encoder's file; get tokenizer.json or spiece.model of "
      "google/umt5-xxl and name it as tokenizer=FILE",
      source.folder.string());
}

// Every file that is named must be one of the model.
void require_components(const ModelSource& source, const wan::PipelineConfig& pipeline) {
  for (const auto& [component, file] : source.files) {
    if (pipeline.has(component)) continue;
    fail("{}={}: {} has no such component; leave the key out", component, file.string(),
         (source.folder / "model_index.json").string());
  }
}

ModelFolder open_model(const ModelSource& source) {
  const fs::path& folder = source.folder;
  if (!is_folder(folder)) {
    fail("model: {} is not a folder; name a checkpoint folder in the diffusers layout", folder.string());
  }
  const auto pipeline = model_index(folder);
  require_components(source, pipeline);
  note_files(source, pipeline);
  const auto scheduler = wan::SchedulerConfigFile::load(folder / "scheduler" / "scheduler_config.json");
  std::vector<Expert> experts;
  experts.push_back(source.open_expert("transformer"));
  if (pipeline.has("transformer_2")) experts.push_back(source.open_expert("transformer_2"));
  const auto text_config = encoders::TextEncoderConfig::load(source.config("text_encoder"));
  const auto vae_config = wan::VaeConfig::load(source.config("vae"));
  const wan::ModelClass kind =
      wan::model_class(pipeline, experts.front().config, vae_config, source.where("transformer"));
  const Component text = text_component(text_config), vae = vae_component(vae_config);
  ComponentWeights text_encoder = source.open(text, text.tensors);
  NamedTokenizer tokenizer = open_tokenizer(source, text_encoder, text_config.vocab_size);
  const wan::TransformerConfig model_config = experts.front().config;  // the list moves on below
  ModelFolder model{folder,
                    pipeline,
                    scheduler,
                    std::move(tokenizer.path),
                    std::move(tokenizer.tokenizer),
                    text_config,
                    std::move(text_encoder),
                    std::move(experts),
                    vae_config,
                    source.open(vae, vae.tensors),
                    open_image_encoder(source, pipeline, model_config),
                    kind};
  for (const char* name : kWithWeights)
    if (pipeline.has(name)) model.config_files[name] = source.config(name);
  check_agreement(source, model);
  return model;
}

}  // namespace

wan::PipelineConfig model_index(const fs::path& folder) {
  return wan::PipelineConfig::load(folder / "model_index.json");
}

Component component_of(const std::string& name, const std::string& class_name, const JsonObject& config) {
  if (name == "vae") return vae_component(wan::VaeConfig::from_json(config));
  if (name == "text_encoder") return text_component(encoders::TextEncoderConfig::from_json(config));
  if (name == "image_encoder") {
    const bool tower = class_name == "CLIPVisionModel";
    return image_component(encoders::ClipVisionConfig::from_json(config),
                           tower ? encoders::ClipTensors::kTower : encoders::ClipTensors::kAll);
  }
  ZT_CHECK(name == "transformer" || name == "transformer_2", "{}", name);
  return transformer_component(name, wan::TransformerConfig::from_json(config));
}

std::map<std::string, std::string> components_with_weights(const fs::path& configs) {
  const auto pipeline = model_index(configs);
  const bool reads_pictures =
      wan::TransformerConfig::load(configs / "transformer" / "config.json").image_dim.has_value();
  std::map<std::string, std::string> components;
  for (const char* name : kWithWeights) {
    const bool used = pipeline.has(name) && (reads_pictures || std::string_view(name) != "image_encoder");
    if (used) components[name] = pipeline.components.at(name).class_name;
  }
  return components;
}

DType published_dtype(const JsonObject& config) {
  const auto word = config.get<std::string>("dtype", config.get<std::string>("torch_dtype", "float32"));
  return word == "bfloat16" ? DType::kBF16 : word == "float16" ? DType::kF16 : DType::kF32;
}

DType ComponentWeights::stored_dtype() const {
  if (!checkpoint_) return DType::kF32;
  const auto largest = std::max_element(tensors_.begin(), tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.shape.size() < b.shape.size(); });
  const std::shared_ptr<const io::WeightSource> stored = source(1);
  return stored->info(io::stored_name(*stored, *largest)).dtype.value_or(DType::kF32);
}

std::string ComponentWeights::file_text() const {
  if (!names_) return {};
  const auto stored = io::checkpoint_source(*checkpoint_);
  std::map<std::string, bool> used;  // by the names of the file, where several tensors may be joined
  for (const auto& [name, place] : names_->places) used[place.in_file.name];
  for (const io::TensorSpec& spec : tensors_) {
    const auto place = names_->places.find(spec.name);
    if (place != names_->places.end()) used[place->second.in_file.name] = true;
  }
  std::map<std::string, int64_t> types;
  size_t unused = names_->ignored;
  for (const auto& [name, is_used] : used) {
    ++types[stored->info(name).dtype_name];
    unused += !is_used;
  }
  // The tokenizer is a tensor too, and is read.
  if (checkpoint_->contains(names_->prefix + encoders::kTokenizerTensor)) --unused;
  std::vector<std::string> words;
  for (const auto& [type, count] : types) words.push_back(fmt::format("{} {}", count, type));
  const char* names = !names_->scheme                                  ? "names of the hub's folders"
                      : *names_->scheme == io::NamingScheme::kOriginal ? "names of Wan's own code"
                                                                       : "names of llama.cpp or OpenCLIP";
  std::string text = fmt::format("{}: {}", checkpoint_->place().string(), names);
  if (!names_->prefix.empty()) text += fmt::format(" behind '{}'", names_->prefix);
  text += fmt::format("; {}", fmt::join(words, ", "));
  std::vector<std::string> unread;
  if (names_->other_components > 0) unread.push_back(fmt::format("{} of other components", names_->other_components));
  if (unused > 0) unread.push_back(fmt::format("{} that are not used", unused));
  if (!unread.empty()) text += fmt::format("; tensors not read: {}", fmt::join(unread, ", "));
  return text;
}

std::vector<std::string> ModelFolder::file_lines() const {
  std::vector<std::string> lines;
  const auto add = [&](const char* component, const ComponentWeights& weights) {
    if (const std::string text = weights.file_text(); !text.empty())
      lines.push_back(fmt::format("{} {}", component, text));
  };
  for (size_t i = 0; i < experts.size(); ++i) add(expert_name(static_cast<int>(i)), experts[i].weights);
  add("text_encoder", text_encoder);
  add("vae", vae);
  if (image_encoder) add("image_encoder", image_encoder->weights);
  return lines;
}

std::shared_ptr<const io::WeightSource> ComponentWeights::source(int threads) const {
  std::shared_ptr<const io::WeightSource> plain;
  if (names_) plain = io::named_source(io::checkpoint_source(*checkpoint_, threads), names_);
  else if (checkpoint_) plain = io::checkpoint_source(*checkpoint_, threads);
  else plain = io::random_weights(tensors_, component_, seed_, threads);
  return deltas_.empty() ? plain : io::merged_source(std::move(plain), deltas_, check_finite_);
}

std::optional<double> Expert::int8_error(double guidance) const {
  if (!int8_errors) return std::nullopt;
  return predicted_error(*int8_errors, guidance, config.int8_blocks, attention_limit);
}

std::string Expert::layers_text() const {
  if (config.num_layers == layers_of_model) return fmt::format("{} layers", layers_of_model);
  return fmt::format("{} of {} layers", config.num_layers, layers_of_model);
}

ModelFolder ModelFolder::open(const fs::path& folder, std::optional<int64_t> layers) {
  return open_model({.folder = folder, .layers = layers});
}
ModelFolder ModelFolder::open_random(const fs::path& folder, uint64_t seed, std::optional<int64_t> layers) {
  return open_model({.folder = folder, .seed = seed, .layers = layers});
}
ModelFolder ModelFolder::open_random(const GenerateOptions& options) {
  ModelSource source{.folder = options.model, .seed = 0, .layers = options.layers};
  // The tokenizer of the model counts words as any of its kind, and a key of no component is the run's to refuse.
  const wan::PipelineConfig pipeline = model_index(source.folder);
  if (options.weights != WeightSource::kRandom) source.files = named_files(options);
  std::erase_if(source.files, [&](const auto& file) { return file.first == "tokenizer" || !pipeline.has(file.first); });
  return open_model(source);
}
ModelFolder ModelFolder::open(const GenerateOptions& given) {
  const GenerateOptions options = with_found_files(given);
  const bool random = options.weights == WeightSource::kRandom;
  if (options.weights_seed && !random) {
    fail("weights_seed={}: with weights=checkpoint nothing is made by formula; leave it out, or set weights=random",
         *options.weights_seed);
  }
  ModelSource source{.folder = options.model, .files = named_files(options), .layers = options.layers};
  if (random) {
    if (!source.files.empty()) {
      fail("{}={}: with weights=random no weights are read; leave it out", source.files.begin()->first,
           source.files.begin()->second.string());
    }
    source.seed = static_cast<uint64_t>(options.weights_seed.value_or(0));
  }
  // The configs of a known model, beside files of weights.
  if (!options.transformer.empty() && !options.transformer_2.empty()) {
    require_experts_in_order(options.transformer, options.transformer_2);
  }
  if (options.model.empty()) source.folder = config_folder() / model_of(options.transformer, options.transformer_2);
  else if (random || !source.files.empty()) source.folder = model_or_config(options.model);
  ModelFolder model = open_model(source);
  model.use(options);
  return model;
}

namespace {

// The same blocks of both experts, or those of each with a slash between them.
void use_int8_layers(const std::string& layers, ModelFolder& model) {
  const size_t slash = layers.find('/');
  if (slash != std::string::npos && model.experts.size() != 2)
    fail("int8_layers={}: a slash divides the blocks of two experts, and this model has one; name blocks once", layers);
  for (size_t i = 0; i < model.experts.size(); ++i) {
    const std::string own = slash == std::string::npos ? layers
                            : i == 0                   ? layers.substr(0, slash)
                                                       : layers.substr(slash + 1);
    model.experts[i].config = model.experts[i].config.with_int8(own);
  }
}

}  // namespace

void ModelFolder::use(const GenerateOptions& options) {
  check_budget(options);
  merge_loras(options, *this);
  if (options.dtype == DType::kI8 && options.int8_layers != kChosenLayers) use_int8_layers(options.int8_layers, *this);
  if (spends_measured_errors(options)) spend_budget(options, *this);
}

std::string ModelFolder::int8_layers() const {
  const std::string first = block_ranges(experts.front().config.int8_blocks);
  const std::string last = block_ranges(experts.back().config.int8_blocks);
  return first == last ? first : fmt::format("{}/{}", first, last);
}

}  // namespace zoetrope::pipeline
