// One run over an opened model: prompts, conditions, noise, denoising, decoding, in this order, of one video or of a
// batch that is denoised together. What a stage does is in its own file.
#pragma once

#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "zoetrope/communicator.h"

#include "base/run_files.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/rank_plan.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/predicted_report.h"
#include "pipeline/records/journal.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/stages/condition_ranks.h"
#include "pipeline/stages/decode_frames.h"
#include "pipeline/stages/denoise.h"
#include "pipeline/stages/model_weights.h"
#include "pipeline/stages/prompt_context.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {

class ForwardChecks;

// What all runs of a model and all ranks of this process share.
struct OpenModel {
  // Uses `model` and the fields of ModelOptions.
  explicit OpenModel(const GenerateOptions& options);
  void keep(KeepWeights weights);  // before the first run
  void release_weights();
  // Bytes that this process has allocated since, less the most that it can keep of the model between runs: videos that
  // the caller of a Model holds, other models of a server, and whatever else it has in memory.
  int64_t of_others();
  // By any rank: its run, which has `question`, has read weights that may be kept.
  void note_loaded(const MemoryQuestion& question);

  const RunFiles reads;  // before anything is read
  const GenerateOptions options;
  const ModelFolder folder;
  const MemoryQuestion memory;                         // of a run with these options
  const int64_t allocated = trace::allocated_bytes();  // before weights are read
  const int64_t resident = trace::resident_bytes();    // likewise
  SharedExperts experts;
  SharedVae vae_encoder, vae_decoder;
  KnownPrompts prompts;
  std::optional<HostLinks> links;  // between the hosts of the last run, so that the next is planned alike
  int64_t grid_frames = 0;  // bytes of videos that the caller keeps to the last run: this process's share of a host's

 private:
  std::mutex loading_;
  std::optional<MemoryQuestion> loaded_;  // under loading_
};

// What the planner says of a run before it begins, on this machine as it is now.
struct Forecast {
  std::optional<double> seconds;                  // of the whole; unset where no profile speaks of this machine
  planner::Bytes memory;                          // the most that a process needs
  bool streams = false;                           // some weights are read or converted in every step
  bool short_of_memory = false;                   // less of them stays in memory than the keys ask for
  std::string layout;                             // how the ranks are used, in words
  std::string refusal;                            // why it does not fit, with what would; empty: it fits
  int64_t width = 0, height = 0, num_frames = 0;  // with max_area and pose_video after their files
};

// Throws Error for options that do not go together or with the model, and for videos that cannot be a batch. Reads no
// input but the image that max_area follows.
void check_batch(const OpenModel& model, const std::vector<GenerateOptions>& videos);

// Shared by the ranks of this process.
class Run {
 public:
  // As check_batch(); reads pictures and videos. `of_others`: as in MemoryQuestion.
  Run(OpenModel& model, const std::vector<GenerateOptions>& videos, int64_t of_others = 0);

  // Of such runs, before one: what they can keep from one to the next, and on rank 0 whether they fit. Reads no
  // pictures and videos. Collective over `world`; null: of options.ranks threads of this process.
  static RankPlan plan_before(OpenModel& model, const std::vector<GenerateOptions>& videos, comm::Communicator* world);

  struct JournalKeys {
    std::string folder, named;  // where it is noted, and what a user resumes; empty: it is not noted
    bool resumes = false;
    bool required = true;           // where none can be begun the run ends; else it does without
    std::function<void()> begun{};  // is called when there is a new one
  };
  // Instead of the options' journal and resume. On rank 0's process, before it runs.
  void use_journal(JournalKeys keys) { journal_ = std::move(keys); }

  // Has what every rank computes in the first segment checked, on rank 0 against a run on one rank; with
  // compare_one_rank. Must outlive run().
  void use_checks(ForwardChecks& checks) { checks_ = &checks; }

  // Waits last as long as `world` of run() says; else the time of a step decides, where comm_timeout is unset.
  void keep_timeout() { keeps_timeout_ = true; }

