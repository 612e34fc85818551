// `bench pipeline`: prompt to frames with every strategy × batch size through the library's Model, each with its timing
// summary. A model is opened once per strategy, and its weights stay from one batch to the next.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "zoetrope/model.h"

#include "attention/strategy.h"
#include "base/error.h"
#include "base/folders.h"
#include "bench/cases.h"
#include "bench/published.h"
#include "bench/statistics.h"
#include "bench/strategies.h"
#include "bench/words.h"
#include "pipeline/settings/dtype_word.h"
#include "pipeline/settings/recipes.h"
#include "pipeline/stages/phases.h"
#include "tensor/relative_l2.h"

namespace zoetrope::bench {
namespace {

using comm::Communicator;

constexpr int64_t kMostRanks = 256;
constexpr int kMostBatch = 64;
constexpr int kTracedBatch = 2;
constexpr const char* kNoRecipe = "none";
constexpr int64_t kSteps = 4;
// The published six, then ours.
const std::vector<std::string> kStrategies = {"flash",
                                              "ring",
                                              "ulysses",
                                              "ulysses_ring",
                                              "ulysses_ring_custom_fixed_m",
                                              "ulysses_ring_custom_bidir",
                                              "ring+ring_direction=two_way",
                                              "ulysses_custom_fixed_m",
                                              "ulysses+ulysses_attention_chunks=2"};

constexpr const char* kNote =
    "From the prompt to frames in memory: text encoder, denoising, VAE and host formatting, which goes on while the "
    "VAE decodes. Weights of the transformer and the VAE were loaded and a step was run before (of two experts the "
    "first's); the text encoder reads its own in every run. Columns are of the fastest repeat; 'of singles' is its "
    "time over as many times that of a batch of 1. 'rel L2' is how far the latents are from those of the first row "
    "that made the same videos, at most; no limit is set. flash over ranks gathers keys and values.";

struct Part {
  const char *key, *heading, *phase;
};
constexpr Part kParts[] = {{"text_encoder_seconds", "text encoder", pipeline::phases::kTextEncoder},
                           {"denoise_seconds", "denoise", pipeline::phases::kDenoise},
                           {"vae_seconds", "VAE decode", pipeline::phases::kDecode},
                           {"formatting_seconds", "formatting", pipeline::phases::kDecodeMeanwhile}};

double seconds_of(const Video& video, std::string_view phase) {
  for (const TimedPhase& timed : video.phases)
    if (timed.phase == phase) return timed.seconds;
  return 0;
}
double whole(const Video& video) { return seconds_of(video, "Inference"); }

class PipelineBench {
 public:
  PipelineBench(const PipelineSettings& settings, Communicator* world, const Progress& progress,
                const std::function<bool()>& cancelled, Outcome& outcome)
      : settings_(settings),
        world_(world),
        progress_(progress),
        cancelled_(cancelled),
        outcome_(outcome),
        strategies_(parse_strategies(settings.strategies, kStrategies)),
        batches_(sorted(parse_counts("batch", settings.batch, kMostBatch, kMostBatch))) {
    if (!settings.traces.empty()) {
      if (std::find(batches_.begin(), batches_.end(), kTracedBatch) == batches_.end())
        fail("traces={}: traces are of batch {}, but batch={} leaves it out; add it, or leave traces out",
             settings.traces, kTracedBatch, settings.batch);
      if (leads()) traces_.emplace(settings.traces);
    }
    const std::vector<std::string> dtypes = choose_dtypes("dtype", settings.published.dtype, true);
    if (dtypes.size() > 1)
      fail("dtype={}: name one for the transformer, bf16, float32 or int8", settings.published.dtype);
    dtype_ = pipeline::dtype_of(dtypes.front());
    if (settings.recipe != kNoRecipe && settings.num_inference_steps)
      fail("num_inference_steps={}: recipe={} has steps of its own; leave one of them out",
           *settings.num_inference_steps, settings.recipe);
    if (settings.recipe != kNoRecipe) pipeline::describe_options(recipe_).set("recipe", settings.recipe, kCommandLine);
    open({}).describe(requests(1, 0).front());  // refuses the model and the size, whatever the strategy is
    if (settings.strategies != "all")
      for (const NamedStrategy& named : strategies_)
        if (const std::string why = refusal(open(named.keys)); !why.empty()) fail("{}", why);
    table_.columns = {{"strategy", "strategy"},
                      {"batch", "B"},
                      {"ranks", "ranks"},
                      {"layout", "layout", Format::kText, true, true},
                      {"seconds_min", "least", Format::kSeconds},
                      {"seconds_median", "median", Format::kSeconds},
                      {"per_video", "per video", Format::kSeconds},
                      {"of_singles", "of singles", Format::kPercent}};
    for (const Part& part : kParts) table_.columns.push_back({part.key, part.heading, Format::kSeconds});
    for (const Column& column :
         {Column{"peak_bytes", "resident", Format::kBytes}, Column{"planned_bytes", "planned", Format::kBytes, true},
          Column{"bytes_sent", "sent", Format::kBytes}, Column{"rel_l2", "rel L2", Format::kScientific},
          Column{"note", "note"}})
      table_.columns.push_back(column);
    phases_.columns = {
        {"strategy", "strategy"}, {"batch", "B"}, {"phase", "phase"}, {"seconds", "seconds", Format::kSeconds}};
  }

