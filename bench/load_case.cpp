// `bench load`: from a checkpoint in the page cache to the end of the transformer's first forward, minus the time of a
// forward by itself; and the same from a cache of converted weights.
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/folders.h"
#include "bench/cases.h"
#include "bench/forward_inputs.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/peak.h"
#include "bench/published.h"
#include "bench/statistics.h"
#include "bench/words.h"
#include "io/weights/weight_cache.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/transformer.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

constexpr size_t kCopyBytes = size_t{256} << 20;  // far larger than any cache
constexpr double kCopySeconds = 0.3;
constexpr int64_t kRepeats = 3;
constexpr double kNever = 1e300;
constexpr int64_t kTokensOneWay = 4;  // a forward of 16 tokens reads every weight and costs little else
constexpr int64_t kTextRows = 16, kImageRows = 16;
constexpr size_t kReadBytes = size_t{4} << 20;

// Reads the files once, so that the disk is not timed.
void warm_page_cache(const io::Checkpoint& checkpoint) {
  std::vector<char> buffer(kReadBytes);
  for (const auto& weights : checkpoint.files()) {
    std::ifstream file(weights->path(), std::ios::binary);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
    }
  }
}

class LoadBench : private ModelCase {
 public:
  LoadBench(const LoadSettings& settings, const Progress& progress, Outcome& outcome)
      : ModelCase("load:", settings.published, progress, outcome), settings_(settings) {
    table_.columns = {{"start", "start"},
                      {"dtype", "dtype"},
                      {"layers", "layers"},
                      {"threads", "threads"},
                      {"bytes", "read", Format::kBytes},
                      {"seconds_min", "least", Format::kSeconds},
                      {"seconds_median", "median", Format::kSeconds},
                      {"gbs", "GB/s", Format::kOneDecimal},
                      {"copy_gbs", "copy GB/s", Format::kOneDecimal},
                      {"fraction", "of copy", Format::kPercent},
                      {"of_first", "of the first", Format::kPercent},
                      {"forward_seconds", "forward", Format::kSeconds, true},
                      {"peak_bytes", "resident", Format::kBytes},
                      {"weight_bytes", "weights", Format::kBytes},
                      {"rel_l2", "rel L2", Format::kScientific},
                      {"tolerance", "tolerance", Format::kScientific, true},
                      {"note", ""}};
  }

