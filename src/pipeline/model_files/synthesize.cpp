#include "pipeline/model_files/synthesize.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/atomic_folder.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "io/weights/in_parts.h"
#include "io/weights/random_weights.h"
#include "io/weights/safetensors_shards.h"
#include "models/encoders/tensor_tables.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using Entry = io::SafetensorsStream::Entry;

constexpr int64_t kPiece = int64_t{8} << 20;  // elements that are made and written at a time
constexpr uint64_t kSpareBytes = 16 << 20;    // for everything that is not weights

// To be written.
struct NewComponent : Component {
  std::map<std::string, std::string> config_changes;  // JSON text by key
  DType dtype;

  std::vector<Entry> entries() const {
    std::vector<Entry> all;
    for (const io::TensorSpec& spec : tensors) all.push_back({spec.name, spec.dtype(dtype), spec.shape, nullptr});
    return all;
  }
};

uint64_t bytes_of(const NewComponent& component) {
  uint64_t bytes = 0;
  for (const Entry& entry : component.entries()) bytes += entry.bytes();
  return bytes;
}

class Writer {
 public:
  Writer(const NewComponent& component, const SynthesizeOptions& options, const SynthesizeCallbacks& callbacks,
         AtomicFolder& out)
      : component_(component),
        callbacks_(callbacks),
        shards_(out, component.name, component.stem, component.entries()),
        threads_(comm::process_threads(options.threads)),
        source_(io::random_weights(component.tensors, component.name, static_cast<uint64_t>(options.seed))) {}

  void write() {
    tell();
    for (const Entry& entry : shards_.entries()) write(entry);
    shards_.finish();
  }

 private:
  void tell() const {
    stop_if_cancelled(callbacks_.cancelled);
    if (callbacks_.progress) callbacks_.progress(component_.name, done_, static_cast<int64_t>(shards_.bytes()));
  }

  void write(const Entry& entry) {
    const int64_t size = entry.shape.size();
    for (int64_t begin = 0; begin < size; begin += kPiece) {
      const int64_t count = std::min(kPiece, size - begin);
      const TensorView piece(buffer_.data<void>(), entry.dtype, {count});
      io::in_parts(count, threads_, [&](IndexRange part) {
        source_->read_range(entry.name, {begin + part.begin, begin + part.end}, piece.slice(0, part.begin, part.end));
      });
      shards_.write(piece.raw(), piece.bytes());
      done_ += static_cast<int64_t>(piece.bytes());
      tell();
    }
  }

  const NewComponent& component_;
  const SynthesizeCallbacks& callbacks_;
  io::SafetensorsShards shards_;
  int threads_;
  std::shared_ptr<const io::FormulaSource> source_;
  int64_t done_ = 0;
  Tensor buffer_ = Tensor::uninitialized(DType::kF32, {kPiece});
};

std::set<std::string> chosen_components(const std::string& text) {
  const std::set<std::string> legal{"transformer", "text_encoder", "vae", "tokenizer", "image_encoder"};
  std::set<std::string> chosen;
  for (const std::string_view word : split_terminated(text, ',')) {
    if (legal.count(std::string(word)) == 0) {
      fail("components={}: '{}' is none of {}", text, word, fmt::join(legal, ", "));
    }
    chosen.emplace(word);
  }
  return chosen;
}