  // Collective over `world`. Rank 0 opens the sinks, one per video; without any it returns the frames.
  std::vector<Video> run(comm::Communicator& world, const std::vector<OpenSink>& sinks, const Callbacks& callbacks);
  // Over options.ranks threads of this process.
  std::vector<Video> run_on_threads(const std::vector<OpenSink>& sinks, const Callbacks& callbacks);
  // One line per fact: model, size, degrees, values that override the checkpoint's.
  std::string describe(int ranks) const;
  // For a job of `ranks` ranks, of which this process would be one, or all where it is not under mpirun;
  // `processes_here`: of the job on this host.
  Forecast forecast(int ranks, int processes_here = 1) const;
  const RunPlan& plan() const { return plan_; }
  // Of the first video, with what a budget chose in its place.
  const GenerateOptions& options() const { return videos_.front(); }
  RunIdentity identity(std::vector<int64_t> seeds) const;
  std::string inputs_fingerprint() const;  // of pictures, videos and noise: "NAME=<hash>" lines

 private:
  Run(OpenModel& model, const std::vector<GenerateOptions>& videos, int64_t of_others, bool reads_inputs);
  RunIdentity journal_identity(std::vector<int64_t> seeds) const;
  std::string fingerprint_of_noise() const;  // of the files that were given
  // What this rank writes of a video: nothing but on rank 0.
  struct Output {
    explicit Output(std::unique_ptr<FrameSink> opened = nullptr, const std::string& folder = "")
        : sink(std::move(opened)), dump(folder) {}
    std::unique_ptr<FrameSink> sink;
    Dump dump;
    TensorView floats, bytes;      // of the dump: the frames
    std::exception_ptr lost_dump;  // why it could not be written; null: it could
  };
  static void finish(Output& output, trace::Timing& timing);
  // Where this run is noted and where it goes on, on every rank.
  struct RunJournal {
    std::filesystem::path folder;      // empty: it is not noted
    std::unique_ptr<Journal> journal;  // rank 0's
    bool resumes = false;
    RunRecord from;  // where it resumes: the same on every rank
  };
  enum class Stop { kAfterDenoise, kAfterOutput };
  // One pass over the ranks of a communicator.
  struct Pass {
    const parallel::ParallelLayout& layout;
    const attention::Strategy& strategy;
    SharedExperts& experts;  // shared by the ranks of this process
    SharedContexts& contexts;
    const RunPlan& plan;  // of denoising
    std::deque<Output>& outputs;
    const std::vector<int64_t>& seeds;
    std::optional<double> weight_memory;  // of the run, GB: what the options say or what fits; unset: all
    Stop stop = Stop::kAfterDenoise;
    KnownPrompts* prompts = nullptr;               // null: the text encoder runs, and nothing is remembered
    const RankPlan* planned = nullptr;             // to compare with; null: not
    const MemoryQuestion* admitted = nullptr;      // of weights that may be kept; null: they are not
    trace::Trace* trace = nullptr;                 // null: not recorded
    const RunJournal* journal = nullptr;           // null: not noted
    std::optional<planner::Bytes> available = {};  // to a process; unset: not known
    Observer observer = {};                        // of this rank, in the first segment
    // Where it resumes; null: it begins.
    const RunRecord* resumed() const { return journal != nullptr && journal->resumes ? &journal->from : nullptr; }
  };
  RunJournal open_journal(comm::Communicator& world, const Callbacks& callbacks) const;  // collective, as the next
  void begin_journal(comm::Communicator& world, const std::vector<int64_t>& seeds, const Callbacks& callbacks,
                     RunJournal& opened) const;
  // Collective. Ranks that were started with other settings, or found other files, are refused.
  void require_same_run(comm::Communicator& world) const;
  // Collective. What is asked for, the run's first, with the weight_memory that fits them all.
  std::vector<MemoryQuestion> fitting_questions(comm::Communicator& world, const RankPlan& planned,
                                                std::optional<planner::Bytes> available) const;
  // Collective. Refuses what does not fit.
  void admit_weights(comm::Communicator& world, const RankPlan& planned, const std::vector<MemoryQuestion>& questions,
                     const Callbacks& callbacks) const;
  void note_plan(const RankPlan& planned, const MemoryQuestion& question, const std::vector<int64_t>& seeds, int ranks,
                 const Callbacks& callbacks) const;
  std::string place_text(const RunRecord& record) const;  // "after step 3 of 50"
  bool uses_seed(const GenerateOptions& video) const;     // false where a file has the noise of every segment
  class RunningPass;
  std::vector<Video> run_once(comm::Communicator& world, const Pass& pass, const Callbacks& callbacks) const;
  std::vector<Video> denoise_uncached(comm::Communicator& world, const parallel::ParallelLayout& layout,
                                      const attention::Strategy& strategy, const std::vector<int64_t>& seeds,
                                      const MemoryQuestion& admitted, const Observer& observer,
                                      const Callbacks& callbacks);
  static void compare(const std::vector<Video>& uncached, std::optional<double> velocity_off, bool resumed,
                      std::vector<Video>& results);
  void compare_with_one_rank(comm::Communicator& alone, const parallel::ParallelLayout& run_layout,
                             const std::vector<int64_t>& seeds, std::optional<double> weight_memory,
                             std::vector<Video>& results, const Callbacks& callbacks);
  // The options' weight_memory, or where they leave it open and memory is short what fits every process.
  std::optional<double> weight_memory(const std::vector<MemoryQuestion>& questions, planner::Bytes available,
                                      comm::Communicator& world) const;
  KnownPrompts* kept_prompts() const;  // null where nothing is kept
  // `softmax` unset: as the keys say.
  MemoryQuestion memory_question(const parallel::ParallelLayout& layout,
                                 std::optional<parallel::Softmax> softmax = {}) const;
  MemoryQuestion memory_question(const Pass& pass) const;
  RankPlan plan_ranks(const Job& job, std::optional<planner::Bytes> available,
                      const machine::Heartbeat& heartbeat = {}) const;
  std::optional<planner::Bytes> available(comm::Communicator* world) const;
  RankPlan agreed_ranks(comm::Communicator& world, std::optional<planner::Bytes> available) const;  // collective
  std::string describe(const RankPlan& planned, const MemoryQuestion& question, int ranks) const;
  // Predicted, of denoising once more; 0 without compare_one_rank, or where nothing predicts it.
  double comparison_seconds(const RankPlan& planned, const MemoryQuestion& question) const;
  std::string inputs_text() const;
  attention::Strategy strategy_of(const RankPlan& planned, int ranks) const;
  // On rank 0. `frames`: of videos without a sink.
  std::deque<Output> open_outputs(const std::vector<OpenSink>& sinks, const std::vector<int64_t>& seeds,
                                  std::vector<Tensor>& frames) const;
  std::unique_ptr<FrameSink> open_output(const OpenSink& sink, size_t video, int64_t seed, Tensor& frames) const;

  static JournalKeys journal_keys(const GenerateOptions& options);

  const RunFiles reads_;  // before anything is read
  const int64_t of_others_;
  OpenModel& open_;
  const ModelFolder& model_;
  const std::vector<GenerateOptions> videos_;  // alike but for their prompts, noise and files
  const GenerateOptions options_;              // of the first, with the size of the batch
  const RunPlan plan_;
  const Inputs inputs_;
  const WeightsRead weights_;
  SharedContexts contexts_;
  JournalKeys journal_ = journal_keys(options_);
  ForwardChecks* checks_ = nullptr;
  bool keeps_timeout_ = false;
  std::unique_ptr<trace::Trace> trace_ = options_.trace.empty() ? nullptr : std::make_unique<trace::Trace>();
};

}  // namespace zoetrope::pipeline
