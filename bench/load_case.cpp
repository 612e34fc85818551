// `bench load`: from a checkpoint in the page cache to a transformer that has done its first forward, without what that
// forward costs by itself; and the same again from a cache of converted weights.
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/folders.h"
#include "bench/cases.h"
#include "bench/forward_inputs.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/published.h"
#include "bench/statistics.h"
#include "bench/words.h"
#include "io/weight_cache.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/transformer.h"
#include "pipeline/dtype_name.h"

namespace zoetrope::bench {
namespace {

constexpr size_t kCopyBytes = size_t{256} << 20;  // far beyond any cache
constexpr double kCopySeconds = 0.3;
constexpr int64_t kRepeats = 3;
constexpr double kNever = 1e300;
constexpr int64_t kTokensOneWay = 4;  // a forward of 16 tokens: it touches every weight and costs little else
constexpr int64_t kTextRows = 16, kImageRows = 16;
constexpr size_t kReadBytes = size_t{4} << 20;

// Reads the files once, so that what is timed is not the disk.
void warm_page_cache(const io::Checkpoint& checkpoint) {
  std::vector<char> buffer(kReadBytes);
  for (const std::filesystem::path& path : checkpoint.files()) {
    std::ifstream file(path, std::ios::binary);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
    }
  }
}

class LoadBench {
 public:
  LoadBench(const LoadSettings& settings, const Progress& progress, Outcome& outcome)
      : settings_(settings),
        progress_(progress),
        outcome_(outcome),
        model_(Published::open(settings.published)),
        threads_(threads_of(settings.published)),
        stream_(threads_) {
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

  void run() {
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
      if (settings_.weight_cache.empty()) continue;
      // Of its own dtype, so that the one that writes is the only one.
      const std::string folder = (std::filesystem::path(settings_.weight_cache) / dtype).string();
      measure("writes cache", dtype, folder, 1);
      measure("from cache", dtype, folder, repeats());
    }
  }

  Section section();

 private:
  struct Start {
    double seconds = 0;  // to the end of the first forward
    double forward = 0;  // a second one
  };

  void say(const std::string& what) const {
    if (progress_) progress_("load: " + what);
  }
  int64_t repeats() const { return settings_.published.repeat > 0 ? settings_.published.repeat : kRepeats; }

  std::shared_ptr<const wan::TransformerWeights> load(DType type, const std::shared_ptr<io::WeightCache>& cache) const {
    const auto source = model_.source(Part::kTransformer, threads_);
    return wan::TransformerWeights::load(model_.transformer(),
                                         std::make_shared<io::Weights>(source, io::Weights::Loading{cache, {}}), type);
  }

  Start start_once(DType type, const std::shared_ptr<io::WeightCache>& cache, Verdict* verdict) {
    const wan::TransformerConfig& config = model_.transformer();
    const auto& patch = config.patch_size;
    const Shape latent{patch[0], kTokensOneWay * patch[1], kTokensOneWay * patch[2]};
    const int64_t tokens = kTokensOneWay * kTokensOneWay;
    Start start;
    with_whole_sequence(config, tokens, type, stream_, [&](attention::ContextAttention& attention) {
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

  // Weights by formula are float32.
  int64_t stored_bytes() const {
    const io::Checkpoint* files = model_.checkpoint(Part::kTransformer);
    int64_t bytes = 0;
    for (const io::TensorSpec& spec : wan::transformer_tensors(model_.transformer())) {
      bytes += files != nullptr ? static_cast<int64_t>(files->info(spec.name).bytes)
                                : spec.shape.size() * static_cast<int64_t>(sizeof(float));
    }
    return bytes;
  }

  // `folder`: of the cache, empty: none.
  void measure(const char* name, const std::string& dtype, const std::string& folder, int64_t repeats) {
    const DType type = pipeline::dtype_of(dtype);
    std::vector<double> seconds, forwards;
    Verdict verdict;
    int64_t peak = 0;
    std::string note;  // what the cache says of itself
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
      if (!last || repeats == 1) peak = std::max(peak, peak_resident_bytes());  // the check takes memory of its own
      seconds.push_back(start.seconds);
      forwards.push_back(start.forward);
    }
    // The least of them all: a cache that is being written slows the forward that runs meanwhile.
    forward_ = std::min(forward_, minimum(forwards));
    for (double& value : seconds) value = std::max(1e-9, value - forward_);
    if (first_ == 0) first_ = median(seconds);
    const int64_t bytes = stored_bytes();
    std::vector<Cell> row = {name, dtype, model_.transformer().num_layers, int64_t{threads_}, bytes};
    row.resize(table_.columns.size());
    const auto set = [&](const char* key, Cell value) { table_.cell(row, key) = std::move(value); };
    set("rel_l2", verdict.relative_l2);
    set("tolerance", verdict.tolerance);
    if (!verdict.passed()) {
      ++outcome_.wrong;
      set("note", verdict.note());
    } else {
      const double rate = static_cast<double>(bytes) / median(seconds);
      set("seconds_min", minimum(seconds));
      set("seconds_median", median(seconds));
      set("gbs", rate * 1e-9);
      set("copy_gbs", copy_ * 1e-9);
      set("fraction", rate / copy_);
      set("of_first", median(seconds) / first_);
      set("forward_seconds", forward_);
      set("peak_bytes", peak);
      set("weight_bytes", parameter_bytes(model_, Part::kTransformer, type));
      if (!note.empty()) set("note", note);
    }
    table_.add(std::move(row));
  }

  const LoadSettings& settings_;
  const Progress& progress_;
  Outcome& outcome_;
  Published model_;
  int threads_;
  Stream stream_;
  double copy_ = 0;  // bytes a second
  // Of the dtype at hand:
  double first_ = 0;         // seconds of a start without a cache
  double forward_ = kNever;  // the least of a forward by itself
  Table table_;
};

Section LoadBench::section() {
  Section section;
  section.name = "load";
  section.title = "Loading the transformer";
  section.note =
      "From an opened checkpoint that lies in the page cache to the end of a first forward of 16 tokens, less the "
      "least time "
      "of a second such forward, its preparation included. GB/s are of the tensors as stored, whatever is read "
      "instead; 'of copy' compares them with what all threads copy in memory (memcpy, measured before). 'writes cache' "
      "is a "
      "start that finds an empty cache (it is written while the forward goes on), 'from cache' one that finds it full; "
      "'of the first' compares with a start without.";
  section.table = std::move(table_);
  return section;
}

}  // namespace

OptionSet describe(LoadSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.text("weight_cache", settings.weight_cache,
               "a folder for converted weights: a start that writes them and starts from them are measured too");
  return options;
}

std::vector<Section> bench_load(const LoadSettings& settings, const Progress& progress, Outcome& outcome) {
  LoadBench bench(settings, progress, outcome);
  bench.run();
  return {bench.section()};
}

}  // namespace zoetrope::bench
