#include "pipeline/run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "zoetrope/version.h"

#include "attention/strategy.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/index_range.h"
#include "base/words.h"
#include "comm/gather_trace.h"
#include "comm/launcher.h"
#include "io/media/video.h"
#include "pipeline/checks/forward_checks.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/model_files/int8_budget.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/memory_here.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/rank_plan.h"
#include "pipeline/planning/run_words.h"
#include "pipeline/planning/step_cache_settings.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/predicted_report.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/run_settings.h"
#include "pipeline/short_summary.h"
#include "tensor/relative_l2.h"

namespace zoetrope::pipeline {
namespace {

using parallel::ParallelLayout;

// What makes the run again, as a shell takes it.
std::string command_text(const GenerateOptions& options, int64_t seed) {
  std::map<std::string, std::string> settings = changed_settings(options);
  if (options.output.empty()) settings.erase("output");  // the caller has the frames
  if (options.seed < 0) settings["seed"] = fmt::to_string(seed);
  std::string text = "zoetrope generate";
  for (const auto& [key, value] : settings) text += fmt::format(" {}", shell_word(fmt::format("{}={}", key, value)));
  return text;
}

// How far the velocities of a run are off those of another with the same steps, the furthest of any step and video. Of
// every eighth value: fifty steps of a clip of 720p would else take a gigabyte.
class VelocityComparison {
 public:
  Observer keep() {
    return [this](int64_t, std::string_view name, const TensorView& value) {
      if (name == "velocity") steps_.push_back(sampled(value));
    };
  }
  Observer compare() {
    return [this](int64_t step, std::string_view name, const TensorView& value) {
      if (name != "velocity") return;
      const Tensor sample = sampled(value), other = std::move(steps_.at(static_cast<size_t>(step)));
      for (int64_t v = 0; v < value.extent(0); ++v) {
        const double off = relative_l2(sample.view().slice(0, v, v + 1), other.view().slice(0, v, v + 1));
        if (!(off <= off_)) off_ = off;  // NaN, too
      }
      ++compared_;
    };
  }
  // Nothing where some steps were not compared: a run that goes on from a journal has only those that are left.
  std::optional<double> off() const {
    return compared_ > 0 && compared_ == steps_.size() ? std::optional(off_) : std::nullopt;
  }

 private:
  static constexpr int64_t kStride = 8;

  // [videos, C, T, h, w] F32, contiguous: [videos, values].
  static Tensor sampled(const TensorView& value) {
    const int64_t videos = value.extent(0), values = value.size() / videos;
    Tensor sample(DType::kF32, {videos, ceil_div(values, kStride)});
    for (int64_t v = 0; v < videos; ++v)
      for (int64_t i = 0; i < sample.extent(1); ++i)
        sample.data<float>()[v * sample.extent(1) + i] = value.data<const float>()[v * values + i * kStride];
    return sample;
  }

  std::vector<Tensor> steps_;  // of the first segment; empty when compared
  size_t compared_ = 0;
  double off_ = 0;
};

// Keeps the frames: [F, H, W, 3] U8.
class FramesInMemory final : public FrameSink {
 public:
  explicit FramesInMemory(Tensor& frames) : frames_(frames) {}
  void add_frame(const uint8_t* rgb) override {
    const TensorView frame = frames_.view().select(0, count_++);
    std::memcpy(frame.raw(), rgb, frame.bytes());
  }
  void finish() override {}

 private:
  Tensor& frames_;
  int64_t count_ = 0;
};

// Throws Error for a key in which a video differs from the first of its batch, except those that are free.
void check_alike(const GenerateOptions& first, const GenerateOptions& other, size_t number) {
  GenerateOptions a = first, b = other;
  for (GenerateOptions* options : {&a, &b}) {
    for (std::string* text : {&options->journal, &options->resume, &options->prompt, &options->negative_prompt,
                              &options->latents, &options->output, &options->dump, &options->trace})
      text->clear();
    options->seed = 0;
  }
  const auto wanted = describe_options(a).settings(), given = describe_options(b).settings();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == given[i]) continue;
    fail(
        "video {} of a batch has {}={} where the first has {}; only prompt, negative_prompt, seed and latents may "
        "differ",
        number, given[i].first, given[i].second, wanted[i].second);
  }
}