  void run() {
    for (const NamedStrategy& named : strategies_) {
      Model model = open(named.keys);
      const std::string unfit = refusal(model);
      bool refused = !unfit.empty();  // these ranks cannot do it
      if (world_ != nullptr) world_->broadcast(0, &refused, sizeof refused, "refusal");
      if (refused) {
        for (const int batch : batches_) note(named, batch, unfit);
        continue;
      }
      if (!measured([&] { warm_up(named, model); },
                    [&](const std::string& why) {
                      for (const int batch : batches_) note(named, batch, why);
                    }))
        continue;
      single_.reset();
      for (const int batch : batches_)
        measured([&] { run_case(named, model, batch); }, [&](const std::string& why) { note(named, batch, why); });
    }
  }

  std::vector<Section> sections();

 private:
  static std::vector<int> sorted(std::vector<int> batches) {  // a batch of 1 comes first: others are compared with it
    std::sort(batches.begin(), batches.end());
    return batches;
  }
  bool leads() const { return world_ == nullptr || world_->rank() == 0; }
  int64_t ranks() const { return world_ != nullptr ? world_->size() : settings_.ranks; }

  Model open(const attention::StrategyOptions& strategy) const {
    ModelOptions options;
    const PublishedSettings& published = settings_.published;
    options.weights = published.weights == "random" ? WeightSource::kRandom : WeightSource::kCheckpoint;
    options.weights_seed = published.weights_seed;
    if (published.layers > 0) options.layers = published.layers;
    options.keep_weights = KeepWeights::kAll;
    options.dtype = dtype_;
    options.text_encoder_dtype = pipeline::dtype_of(settings_.text_encoder_dtype);
    options.vae_dtype = pipeline::dtype_of(settings_.vae_dtype);
    if (world_ == nullptr) options.ranks = settings_.ranks;
    if (published.threads > 0) options.threads = published.threads;
    options.comm_timeout = settings_.comm_timeout;
    options.strategy = strategy;
    if (!attention::names_topology(strategy)) options.data_parallelism = 1;  // as next to a named topology
    return Model::open(published.model, options);
  }

  // `take`: runs differ in their prompts, so that none has the embeddings of the one before.
  std::vector<Request> requests(int batch, int64_t take) const {
    std::vector<Request> all(static_cast<size_t>(batch));
    for (size_t video = 0; video < all.size(); ++video) {
      Request& request = all[video];
      request = recipe_;
      request.prompt = fmt::format("A red cat runs across the market at dawn, video {}, take {}.", video, take);
      request.negative_prompt = "grey, blurred";
      request.height = settings_.height;
      request.width = settings_.width;
      request.num_frames = settings_.num_frames;
      request.num_inference_steps = settings_.num_inference_steps.value_or(kSteps);
      request.seed = static_cast<int64_t>(video);
    }
    return all;
  }

  // Why these ranks cannot do this strategy; empty where they can.
  std::string refusal(const Model& model) const {
    std::string why;
    try {
      model.describe(requests(1, 0).front());
    } catch (const Error& error) {
      why = error.what();
    }
    return why;
  }

  std::vector<Video> generate(Model& model, const std::vector<Request>& all) {
    Callbacks callbacks;
    callbacks.cancelled = cancelled_;
    return world_ == nullptr ? model.generate(all, {}, callbacks) : model.generate(*world_, all, {}, callbacks);
  }

