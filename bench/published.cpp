#include "bench/published.h"

#include "base/error.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/vae/vae_layout.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kMostThreads = 4096, kMostLayers = 1000;

}  // namespace

Published Published::open(const PublishedSettings& settings) {
  pipeline::GenerateOptions options;
  options.model = settings.model;
  options.weights = settings.weights == "random" ? WeightSource::kRandom : WeightSource::kCheckpoint;
  options.weights_seed = settings.weights_seed;
  options.transformer = settings.transformer;
  if (settings.layers > 0) options.layers = settings.layers;
  Published model(pipeline::ModelFolder::open(options));
  model.transformer_ = model.folder_.experts.front().config;
  model.vae_ = model.folder_.vae_config;
  model.text_encoder_ = model.folder_.text_encoder_config;
  model.text_encoder_.num_layers = std::min(model.text_encoder_.num_layers, options.layers.value_or(kMostLayers));
  return model;
}

const pipeline::ComponentWeights& Published::weights(Part part) const {
  if (part == Part::kVae) return folder_.vae;
  return part == Part::kTransformer ? folder_.experts.front().weights : folder_.text_encoder;
}

Shape Published::latent_of(int64_t height, int64_t width, int64_t num_frames, Part part) const {
  const int64_t spatial = vae_.spatial_factor(), temporal = vae_.temporal_factor();
  const auto require = [](const char* key, int64_t value, int64_t unit, int64_t rest) {
    if (value % unit != rest)
      fail("{}={} is not a size of this model: {} times a whole number{} is", key, value, unit,
           rest == 0 ? "" : " plus 1");
  };
  const bool patches = part == Part::kTransformer;
  require("height", height, spatial * (patches ? transformer_.patch_size[1] : 1), 0);
  require("width", width, spatial * (patches ? transformer_.patch_size[2] : 1), 0);
  require("num_frames", num_frames, temporal, temporal == 1 ? 0 : 1);
  return {1 + (num_frames - 1) / temporal, height / spatial, width / spatial};
}

int64_t Published::weight_bytes(Part part, DType dtype) const {
  return io::resident_bytes(part == Part::kTransformer ? wan::transformer_tensors(transformer_)
                            : part == Part::kVae       ? wan::vae_decoder_tensors(vae_)
                                                       : encoders::text_encoder_tensors(text_encoder_),
                            dtype);
}

OptionSet describe_published(PublishedSettings& settings, const char* repeats) {
  OptionSet options;
  options
      .text("model", settings.model,
            "a checkpoint folder in the published layout or, with weights=random, a name of configs/")
      .choice("weights", settings.weights, {"random", "checkpoint"},
              "random: every tensor is generated, no file is read; checkpoint: those of the folder")
      .integer("weights_seed", settings.weights_seed, {0, INT64_MAX}, "seed of the random weights; unset: 0")
      .integer("layers", settings.layers, {0, kMostLayers}, "only the first layers of the model, this many; 0: all")
      .text("dtype", settings.dtype, "bf16, float32 or all; `bench model` and `bench pipeline` also take int8")
      .integer("threads", settings.threads, {0, kMostThreads}, "compute threads; 0: all that this process may use")
      .integer("repeat", settings.repeat, {0, 10000}, repeats);
  return options;
}

ModelCase::ModelCase(std::string name, const PublishedSettings& settings, const Progress& progress, Outcome& outcome,
                     bool traced)
    : name_(std::move(name)),
      published_(settings),
      progress_(progress),
      outcome_(outcome),
      model_(Published::open(settings)),
      threads_(settings.threads > 0 ? static_cast<int>(settings.threads) : available_threads()),
      stream_(threads_, {traced ? &trace_ : nullptr, 0, trace::kComputeLane}) {}

void ModelCase::say(const std::string& what) const {
  if (progress_) progress_(name_ + " " + what);
}

}  // namespace zoetrope::bench