std::vector<GenerateOptions> checked_batch(const std::vector<GenerateOptions>& videos, const ModelFolder& model) {
  if (videos.empty()) fail("requests: there is no video to make");
  std::vector<GenerateOptions> checked;
  for (const GenerateOptions& options : videos) {
    check_options(options);
    check_inputs(options, model);
    check_alike(videos.front(), options, checked.size() + 1);
    checked.push_back(with_choices(with_size_of_inputs(options, model), model));
  }
  return checked;
}

GenerateOptions of_batch(const std::vector<GenerateOptions>& videos) {
  GenerateOptions options = videos.front();
  options.batch_size = std::ssize(videos);
  return options;
}

}  // namespace

void check_batch(const OpenModel& model, const std::vector<GenerateOptions>& videos) {
  plan_run(checked_batch(videos, model.folder), model.folder);
}

Run::Run(OpenModel& model, const std::vector<GenerateOptions>& videos, int64_t of_others)
    : Run(model, videos, of_others, true) {}

Run::Run(OpenModel& model, const std::vector<GenerateOptions>& videos, int64_t of_others, bool reads_inputs)
    : of_others_(of_others),
      open_(model),
      model_(model.folder),
      videos_(checked_batch(videos, model.folder)),
      options_(of_batch(videos_)),
      plan_(plan_run(videos_, model_)),
      inputs_(reads_inputs ? read_inputs(options_, model_) : Inputs()),
      weights_(model_.text_encoder.checkpoint() == nullptr || model.experts.known() ? WeightsRead::kNotRead
                                                                                    : WeightsRead::kFromFiles) {}

RankPlan Run::plan_before(OpenModel& model, const std::vector<GenerateOptions>& videos, comm::Communicator* world) {
  const Run run(model, videos, 0, false);
  const GenerateOptions& o = run.options_;
  if (world == nullptr)
    return run.plan_ranks(job_of(static_cast<int>(o.ranks.value_or(1)), o.threads), run.available(nullptr));
  run.require_same_run(*world);
  return run.agreed_ranks(*world, run.available(world));
}

std::unique_ptr<FrameSink> Run::open_output(const OpenSink& sink, size_t video, int64_t seed, Tensor& frames) const {
  VideoFormat format = video_format(options_);
  // What makes the clip again. Files by their names alone, as the model: their folders are this machine's.
  GenerateOptions tagged = videos_[video];
  for_each_input(tagged, [](const char*, std::filesystem::path& file) { file = without_last_slash(file).filename(); });
  format.metadata = changed_settings(tagged);
  for (const char* key : {"output", "grid", "dump", "trace", "journal", "resume", "weight_cache", "keep_weights"})
    format.metadata.erase(key);
  format.metadata["seed"] = fmt::to_string(seed);
  format.metadata["model"] = without_last_slash(model_.folder).filename().string();
  format.metadata["version"] = fmt::format("zoetrope {}", version());
  if (sink) {
    std::unique_ptr<FrameSink> opened = sink(format);
    if (!opened) fail("sink: the function that opens it returned none");
    return opened;
  }
  frames = Tensor::uninitialized(DType::kU8, {options_.num_frames, options_.height, options_.width, 3});
  return std::make_unique<FramesInMemory>(frames);
}

KnownPrompts* Run::kept_prompts() const {
  return options_.keep_weights == KeepWeights::kNone ? nullptr : &open_.prompts;
}

