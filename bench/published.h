// A model that `bench model`, `vae`, `text`, `load` and `shared` measure: its configs and where its weights come from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/cases.h"
#include "device/stream.h"
#include "io/weights/weights.h"
#include "models/encoders/config.h"
#include "models/wan/config.h"
#include "pipeline/model_files/model_folder.h"
#include "trace/trace.h"

namespace zoetrope::bench {

enum class Part : uint8_t { kTransformer, kVae, kTextEncoder };

class Published {
 public:
  // Throws Error where there is no such model. `layers` > 0 keeps only the first layers of the transformer and of the
  // text encoder; more than the model has is an Error.
  static Published open(const PublishedSettings& settings);

  const wan::TransformerConfig& transformer() const { return transformer_; }
  const wan::VaeConfig& vae() const { return vae_; }
  const encoders::TextEncoderConfig& text_encoder() const { return text_encoder_; }
  // {frames, rows, columns} of a video's latents. Throws Error where the transformer, or the VAE by itself, cannot make
  // a video of that size.
  Shape latent_of(int64_t height, int64_t width, int64_t num_frames, Part part = Part::kTransformer) const;
  const io::Checkpoint* checkpoint(Part part) const { return weights(part).checkpoint(); }  // null: random weights
  std::shared_ptr<const io::WeightSource> source(Part part, int threads) const { return weights(part).source(threads); }
  // Of the weights as they are computed with: in `dtype`, or float32 where the tensor table says so.
  int64_t weight_bytes(Part part, DType dtype) const;

 private:
  explicit Published(pipeline::ModelFolder folder) : folder_(std::move(folder)) {}
  const pipeline::ComponentWeights& weights(Part part) const;

  pipeline::ModelFolder folder_;
  wan::TransformerConfig transformer_;
  wan::VaeConfig vae_;
  encoders::TextEncoderConfig text_encoder_;
};

OptionSet describe_published(
    PublishedSettings& settings,
    const char* repeats = "timed repeats; 0: five, or three where one takes more than a second");

// The base of the cases: the model, and a stream that records spans if `traced`.
class ModelCase {
 public:
  ModelCase(const ModelCase&) = delete;
  ModelCase& operator=(const ModelCase&) = delete;

 protected:
  ModelCase(std::string name, const PublishedSettings& settings, const Progress& progress, Outcome& outcome,
            bool traced = false);
  void say(const std::string& what) const;

  std::string name_;
  const PublishedSettings& published_;
  const Progress& progress_;
  Outcome& outcome_;
  Published model_;
  int threads_;
  trace::Trace trace_;
  Stream stream_;
};

}  // namespace zoetrope::bench
