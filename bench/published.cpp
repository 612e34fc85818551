#include "bench/published.h"

#include <filesystem>
#include <vector>

#include "base/error.h"
#include "bench/machine.h"
#include "bench/statistics.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kMostThreads = 4096, kMostLayers = 1000;
constexpr double kShortWindow = 0.05;
constexpr double kWindowLimit = 2;  // of the peak beside runs that may take a minute

int64_t shortened(const char* what, int64_t has, int64_t layers) {
  if (layers > has) fail("layers={} is more than the {} has: {}", layers, what, has);
  return layers > 0 ? layers : has;
}

}  // namespace

Published Published::open(const PublishedSettings& settings) {
  GenerateOptions options;
  options.model = settings.model;
  options.weights = settings.weights;
  options.weights_seed = settings.weights_seed;
  Published model(pipeline::ModelFolder::open(options));
  model.transformer_ = model.folder_.experts.front().config;
  model.vae_ = model.folder_.vae_config;
  model.text_encoder_ = model.folder_.text_encoder_config;
  model.transformer_.num_layers = shortened("transformer", model.transformer_.num_layers, settings.layers);
  std::erase_if(model.transformer_.vace_layers, [&](int64_t layer) { return layer >= model.transformer_.num_layers; });
  model.text_encoder_.num_layers =
      std::min(model.text_encoder_.num_layers, settings.layers > 0 ? settings.layers : kMostLayers);
  return model;
}

const pipeline::ComponentWeights& Published::weights(Part part) const {
  if (part == Part::kVae) return folder_.vae;
  return part == Part::kTransformer ? folder_.experts.front().weights : folder_.text_encoder;
}

Shape Published::latent_of(int64_t height, int64_t width, int64_t num_frames) const {
  const int64_t spatial = vae_.spatial_factor(), temporal = vae_.temporal_factor();
  const auto require = [](const char* key, int64_t value, int64_t unit, int64_t rest) {
    if (value % unit != rest)
      fail("{}={} is no size of this model: {} times a whole number{} is", key, value, unit,
           rest == 0 ? "" : " plus 1");
  };
  const auto& patch = transformer_.patch_size;
  require("height", height, spatial * patch[1], 0);
  require("width", width, spatial * patch[2], 0);
  require("num_frames", num_frames, temporal, temporal == 1 ? 0 : 1);
  return {1 + (num_frames - 1) / temporal, height / spatial, width / spatial};
}

OptionSet describe_published(PublishedSettings& settings, const char* repeats) {
  OptionSet options;
  options
      .text("model", settings.model,
            "a checkpoint folder in the published layout or, with weights=random, a name of configs/")
      .choice("weights", settings.weights, {"random", "checkpoint"},
              "random: every tensor by formula, no file is read; checkpoint: those of the folder")
      .integer("weights_seed", settings.weights_seed, {0, INT64_MAX},
               "of the weights that weights=random makes; unset: 0")
      .integer("layers", settings.layers, {0, kMostLayers}, "only the first so many layers of the model; 0: all")
      .text("dtype", settings.dtype, "bf16, float32 or all")
      .integer("threads", settings.threads, {0, kMostThreads}, "compute threads; 0: every one this process has")
      .integer("repeat", settings.repeat, {0, 10000}, repeats);
  return options;
}

int threads_of(const PublishedSettings& settings) {
  return settings.threads > 0 ? static_cast<int>(settings.threads) : available_threads();
}

int64_t parameter_bytes(const Published& model, Part part, DType dtype) {
  const io::TensorTable table = part == Part::kTransformer ? wan::transformer_tensors(model.transformer())
                                : part == Part::kVae       ? wan::vae_decoder_tensors(model.vae())
                                                           : encoders::text_encoder_tensors(model.text_encoder());
  return io::held_bytes(table, dtype);
}

Isa fastest_isa(DType dtype, ThreadTeam& team) {
  Isa best = Isa::kAvx2;
  double most = 0;
  for (const Isa isa : all_isas()) {
    const bool takes_bf16 = isa == Isa::kAmxBf16 || isa == Isa::kAvx512Bf16;
    if (!isa_available(isa) || (takes_bf16 && dtype != DType::kBF16)) continue;
    const double flops = measure_peak(isa, team, kShortWindow).flops;
    if (flops > most) {
      most = flops;
      best = isa;
    }
  }
  return best;
}

Timed time_case(Isa isa, ThreadTeam& team, double flop, int64_t repeats, const std::function<void()>& run,
                const std::function<std::string()>& check) {
  struct Wrong {};
  Timed timed;
  Figures& figures = timed.figures;
  const PairedOptions options{.repeats = static_cast<int>(repeats), .window_limit = kWindowLimit};
  try {
    const std::vector<PairedRepeat> paired = time_beside_peak(isa, team, flop, options, run, [&] {
      figures.peak_bytes = peak_resident_bytes();
      timed.note = check();
      if (!timed.note.empty()) throw Wrong();
      forget_peak_resident();
    });
    for (const PairedRepeat& repeat : paired) {
      figures.seconds.push_back(repeat.seconds);
      figures.fractions.push_back(repeat.fraction);
      figures.peaks.push_back(repeat.peak.flops);
    }
    figures.peak_bytes = std::max(figures.peak_bytes, peak_resident_bytes());
  } catch (const Wrong&) {
  }
  return timed;
}

double peak_of(const Timed& timed) { return median(timed.figures.peaks); }

void add_common_columns(std::vector<Column>& columns) {
  const Column common[] = {{"seconds_min", "least", Format::kSeconds},
                           {"seconds_median", "median", Format::kSeconds},
                           {"gflop", "GFLOP", Format::kOneDecimal},
                           {"gflops", "GFLOP/s", Format::kOneDecimal},
                           {"peak_gflops", "peak", Format::kOneDecimal},
                           {"fraction", "of peak", Format::kPercent},
                           {"peak_bytes", "resident", Format::kBytes},
                           {"weight_bytes", "weights", Format::kBytes},
                           {"above_weights_bytes", "above", Format::kBytes},
                           {"rel_l2", "rel L2", Format::kScientific},
                           {"tolerance", "tolerance", Format::kScientific, true},
                           {"note", ""}};
  columns.insert(columns.end(), std::begin(common), std::end(common));
}

void set_common(const Table& table, std::vector<Cell>& row, const Timed& timed, double flop, int64_t weight_bytes,
                const Verdict& verdict) {
  const auto set = [&](const char* key, Cell value) { table.cell(row, key) = std::move(value); };
  const Figures& figures = timed.figures;
  set("gflop", flop * 1e-9);
  set("weight_bytes", weight_bytes);
  set("rel_l2", verdict.relative_l2);
  set("tolerance", verdict.tolerance);
  if (!timed.note.empty()) set("note", timed.note);
  if (figures.seconds.empty()) return;
  set("seconds_min", minimum(figures.seconds));
  set("seconds_median", median(figures.seconds));
  set("gflops", flop / minimum(figures.seconds) * 1e-9);
  set("peak_gflops", median(figures.peaks) * 1e-9);
  set("fraction", median(figures.fractions));
  set("peak_bytes", figures.peak_bytes);
  set("above_weights_bytes", std::max<int64_t>(0, figures.peak_bytes - weight_bytes));
}

}  // namespace zoetrope::bench