MemoryQuestion Run::memory_question(const ParallelLayout& layout, std::optional<parallel::Softmax> softmax) const {
  MemoryQuestion question{options_,       open_.memory.configs,
                          layout,         plan_.token_counts(),
                          open_.resident, comm::launched_by_mpi() ? 1 : layout.ranks()};
  if (softmax) question.options.strategy.softmax = softmax;
  question.known_prompts = open_.prompts.bytes();
  question.grid_frames = open_.grid_frames;
  question.of_others = of_others_;
  question.share_of_first = plan_.step_count.share_of_first();
  return question;
}

MemoryQuestion Run::memory_question(const Pass& pass) const {
  MemoryQuestion question = memory_question(pass.layout, pass.strategy.softmax);
  question.options.weight_memory = pass.weight_memory;
  return question;
}

// To each process of the job, the least of them; none where it is not known.
std::optional<planner::Bytes> Run::available(comm::Communicator* world) const {
  const int processes = world == nullptr ? 1 : processes_on_this_host(*world);
  const std::optional<planner::Bytes> mine = planner::tightest(limits_here(memory_question({}), processes));
  if (world == nullptr) return mine;
  const double least = world->all_reduce_min(mine.value_or(planner::Bytes::most()).gigabytes());
  if (least >= planner::Bytes::most().gigabytes()) return std::nullopt;
  return planner::Bytes::of_gigabytes(least);
}

RankPlan Run::plan_ranks(const Job& job, std::optional<planner::Bytes> available,
                         const machine::Heartbeat& heartbeat) const {
  const MemoryQuestion memory = memory_question({});
  return choose_run({plan_, model_, memory, job, available}, heartbeat);
}

RankPlan Run::agreed_ranks(comm::Communicator& world, std::optional<planner::Bytes> available) const {
  const Job job = job_of(world, options_.threads, options_.hardware, &open_.links);
  return agreed_plan(world, [&](const auto& heartbeat) { return plan_ranks(job, available, heartbeat); });
}