std::vector<NewComponent> list_components(const SynthesizeOptions& options, const ModelFolder& model) {
  const std::set<std::string> chosen = chosen_components(options.components);
  std::vector<NewComponent> components;
  const auto add = [&](Component component, std::map<std::string, std::string> changes, DType dtype) {
    components.push_back({std::move(component), std::move(changes), dtype});
  };
  if (chosen.count("transformer") != 0) {
    const char* names[] = {"transformer", "transformer_2"};
    for (size_t i = 0; i < model.experts.size(); ++i) {
      const auto& config = model.experts[i].config;
      std::map<std::string, std::string> changes{{"num_layers", fmt::to_string(config.num_layers)}};
      if (config.vace()) changes["vace_layers"] = fmt::format("[{}]", fmt::join(config.vace_layers, ", "));
      const fs::path file = model.folder / names[i] / "config.json";
      const auto changed = JsonObject::parse(json_with(file, changes), file.string());
      add(component_of(names[i], config.class_name, changed), std::move(changes), dtype_of(options.dtype));
    }
  }
  if (chosen.count("text_encoder") != 0) {
    encoders::TextEncoderConfig config = model.text_encoder_config;
    if (const std::optional<int64_t>& layers = options.text_layers) {
      if (*layers > config.num_layers) fail("text_layers={}: the model has only {} layers", *layers, config.num_layers);
      config.num_layers = *layers;
    }
    const DType dtype = dtype_of(options.text_dtype);
    add({"text_encoder", kTextEncoderStem, encoders::text_encoder_tensors(config)},
        {{"num_layers", fmt::to_string(config.num_layers)},
         {"torch_dtype", dtype == DType::kBF16 ? "\"bfloat16\"" : "\"float32\""}},
        dtype);
  }
  if (chosen.count("vae") != 0) add({"vae", kDiffusersStem, model.vae.tensors()}, {}, DType::kF32);
  if (model.image_encoder && chosen.count("image_encoder") != 0) {
    add({"image_encoder", kTextEncoderStem, encoders::clip_vision_tensors(model.image_encoder->config)}, {},
        DType::kBF16);  // as published
  }
  return components;
}

}  // namespace

OptionSet describe_options(SynthesizeOptions& o) {
  OptionSet set;
  set.text("model", o.model, "folder with the model's configs, or a name from configs/")
      .text("out", o.out, "folder to write; it must not exist yet")
      .integer("layers", o.layers, {1, 1000}, "layers of the transformer; unset: all")
      .integer("text_layers", o.text_layers, {1, 1000}, "layers of the text encoder; unset: all")
      .integer("seed", o.seed, {0, INT64_MAX}, "seed of the weights, the weights_seed of generate with weights=random")
      .dtype("dtype", o.dtype, "dtype of the transformer's file; float32, as most are published")
      .dtype("text_dtype", o.text_dtype, "dtype of the text encoder's file; Wan 2.2 publishes bf16, Wan 2.1 float32")
      .text("components", o.components, "components to write: transformer, text_encoder, vae, tokenizer, image_encoder")
      .integer("threads", o.threads, {1, 4096}, "compute threads; unset: all cores")
      .alias("weights_seed", "seed");
  return set;
}

int64_t synthesize(const SynthesizeOptions& options, const SynthesizeCallbacks& callbacks) {
  if (options.model.empty())
    fail("model: name a folder with a model's configs, or one of {}", fmt::join(config_names(), ", "));
  if (options.out.empty()) fail("out: name the folder to write, as out=FOLDER");
  const fs::path from = model_or_config(options.model);
  const ModelFolder model = ModelFolder::open_random(from, static_cast<uint64_t>(options.seed), options.layers);
  const std::vector<NewComponent> components = list_components(options, model);
  uint64_t bytes = 0;
  for (const NewComponent& component : components) bytes += bytes_of(component);

  AtomicFolder out(options.out);
  if (out.free_bytes() < bytes + kSpareBytes) {
    fail(
        "out={}: {:.3f} GB are needed, but the disk has {:.3f} GB left; fewer layers, components or dtype=bf16 need "
        "less",
        options.out, static_cast<double>(bytes) * 1e-9, static_cast<double>(out.free_bytes()) * 1e-9);
  }
  for (const char* file : {"model_index.json", "scheduler/scheduler_config.json"}) {
    out.write(file, read_file(from / file));
  }
  for (const NewComponent& component : components) {
    const fs::path config = fs::path(component.name) / "config.json";
    out.write(config, json_with(from / config, component.config_changes));
    Writer(component, options, callbacks, out).write();
  }
  if (model.image_encoder) {
    const fs::path processor = fs::path("image_processor") / "preprocessor_config.json";
    out.write(processor, read_file(from / processor));
  }
  if (chosen_components(options.components).count("tokenizer") != 0) {
    for (const auto& entry : fs::directory_iterator(model.tokenizer_folder)) {
      if (entry.is_regular_file()) {
        out.write(fs::path("tokenizer") / entry.path().filename(), read_file(entry.path()));
      }
    }
  }
  out.commit();
  return static_cast<int64_t>(bytes);
}

}  // namespace zoetrope::pipeline