  void say(const NamedStrategy& named, const std::string& what) const {
    if (progress_ && leads()) progress_(fmt::format("{}, {}", named.name, what));
  }

  // Whether `work` ended without an Error on every rank; one is noted, for the other cases can go on.
  bool measured(const std::function<void()>& work, const std::function<void(const std::string&)>& refused) {
    std::string why;
    try {
      work();
    } catch (const Error& error) {
      if (cancelled_ && cancelled_()) throw;
      why = error.what();
    }
    bool failed = !why.empty();
    if (world_ != nullptr) failed = world_->all_reduce_max(failed ? 1 : 0) > 0;
    if (!failed) return true;
    if (why.empty()) why = "another rank ended with an error";
    outcome_.add_unmeasured(why);
    refused(why);
    return false;
  }

  void warm_up(const NamedStrategy& named, Model& model) {
    say(named, "loading weights");
    std::vector<Request> one = requests(1, -1);
    one.front().num_inference_steps = 1;
    one.front().sigmas.clear();
    generate(model, one);
  }

  void run_case(const NamedStrategy& named, Model& model, int batch) {
    std::vector<Video> firsts;  // the first video of each repeat, which has what is said of the whole run
    double error = 0;
    const int64_t repeats = std::max<int64_t>(1, settings_.published.repeat);
    for (int64_t take = 0; take < repeats; ++take) {
      say(named, fmt::format("batch {}, run {} of {}", batch, take + 1, repeats));
      std::vector<Video> videos = generate(model, requests(batch, take));
      if (take == 0) error = compare(videos);
      firsts.push_back(std::move(videos.front()));
    }
    if (!settings_.traces.empty() && batch == kTracedBatch) {  // recording costs a little
      say(named, "tracing");
      std::vector<Request> traced = requests(batch, repeats);
      traced.front().trace = (std::filesystem::path(settings_.traces) / (named.name + ".json")).string();
      generate(model, traced);
    }
    if (leads()) add(named, batch, firsts, error);
  }

  // The largest relative L2 of the latents to those of the first row that made the same video.
  double compare(std::vector<Video>& videos) {
    double largest = 0;
    for (size_t video = 0; video < videos.size(); ++video) {
      if (video == latents_.size()) latents_.push_back(std::move(videos[video].latents));
      else largest = std::max(largest, relative_l2(videos[video].latents, latents_[video]));
    }
    return largest;
  }

  void add(const NamedStrategy& named, int batch, const std::vector<Video>& firsts, double error) {
    const Video& fastest = *std::min_element(firsts.begin(), firsts.end(),
                                             [](const Video& a, const Video& b) { return whole(a) < whole(b); });
    const double seconds = whole(fastest);
    if (batch == 1) single_ = seconds;
    table_.begin_row({named.name, int64_t{batch}, ranks(), fastest.layout});
    table_.set("seconds_min", seconds);
    table_.set("seconds_median", median(each(firsts, whole)));
    table_.set("per_video", seconds / batch);
    if (single_) table_.set("of_singles", seconds / (batch * *single_));
    for (const Part& part : kParts) table_.set(part.key, seconds_of(fastest, part.phase));
    table_.set("peak_bytes", fastest.memory.back().peak_bytes);
    table_.set("planned_bytes", fastest.memory.back().planned_bytes);
    table_.set("bytes_sent", fastest.bytes_sent);
    table_.set("rel_l2", error);
    if (const std::string text = attention::strategy_note(named.keys); !text.empty()) table_.set("note", text);
    for (const TimedPhase& phase : fastest.phases)
      phases_.add({named.name, int64_t{batch}, phase.phase, phase.seconds});
    bars_[named.name][batch] = seconds / batch;
  }

  void note(const NamedStrategy& named, int batch, const std::string& why) {
    table_.begin_row({named.name, int64_t{batch}, ranks()});
    table_.set("note", why);
  }