std::vector<Video> Run::run(comm::Communicator& world, const std::vector<OpenSink>& sinks, const Callbacks& callbacks) {
  const comm::RecordingScope recording(world, trace_.get());
  const Stop stop = options_.decode ? Stop::kAfterOutput : Stop::kAfterDenoise;
  // The trace is of this run, not of the one that it is compared with.
  const bool records_later = trace_ && options_.cache_compare;
  if (records_later) world.set_trace(nullptr);
  require_same_run(world);
  const std::optional<planner::Bytes> free = available(&world);
  const RankPlan planned = agreed_ranks(world, free);
  const ParallelLayout& layout = planned.layout;
  const attention::Strategy strategy = strategy_of(planned, world.size());
  RunJournal journal = open_journal(world, callbacks);
  std::vector<int64_t> seeds = journal.from.run.seeds;
  if (!journal.resumes)
    for (const GenerateOptions& video : videos_) seeds.push_back(agreed_seed(world, video.seed));
  const std::vector<MemoryQuestion> questions = fitting_questions(world, planned, free);
  const MemoryQuestion& admitted = questions.front();
  if (world.rank() == 0 && callbacks.note) note_plan(planned, admitted, seeds, world.size(), callbacks);
  admit_weights(world, planned, questions, callbacks);
  // Tried now, before anything long begins, and not after the run.
  if (trace_ && world.rank() == 0) {
    check_writable(options_.trace);
    trace_->set_metadata("plan", fmt::format("{}; {}", planned.layout_text, planned.text()));
    trace_->set_metadata("command", command_text(videos_.front(), seeds.front()));
  }
  const bool writes = world.rank() == 0 && stop == Stop::kAfterOutput;
  std::vector<Tensor> frames(videos_.size());
  std::deque<Output> outputs = writes ? open_outputs(sinks, seeds, frames) : std::deque<Output>(videos_.size());
  if (journal.resumes && writes && callbacks.note && !options_.dump.empty())
    callbacks.note(
        fmt::format("dump={}: holds what is computed from here on, nothing of what was done before", options_.dump));
  // The others end when the frames are decoded: nobody waits for rank 0 to write the file or to denoise once more.
  const std::unique_ptr<comm::Communicator> alone = options_.compare_one_rank ? world.split(world.rank(), 0) : nullptr;
  std::vector<Video> uncached;
  VelocityComparison velocities;  // on rank 0
  const bool compares = options_.cache_compare && world.rank() == 0;
  // Before the run: behind it, ranks would wait for rank 0 to decode and write.
  if (options_.cache_compare)
    uncached = denoise_uncached(world, layout, strategy, seeds, admitted, compares ? velocities.keep() : Observer(),
                                callbacks);
  if (records_later) world.set_trace(trace_.get());
  begin_journal(world, seeds, callbacks, journal);
  std::vector<Video> results;
  try {
    results = run_once(world,
                       {.layout = layout,
                        .strategy = strategy,
                        .experts = open_.experts,
                        .contexts = contexts_,
                        .plan = plan_,
                        .outputs = outputs,
                        .seeds = seeds,
                        .weight_memory = admitted.options.weight_memory,
                        .stop = stop,
                        .prompts = kept_prompts(),
                        .planned = &planned,
                        .admitted = &admitted,
                        .trace = trace_.get(),
                        .journal = &journal,
                        .available = free,
                        .observer = checks_ != nullptr ? checks_->of_rank(world.rank())
                                    : compares         ? velocities.compare()
                                                       : Observer()},
                       callbacks);
    if (checks_ != nullptr) checks_->gather(world, layout);
  } catch (const Error&) {
    if (journal.journal && callbacks.note && Journal::is_in(journal.folder))
      callbacks.note(resume_note(journal_.named));
    throw;
  }
  if (world.rank() != 0) return results;
  for (size_t v = 0; v < frames.size(); ++v) results[v].frames = std::move(frames[v]);
  if (options_.cache_compare) compare(uncached, velocities.off(), journal.resumes, results);
  Video& result = results.front();
  if (result.step_cache) {
    result.timing += step_cache_text(*result.step_cache);
    result.summary += step_cache_text(*result.step_cache);
  }
  try {
    for (const Output& output : outputs)
      if (output.lost_dump) std::rethrow_exception(output.lost_dump);
    if (trace_) trace_->write(options_.trace);
    if (alone) compare_with_one_rank(*alone, layout, seeds, admitted.options.weight_memory, results, callbacks);
  } catch (const Error&) {
    if (journal.journal && !sinks.empty()) journal.journal->complete();  // they have the frames, whatever fails here
    throw;
  }
  if (journal.journal) journal.journal->complete();
  return results;
}

attention::Strategy Run::strategy_of(const RankPlan& planned, int ranks) const {
  const ParallelLayout& layout = planned.layout;
  const int64_t heads = model_.experts[0].config.num_attention_heads;
  check(layout, ranks, heads);
  attention::Strategy strategy =
      attention::parse_strategy(options_.strategy, layout.context.ranks(), heads / layout.tensor);
  strategy.softmax = planned.softmax;
  return strategy;
}

std::deque<Run::Output> Run::open_outputs(const std::vector<OpenSink>& sinks, const std::vector<int64_t>& seeds,
                                          std::vector<Tensor>& frames) const {
  std::deque<Output> outputs;
  for (size_t v = 0; v < videos_.size(); ++v)
    outputs.emplace_back(open_output(sinks.empty() ? OpenSink() : sinks[v], v, seeds[v], frames[v]), videos_[v].dump);
  return outputs;
}

void Run::note_plan(const RankPlan& planned, const MemoryQuestion& question, const std::vector<int64_t>& seeds,
                    int ranks, const Callbacks& callbacks) const {
  callbacks.note(describe(planned, question, ranks));
  for (size_t v = 0; v < videos_.size(); ++v)
    if (videos_[v].seed < 0 && uses_seed(videos_[v]))
      callbacks.note(fmt::format("Seed {}, drawn: seed={} makes the same video", seeds[v], seeds[v]));
}

