// A checkpoint folder, opened and checked: configs, tokenizer, names and shapes of every tensor. No
// weights are read yet, so whatever is wrong with a folder is said before anything long begins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/weights/checkpoint.h"
#include "io/weights/merged_source.h"
#include "io/weights/tensor_table.h"
#include "io/weights/weights.h"
#include "models/encoders/config.h"
#include "models/lora/lora.h"
#include "models/wan/config.h"
#include "models/wan/model_class.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/model_files/int8_calibration.h"
#include "pipeline/settings/generate_options.h"
#include "text/tokenizer.h"

namespace zoetrope::pipeline {

// A component that has weights. `class_name` is that of model_index.json, `config` the component's own.
Component component_of(const std::string& name, const std::string& class_name, const JsonObject& config);

// The components with weights that a run of the model with these configs reads, with their classes.
std::map<std::string, std::string> components_with_weights(const std::filesystem::path& configs);

// Of an image encoder in a file of its own, where the projection may be there or not.
inline constexpr const char* kClassOfImageEncoder = "CLIPVisionModelWithProjection";

// model_index.json of a folder. Throws Error where it has none or a broken one.
wan::PipelineConfig model_index(const std::filesystem::path& folder);

// What a component's config says that its weights are published as (text and image encoders), else F32.
DType published_dtype(const JsonObject& config);

// Where the parameters of one component come from: files, or formulas.
class ComponentWeights {
 public:
  ComponentWeights(io::TensorTable tensors, io::Checkpoint checkpoint)
      : tensors_(std::move(tensors)), checkpoint_(std::move(checkpoint)) {}
  // Of files with other names.
  ComponentWeights(io::TensorTable tensors, io::Checkpoint checkpoint, io::NamesInFile names)
      : tensors_(std::move(tensors)),
        checkpoint_(std::move(checkpoint)),
        names_(std::make_shared<const io::NamesInFile>(std::move(names))) {}
  // Random, as io/weights/random_weights.h computes them.
  ComponentWeights(io::TensorTable tensors, std::string component, uint64_t seed)
      : tensors_(std::move(tensors)), component_(std::move(component)), seed_(seed) {}

  // What is used of the component.
  const io::TensorTable& tensors() const { return tensors_; }
  // The dtype of the largest tensor in the files: small ones are stored in others. Quantised ones are read as F32,
  // which formulas compute too.
  DType stored_dtype() const;
  // Reads large tensors by `threads` threads.
  std::shared_ptr<const io::WeightSource> source(int threads) const;
  // Adds changes to the values that source() gives. `check_finite`: as io::merged_source.
  void merge(const io::WeightDeltas& deltas, bool check_finite) {
    lora::append(deltas_, deltas);
    check_finite_ = check_finite;
  }
  // The seed of random weights; empty where they are read from files.
  std::optional<uint64_t> random_seed() const { return checkpoint_ ? std::optional<uint64_t>() : seed_; }
  // Of a file that is named: what it is called, whose names it has, how its tensors are stored, and which are not read.
  std::string file_text() const;
  // The files, or null where there are none.
  const io::Checkpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }

 private:
  io::TensorTable tensors_;
  std::optional<io::Checkpoint> checkpoint_;
  std::shared_ptr<const io::NamesInFile> names_;  // in the checkpoint; null: the tensors' own
  std::string component_;
  uint64_t seed_ = 0;
  io::WeightDeltas deltas_;
  bool check_finite_ = true;  // of the sums
};

inline const char* expert_name(int expert) { return expert == 0 ? "transformer" : "transformer_2"; }

struct Expert {
  wan::TransformerConfig config;  // of what is used of it
  ComponentWeights weights;
  int64_t layers_of_model = 0;         // at least config.num_layers
  double share = 1;                    // of the parameters in its files, with fewer layers
  std::vector<lora::Lora> loras = {};  // merged into the weights
  // With int8_layers=auto or a budget: what was measured of it, and the limit for its attention.
  std::optional<Int8Errors> int8_errors = {};
  AttentionLimit attention_limit = {};

  // What its blocks and attention in int8 are predicted to change the velocity by, relative L2; none without
  // int8_errors.
  std::optional<double> int8_error(double guidance) const;
  std::string layers_text() const;  // "40 layers", "2 of 40 layers"
};

struct ImageEncoder {
  encoders::ClipVisionConfig config;
  encoders::ImageProcessorConfig processor;
  ComponentWeights weights;
};

struct ModelFolder {
  std::filesystem::path folder;
  wan::PipelineConfig pipeline;
  wan::SchedulerConfigFile scheduler;
  std::filesystem::path tokenizer_folder;
  text::Tokenizer tokenizer;
  encoders::TextEncoderConfig text_encoder_config;
  ComponentWeights text_encoder;
  std::vector<Expert> experts;  // transformer, and transformer_2 of two-expert models
  wan::VaeConfig vae_config;
  ComponentWeights vae;
  std::optional<ImageEncoder> image_encoder;  // where the transformer reads its rows
  wan::ModelClass kind = {};
  std::optional<double> attention_int8_limit = {};  // with int8_layers=auto or a budget, as that chose it
  std::map<std::string, std::filesystem::path> config_files = {};  // of components with weights, as config_of() says

  // All throw Error for the first thing that is missing, broken or not supported. `layers`: only the first of each
  // transformer; unset: all.
  static ModelFolder open(const std::filesystem::path& folder, std::optional<int64_t> layers = {});
  // With random weights: needs the configs only, and takes the tokenizer that ships with the program where the folder
  // has none.
  static ModelFolder open_random(const std::filesystem::path& folder, uint64_t seed = 0,
                                 std::optional<int64_t> layers = {});
  // With random weights, and the configs that a run of these options has: files that are not here count as the model's.
  static ModelFolder open_random(const GenerateOptions& options);
  // As the options `model`, `weights`, `weights_seed`, `layers`, those of files of components, and of LoRA files say;
  // in a folder of ComfyUI files are found as with_found_files() says.
  static ModelFolder open(const GenerateOptions& given);

  // Of an opened model, what else options say of its weights: LoRA files, and which blocks are multiplied in int8.
  // Throws Error where they do not fit the model, or where a choice of blocks lacks its measurement or budget.
  void use(const GenerateOptions& options);

  // A line for each component whose file is named.
  std::vector<std::string> file_lines() const;

  // The blocks that are multiplied in int8, as the key int8_layers says them; empty where none are.
  std::string int8_layers() const;
};

}  // namespace zoetrope::pipeline
