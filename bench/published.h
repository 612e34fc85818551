// A model that `bench model`, `vae`, `text` and `load` measure: its configs and where its parameters come from. And
// what these cases share: their peak, their rows, their figures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_data.h"
#include "bench/cases.h"
#include "bench/peak.h"
#include "bench/report.h"
#include "io/weights.h"
#include "models/encoders/config.h"
#include "models/wan/config.h"
#include "pipeline/model_folder.h"

namespace zoetrope::bench {

// The component of a model that a case needs.
enum class Part : uint8_t { kTransformer, kVae, kTextEncoder };

class Published {
 public:
  // Throws Error where there is no such model. `layers` > 0 keeps that many of the first layers of the transformer and
  // of the text encoder; more than the model has is an Error.
  static Published open(const PublishedSettings& settings);

  const wan::TransformerConfig& transformer() const { return transformer_; }
  const wan::VaeConfig& vae() const { return vae_; }
  const encoders::TextEncoderConfig& text_encoder() const { return text_encoder_; }
  // {frames, rows, columns} of a video's latents. Throws Error where the model has no videos of that size.
  Shape latent_of(int64_t height, int64_t width, int64_t num_frames) const;
  const io::Checkpoint* checkpoint(Part part) const { return weights(part).checkpoint(); }  // null: random weights
  std::shared_ptr<const io::WeightSource> source(Part part, int threads) const { return weights(part).source(threads); }

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
int threads_of(const PublishedSettings& settings);

// Bytes of the listed parameters in the form that is computed with: `dtype`, or float32 where the table says so.
int64_t parameter_bytes(const Published& model, Part part, DType dtype);

// The instruction set whose multiply-adds are the fastest that this machine has for data of `dtype`. For bf16 that may
// be float32's, where bf16 products are slower than converting.
Isa fastest_isa(DType dtype, ThreadTeam& team);

// Of one row: how long, what part of the peak, how much memory.
struct Figures {
  std::vector<double> seconds, fractions, peaks;
  int64_t peak_bytes = 0;
};
// Runs run() as time_beside_peak() does. `check`, after the first run, says what is wrong with its result (empty:
// nothing); then nothing is timed and `note` says it. The memory of the check is not counted.
struct Timed {
  Figures figures;
  std::string note;
};
Timed time_case(Isa isa, ThreadTeam& team, double flop, int64_t repeats, const std::function<void()>& run,
                const std::function<std::string()>& check);

double peak_of(const Timed& timed);  // median, operations a second

// Columns that all of these cases end in: seconds_min … tolerance, note.
void add_common_columns(std::vector<Column>& columns);
void set_common(const Table& table, std::vector<Cell>& row, const Timed& timed, double flop, int64_t weight_bytes,
                const Verdict& verdict);

}  // namespace zoetrope::bench