std::vector<MemoryQuestion> Run::fitting_questions(comm::Communicator& world, const RankPlan& planned,
                                                   std::optional<planner::Bytes> available) const {
  std::vector<MemoryQuestion> questions = {memory_question(planned.layout, planned.softmax)};
  questions.front().sharers = processes_on_this_host(world);
  if (options_.compare_one_rank) questions.push_back(one_rank_question(questions.front()));
  if (!available) return questions;
  const std::optional<double> fits = weight_memory(questions, *available, world);
  for (MemoryQuestion& question : questions) question.options.weight_memory = fits;
  return questions;
}

void Run::admit_weights(comm::Communicator& world, const RankPlan& planned,
                        const std::vector<MemoryQuestion>& questions, const Callbacks& callbacks) const {
  const std::optional<double> streaming = questions.front().options.weight_memory;
  const bool streams = streaming != options_.weight_memory && planned.layout.weight_shards == 1;
  if (streams && world.rank() == 0 && callbacks.note) {
    callbacks.note(fmt::format(
        "Memory is short: {} GB of the transformer's converted weights stay in it, the rest is {} when it is used "
        "(weight_memory={})",
        *streaming, options_.weight_cache.empty() ? "converted" : "read", *streaming));
  }
  for (const MemoryQuestion& question : questions)
    admit(question, world, [&](const MemoryQuestion& other) { return planned.step_seconds(other); });
}

std::optional<double> Run::weight_memory(const std::vector<MemoryQuestion>& questions, planner::Bytes available,
                                         comm::Communicator& world) const {
  constexpr double kAll = 1e9;
  const double most = world.all_reduce_min(weight_memory_to_fit(questions, available).value_or(kAll));
  return most < kAll ? std::optional(most) : options_.weight_memory;
}

std::vector<Video> Run::denoise_uncached(comm::Communicator& world, const ParallelLayout& layout,
                                         const attention::Strategy& strategy, const std::vector<int64_t>& seeds,
                                         const MemoryQuestion& admitted, const Observer& observer,
                                         const Callbacks& callbacks) {
  if (world.rank() == 0 && callbacks.note) callbacks.note("Denoising without the step cache first, to compare");
  RunPlan plan = plan_;
  plan.step_cache = {};
  std::deque<Output> none(videos_.size());
  return run_once(world,
                  {.layout = layout,
                   .strategy = strategy,
                   .experts = open_.experts,
                   .contexts = contexts_,
                   .plan = plan,
                   .outputs = none,
                   .seeds = seeds,
                   .weight_memory = admitted.options.weight_memory,
                   .prompts = kept_prompts(),
                   .admitted = &admitted,
                   .observer = observer},
                  callbacks);
}

// The report is one of the batch: of the video that is furthest off.
void Run::compare(const std::vector<Video>& uncached, std::optional<double> velocity_off, bool resumed,
                  std::vector<Video>& results) {
  StepCacheReport& report = *results.front().step_cache;
  report.velocity_rel_l2 = velocity_off;
  report.rel_l2 = 0;
  for (size_t v = 0; v < results.size(); ++v)
    report.rel_l2 = std::max(*report.rel_l2, relative_l2(results[v].latents, uncached[v].latents));
  if (resumed) return;  // it took only the time of the steps that were left
  report.seconds_saved = uncached.front().denoise_seconds - results.front().denoise_seconds;
  report.saving_measured = true;
}