  Section run() {
    copy_ = measure_copy_bandwidth(threads_, kCopyBytes, kCopySeconds);
    if (const io::Checkpoint* files = model_.checkpoint(Part::kTransformer)) {
      say("reading the files once");
      warm_page_cache(*files);
    }
    std::optional<MadeFolder> caches;
    if (!settings_.weight_cache.empty()) caches.emplace(settings_.weight_cache);
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      first_ = 0;
      forward_ = kNever;
      measure("first", dtype, "", repeats());
      measure_on_use(dtype);
      if (settings_.weight_cache.empty()) continue;
      // A folder per dtype, so that the start that writes it is the first to use it.
      const std::string folder = (std::filesystem::path(settings_.weight_cache) / dtype).string();
      measure("writes cache", dtype, folder, 1);
      measure("from cache", dtype, folder, repeats());
    }
    Section section;
    section.name = "load";
    section.title = "Loading the transformer";
    section.note =
        "From an opened checkpoint in the page cache to the end of a first forward of 16 tokens, minus the least time "
        "of a second such forward, preparation included. GB/s are of the tensors as stored, also where the cache is "
        "read instead; 'of copy' compares them with what all threads copy in memory (memcpy, measured before). 'writes "
        "cache' is a start with an empty cache (written while the forward runs), 'from cache' one with a full cache; "
        "'of the first' compares with a start without a cache. 'on use' converts all blocks as a forward does with "
        "weights_in_memory=as_stored, without computing: what that adds to a step at most.";
    section.table = std::move(table_);
    return section;
  }

 private:
  struct Start {
    double seconds = 0;  // to the end of the first forward
    double forward = 0;  // a second one
  };

  int64_t repeats() const { return settings_.published.repeat > 0 ? settings_.published.repeat : kRepeats; }

  std::shared_ptr<const wan::TransformerWeights> load(DType type, const std::shared_ptr<io::WeightCache>& cache) const {
    const auto source = model_.source(Part::kTransformer, threads_);
    return wan::TransformerWeights::load(
        model_.transformer(), std::make_shared<io::Weights>(source, io::Weights::Loading{cache, {}, 0, {}}), type);
  }

  Start start_once(DType type, const std::shared_ptr<io::WeightCache>& cache, Verdict* verdict) {
    const wan::TransformerConfig& config = model_.transformer();
    const auto& patch = config.patch_size;
    const Shape latent{patch[0], kTokensOneWay * patch[1], kTokensOneWay * patch[2]};
    const int64_t tokens = kTokensOneWay * kTokensOneWay;
    Start start;
    with_whole_sequence(config, 1, tokens, type, {}, stream_, [&](attention::ContextAttention& attention) {
      const ForwardInputs inputs(config, {.latent = latent, .text_rows = kTextRows, .image_rows = kImageRows}, type);
      const Tensor velocity(type, {1, tokens, config.patch_output_dim()});
      std::shared_ptr<const wan::TransformerWeights> weights;
      const auto forward = [&] {
        wan::Transformer transformer(weights, stream_);
        transformer.prepare(latent, 1, attention);
        inputs.give(transformer);
        transformer.forward(inputs.latents, std::vector<float>{500}, velocity);
      };
      const double begin = wall_seconds();
      weights = load(type, cache);
      forward();
      const double middle = wall_seconds();
      forward();
      const double end = wall_seconds();
      start.forward = end - middle;
      start.seconds = middle - begin;
      if (verdict != nullptr) {
        *verdict = check_transformer(weights, model_.source(Part::kTransformer, threads_), stream_);
        if (verdict->passed()) verdict->finite = degenerate(velocity).empty();
      }
    });
    return start;
  }

  // Random weights are float32; of a file that is named, all of it.
  int64_t stored_bytes() const {
    const io::Checkpoint* files = model_.checkpoint(Part::kTransformer);
    if (!settings_.published.transformer.empty()) return pipeline::checkpoint_bytes(*files);
    int64_t bytes = 0;
    for (const io::TensorSpec& spec : wan::transformer_tensors(model_.transformer())) {
      bytes += files != nullptr ? static_cast<int64_t>(files->info(spec.name).bytes)
                                : spec.shape.size() * static_cast<int64_t>(sizeof(float));
    }
    return bytes;
  }

  // A pass over all blocks without weights in memory: each is converted, ahead of its use, and released.
  void measure_on_use(const std::string& dtype) {
    const DType type = pipeline::dtype_of(dtype);
    const wan::TransformerConfig& config = model_.transformer();
    forget_peak_resident();
    const auto weights = wan::TransformerWeights::load(
        config,
        std::make_shared<io::Weights>(model_.source(Part::kTransformer, threads_),
                                      io::Weights::Loading{nullptr, {}, io::Weights::kFewestParts, {}}),
        type, {}, threads_);
    const auto pass = [&] {
      const double begin = wall_seconds();
      for (size_t block = 0; block < weights->blocks.size(); ++block) static_cast<void>(weights->use_block(block));
      return wall_seconds() - begin;
    };
    pass();  // the order is learned
    std::vector<double> seconds;
    for (int64_t i = 0; i < repeats(); ++i) {
      say(fmt::format("conversion on use, {}, {} of {}", dtype, i + 1, repeats()));
      seconds.push_back(pass());
    }
    const int64_t bytes = stored_bytes();
    table_.begin_row({"on use", dtype, config.num_layers, int64_t{threads_}, bytes});
    table_.set("seconds_min", minimum(seconds));
    table_.set("seconds_median", median(seconds));
    table_.set("gbs", static_cast<double>(bytes) / median(seconds) * 1e-9);
    table_.set("copy_gbs", copy_ * 1e-9);
    table_.set("fraction", static_cast<double>(bytes) / median(seconds) / copy_);
    table_.set("of_first", median(seconds) / first_);
    table_.set("peak_bytes", peak_resident_bytes());
    table_.set("weight_bytes", model_.weight_bytes(Part::kTransformer, type));
  }

  // `folder`: of the cache; empty: none.
  void measure(const char* name, const std::string& dtype, const std::string& folder, int64_t repeats) {
    const DType type = pipeline::dtype_of(dtype);
    std::vector<double> seconds, forwards;
    Verdict verdict;
    int64_t peak = 0;
    std::string note;  // the cache's
    for (int64_t i = 0; i < repeats; ++i) {
      say(fmt::format("{} start, {}, {} of {}", name, dtype, i + 1, repeats));
      forget_peak_resident();
      const bool last = i + 1 == repeats;
      std::shared_ptr<io::WeightCache> cache;
      if (!folder.empty()) cache = std::make_shared<io::WeightCache>(folder, "transformer");
      const Start start = start_once(type, cache, last ? &verdict : nullptr);
      if (cache != nullptr) {
        cache->finish();  // the next one finds it
        for (const std::string& said : cache->take_notes()) note = said;
      }
      if (!last || repeats == 1) peak = std::max(peak, peak_resident_bytes());  // not with the memory of the check
      seconds.push_back(start.seconds);
      forwards.push_back(start.forward);
    }
    // The least of them all: writing a cache slows the forward that runs at the same time.
    forward_ = std::min(forward_, minimum(forwards));
    for (double& value : seconds) value = std::max(1e-9, value - forward_);
    if (first_ == 0) first_ = median(seconds);
    const int64_t bytes = stored_bytes();
    table_.begin_row({name, dtype, model_.transformer().num_layers, int64_t{threads_}, bytes});
    table_.set("rel_l2", verdict.relative_l2);
    table_.set("tolerance", verdict.tolerance);
    if (!verdict.passed()) {
      ++outcome_.wrong;
      table_.set("note", verdict.note());
      return;
    }
    const double rate = static_cast<double>(bytes) / median(seconds);
    table_.set("seconds_min", minimum(seconds));
    table_.set("seconds_median", median(seconds));
    table_.set("gbs", rate * 1e-9);
    table_.set("copy_gbs", copy_ * 1e-9);
    table_.set("fraction", rate / copy_);
    table_.set("of_first", median(seconds) / first_);
    table_.set("forward_seconds", forward_);
    table_.set("peak_bytes", peak);
    table_.set("weight_bytes", model_.weight_bytes(Part::kTransformer, type));
    if (!note.empty()) table_.set("note", note);
  }

  const LoadSettings& settings_;
  double copy_ = 0;  // bytes per second
  // Of the current dtype:
  double first_ = 0;         // seconds of a start without a cache
  double forward_ = kNever;  // the least of a forward by itself
  Table table_;
};

}  // namespace

OptionSet describe(LoadSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options
      .text("transformer", settings.published.transformer,
            "single file with the transformer's weights, safetensors or GGUF, instead of the folder's")
      .text("weight_cache", settings.weight_cache,
            "a folder for converted weights: a start that writes it and starts from it are measured, too");
  return options;
}

std::vector<Section> bench_load(const LoadSettings& settings, const Progress& progress, Outcome& outcome) {
  return {LoadBench(settings, progress, outcome).run()};
}

}  // namespace zoetrope::bench