  const PipelineSettings& settings_;
  Communicator* world_;
  const Progress& progress_;
  const std::function<bool()>& cancelled_;
  Outcome& outcome_;
  DType dtype_ = DType::kBF16;
  pipeline::GenerateOptions recipe_;  // what every request begins with
  const std::vector<NamedStrategy> strategies_;
  const std::vector<int> batches_;
  std::optional<MadeFolder> traces_;
  std::optional<double> single_;  // seconds of a batch of 1 with the strategy that is measured
  std::vector<Tensor> latents_;   // of each video, by the first row that made it
  Table table_, phases_;
  std::map<std::string, std::map<int, double>> bars_;  // strategy, batch: seconds per video
};

std::vector<Section> PipelineBench::sections() {
  Section runs, phases;
  runs.name = "pipeline";
  runs.title = "Whole runs";
  runs.note = fmt::format("{}: {} x {}, {} frames, {}. {}", settings_.published.model, settings_.width,
                          settings_.height, settings_.num_frames,
                          settings_.recipe == kNoRecipe
                              ? fmt::format("{} steps", settings_.num_inference_steps.value_or(kSteps))
                              : fmt::format("recipe {}", settings_.recipe),
                          kNote);
  BarPlot plot;
  plot.title = "Seconds per video by batch size";
  plot.y_label = "seconds";
  for (const int batch : batches_) plot.groups.push_back(fmt::format("batch {}", batch));
  std::optional<std::pair<double, std::string>> fastest;
  for (const NamedStrategy& named : strategies_) {
    const auto found = bars_.find(named.name);
    if (found == bars_.end()) continue;
    BarPlot::Series series{named.name, {}};
    for (const int batch : batches_) {
      const auto at = found->second.find(batch);
      series.values.push_back(at == found->second.end() ? 0 : at->second);
      if (at != found->second.end() && (!fastest || at->second < fastest->first))
        fastest = {at->second, fmt::format("per video: {}, batch {}", named.name, batch)};
    }
    plot.series.push_back(series);
  }
  if (fastest) runs.highlights = {{format_cell(fastest->first, Format::kSeconds), fastest->second}};
  if (plot.series.size() > kMostSeries) runs.note += fmt::format(" The plot shows the first {} rows.", kMostSeries);
  plot.series.resize(std::min(plot.series.size(), kMostSeries));  // a colour each
  if (!plot.series.empty()) runs.bar_plots = {plot};
  runs.table = std::move(table_);
  phases.name = "pipeline_phases";
  phases.title = "Timing summaries";
  phases.note = "The phases of the run of each row, as the timing summary of a run names them.";
  phases.table = std::move(phases_);
  return {std::move(runs), std::move(phases)};
}

}  // namespace

OptionSet describe(PipelineSettings& settings) {
  std::vector<std::string> recipes = pipeline::recipe_names();
  recipes.insert(recipes.begin(), kNoRecipe);
  OptionSet options = describe_published(settings.published, "timed runs of each batch; one at least");
  options
      .text("strategies", settings.strategies,
            "rows: all, or names of attention= with the keys that refine them, as ring+ring_direction=open")
      .text("batch", settings.batch, "batch sizes: videos that are denoised together")
      .integer("height", settings.height, {16, 16384}, "pixels, a multiple of 16")
      .integer("width", settings.width, {16, 16384}, "pixels, a multiple of 16")
      .integer("num_frames", settings.num_frames, {1, 4093}, "frames, 4k + 1")
      .integer("num_inference_steps", settings.num_inference_steps, {1, 1000},
               "denoising steps; unset: 4, or those of the recipe")
      .choice("recipe", settings.recipe, recipes,
              "a recipe of `zoetrope generate`, with its steps, schedule and guidance")
      .dtype("text_encoder_dtype", settings.text_encoder_dtype, "dtype of the text encoder")
      .dtype("vae_dtype", settings.vae_dtype, "dtype of the VAE")
      .integer("ranks", settings.ranks, {1, kMostRanks},
               "number of ranks, each a thread or more; under mpirun always its ranks")
      .number("comm_timeout", settings.comm_timeout, {0.01, 1e7}, "seconds that any wait for another rank may last")
      .text("traces", settings.traces, "a folder for a Perfetto trace of each strategy, for batch 2 only");
  return options;
}

std::vector<Section> bench_pipeline(const PipelineSettings& settings, Communicator* world, const Progress& progress,
                                    const std::function<bool()>& cancelled, Outcome& outcome) {
  PipelineBench bench(settings, world, progress, cancelled, outcome);
  bench.run();
  return bench.sections();
}

}  // namespace zoetrope::bench