void Run::compare_with_one_rank(comm::Communicator& alone, const ParallelLayout& run_layout,
                                const std::vector<int64_t>& seeds, std::optional<double> weight_memory,
                                std::vector<Video>& results, const Callbacks& callbacks) {
  if (callbacks.note) callbacks.note("Denoising once more on one rank, to compare");
  // Its own contexts: the other ranks may still use theirs, whose batch is another where guidance was divided. Weights
  // of its own where those of the run are gone, or are parts. Kept parts are given up: memory is planned for one of
  // both.
  SharedExperts own;
  const bool parts = run_layout.weight_shards > 1 || run_layout.tensor > 1;
  if (parts) open_.experts.release_kept();
  const bool kept = options_.keep_weights != KeepWeights::kNone && !parts;
  SharedExperts& experts = kept ? open_.experts : own;
  SharedContexts contexts;
  const ParallelLayout layout;
  const attention::Strategy strategy = attention::requested_strategy(attention::on_one_rank(options_.strategy));
  std::deque<Output> outputs(videos_.size());
  RunPlan plan = plan_;
  Stop stop = Stop::kAfterDenoise;
  Tensor frames;
  if (checks_ != nullptr) {
    plan.step_cache = {};
    if (options_.decode) {
      stop = Stop::kAfterOutput;
      outputs.front().sink = open_output({}, 0, seeds.front(), frames);
    }
  }
  const std::vector<Video> ones = run_once(alone,
                                           {.layout = layout,
                                            .strategy = strategy,
                                            .experts = experts,
                                            .contexts = contexts,
                                            .plan = plan,
                                            .outputs = outputs,
                                            .seeds = seeds,
                                            .weight_memory = weight_memory,
                                            .stop = stop,
                                            .observer = checks_ != nullptr ? checks_->of_one_rank() : Observer()},
                                           callbacks);
  if (frames) checks_->compare_frames(results.front().frames, frames);
  for (size_t v = 0; v < results.size(); ++v)
    results[v].one_rank_rel_l2 = relative_l2(results[v].latents, ones[v].latents);
}

// Pictures and videos next to the prompt, as "image=cat.png, last_image=dog.png".
std::string Run::inputs_text() const {
  const GenerateOptions& o = options_;
  std::vector<std::string> given;
  for (const auto& [key, value] :
       {std::pair("image", o.image), std::pair("last_image", o.last_image), std::pair("control_video", o.control_video),
        std::pair("pose_video", o.pose_video), std::pair("face_video", o.face_video),
        std::pair("background_video", o.background_video), std::pair("mask", o.mask),
        std::pair("reference_images", fmt::format("{}", fmt::join(o.reference_images, ",")))})
    if (!value.empty()) given.push_back(fmt::format("{}={}", key, value));
  if (!o.conditioning_scale.empty())
    given.push_back(fmt::format("conditioning_scale={}", fmt::join(o.conditioning_scale, ",")));
  return fmt::format("{}", fmt::join(given, ", "));
}

std::string Run::describe(int ranks) const {
  const std::optional<planner::Bytes> free = available(nullptr);
  const RankPlan planned = plan_ranks(job_of(ranks, options_.threads), free);
  const MemoryQuestion question = memory_question(planned.layout, planned.softmax);
  return describe(planned, free ? as_it_fits(question, *free) : question, ranks);
}

double Run::comparison_seconds(const RankPlan& planned, const MemoryQuestion& question) const {
  if (!options_.compare_one_rank) return 0;
  // A profile's device is one of the ranks of this process, and a rank alone has the threads of them all.
  const double step = planned.step_seconds(one_rank_question(question)).value_or(0) / question.ranks_here;
  return static_cast<double>(checks_ != nullptr ? plan_.total_steps() : priced_steps(plan_)) * step;
}

Forecast Run::forecast(int ranks, int processes_here) const {
  const std::vector<planner::MemoryLimit> limits = limits_here(memory_question({}), processes_here);
  const std::optional<planner::Bytes> free = planner::tightest(limits);
  const RankPlan planned = plan_ranks(job_of(ranks, options_.threads), free);
  MemoryQuestion question = memory_question(planned.layout, planned.softmax);
  question.sharers = processes_here;
  question.options.keep_weights = planned.keep_weights;
  Forecast forecast;
  forecast.layout = planned.layout_text;
  forecast.width = options_.width;
  forecast.height = options_.height;
  forecast.num_frames = options_.num_frames;
  if (planned.priced()) {
    const planner::RunPrediction& predicted = planned.predicted;
    forecast.seconds = predicted.total() - (weights_ == WeightsRead::kNotRead ? predicted.load : 0) +
                       comparison_seconds(planned, question);
  }
  forecast.memory = peak_memory(question);
  MemoryQuestion fitting = question;
  if (free && forecast.memory > *free) {
    fitting = as_it_fits(question, *free);
    forecast.short_of_memory = fitting.options.weight_memory != question.options.weight_memory;
    forecast.memory = peak_memory(fitting);
  }
  forecast.streams = work_of(fitting).weights.part(fitting.layout.tensor).fetched > 0;
  if (free && forecast.memory > *free)
    forecast.refusal =
        refusal(question, limits, [&](const MemoryQuestion& other) { return planned.step_seconds(other); });
  return forecast;
}

std::string Run::describe(const RankPlan& planned, const MemoryQuestion& question, int ranks) const {
  const ParallelLayout& layout = planned.layout;
  const auto& config = model_.experts[0].config;
  const std::string dtype = dtype_word(plan_.dtype) + after_comma(int8_words(model_, plan_));
  std::string text = fmt::format("Model {} ({}): {}{}, {} heads x {}, {}\n", model_.folder.string(), model_.kind.name,
                                 model_.experts.size() == 2 ? "two experts, " : "", model_.experts[0].layers_text(),
                                 config.num_attention_heads, config.attention_head_dim, dtype);
  for (const std::string& line : model_.file_lines()) text += fmt::format("Weights {}\n", line);
  if (const std::string given = inputs_text(); !given.empty()) text += fmt::format("Given {}\n", given);
  text += fmt::format("{} {} x {} x {}, {} tokens, {} steps{}, guidance {}{}\n",
                      plan_.videos > 1 ? fmt::format("Batch of {} videos", plan_.videos) : "Video", options_.width,
                      options_.height, options_.num_frames, plan_.tokens, plan_.total_steps(), expert_words(plan_),
                      guidance_words(options_, plan_), after_comma(step_cache_words(options_)));
  text += fmt::format("Ranks {}: {}, {} in this process", ranks, planned.layout_text,
                      counted(comm::process_threads(options_.threads), "thread"));
  if (ranks > 1)
    text += fmt::format(", VAE on {}", layout.vae_ranks == 1 ? "rank 0" : fmt::format("{} ranks", layout.vae_ranks));
  const planner::MemoryPlan memory = memory_plan(question);
  text += fmt::format("\nMemory {} planned, the most of it in '{}'", memory.peak().total().text(), memory.peak().name);
  for (const std::string& line : lora_lines(model_)) text += "\n" + line;
  text += fmt::format("\n{}", planned.text());
  if (planned.priced())
    text +=
        fmt::format("\n{}", predicted_total_text(planned.predicted, weights_, comparison_seconds(planned, question)));
  for (const std::vector<std::string>* notes : {&plan_.notes, &inputs_.notes})
    for (const std::string& note : *notes) text += "\nNote: " + note;
  return text;
}

std::vector<Video> Run::run_on_threads(const std::vector<OpenSink>& sinks, const Callbacks& callbacks) {
  comm::RankOptions ranks = rank_options(options_);
  ranks.trace = trace_.get();
  std::vector<Video> results;
  comm::run_ranks(
      static_cast<int>(options_.ranks.value_or(1)),
      [&](comm::Communicator& world) {
        std::vector<Video> mine = run(world, sinks, callbacks);
        if (world.rank() == 0) results = std::move(mine);
      },
      ranks);
  return results;
}

}  // namespace zoetrope::pipeline
