// One run over an opened model: prompts, conditions, noise, denoising, decoding, in this order. What a stage does is in
// its own file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "zoetrope/communicator.h"

#include "base/run_files.h"
#include "pipeline/auto_plan.h"
#include "pipeline/denoise.h"
#include "pipeline/dump.h"
#include "pipeline/generate_options.h"
#include "pipeline/inputs.h"
#include "pipeline/model_folder.h"
#include "pipeline/model_weights.h"
#include "pipeline/plan.h"
#include "pipeline/predicted_report.h"
#include "pipeline/prompt_context.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {

// What all runs of a model and all ranks of this process share.
struct OpenModel {
  // Uses `model` and the fields of ModelOptions.
  explicit OpenModel(const GenerateOptions& options);
  void release_weights();

  const RunFiles reads;  // before anything is read
  const GenerateOptions options;
  const ModelFolder folder;
  const int64_t resident = trace::resident_bytes();  // before weights are read
  SharedExpert experts[2];
  SharedVae vae_encoder, vae_decoder;
  KnownPrompts prompts;
};

// Throws Error for options that do not go together or with the model. Reads no input but the image that max_area
// follows.
void check_request(const OpenModel& model, const GenerateOptions& options);

// Shared by the ranks of this process.
class Run {
 public:
  // Throws Error for options that do not go together or with the model; reads pictures and videos.
  Run(OpenModel& model, const GenerateOptions& options);

  enum class Stop { kAfterDenoise, kAfterOutput };
  // Collective over `world`. Rank 0 opens the sink; without one it returns the frames.
  Video run(comm::Communicator& world, const OpenSink& sink, const Callbacks& callbacks,
            Stop stop = Stop::kAfterOutput);
  // Over options.ranks threads of this process.
  Video run_on_threads(const OpenSink& sink, const Callbacks& callbacks);
  // One line per fact: model, size, degrees, values that override the checkpoint's.
  std::string describe(int ranks) const;
  // Where options.trace records, for comm::RankOptions; null without it.
  trace::Trace* recorder() const { return trace_.get(); }

 private:
  // What this rank writes: nothing but on rank 0.
  struct Output {
    std::unique_ptr<FrameSink> sink;
    Dump dump{""};
  };
  // One pass over the ranks of a communicator.
  struct Pass {
    const parallel::ParallelLayout& layout;
    const attention::Strategy& strategy;
    SharedExpert* experts;  // [2], shared by the ranks of this process
    SharedContexts& contexts;
    KnownPrompts* prompts;  // null: the text encoder runs, and nothing is remembered
    Stop stop;
    const AutoPlan* planned;  // to compare with; null: not
    const RunPlan& plan;      // of denoising
    Output& output;
    trace::Trace* trace;  // null: not recorded
    int64_t seed;
  };
  Video run_once(comm::Communicator& world, const Pass& pass, const Callbacks& callbacks);
  struct Uncached {
    Tensor latents;
    double denoise_seconds;
  };
  Uncached denoise_uncached(comm::Communicator& world, const parallel::ParallelLayout& layout,
                            const attention::Strategy& strategy, int64_t seed, const Callbacks& callbacks);
  static void compare(const Uncached& uncached, Video& result);
  void compare_with_plan(const trace::Timing& timing, const attention::Counters& attention, const Pass& pass,
                         Video& result) const;
  double distance_to_one_rank(comm::Communicator& alone, const Video& result, const Callbacks& callbacks);
  KnownPrompts* kept_prompts() const;  // null where nothing is kept
  MemoryQuestion memory_question(const parallel::ParallelLayout& layout) const;
  AutoPlan plan_ranks(const Job& job, std::optional<planner::Bytes> available,
                      const machine::Heartbeat& heartbeat = {}) const;
  std::optional<planner::Bytes> available(comm::Communicator* world) const;
  std::string describe(const AutoPlan& planned, int ranks) const;
  std::string inputs_text() const;
  std::unique_ptr<FrameSink> open_output(const OpenSink& sink, int64_t seed, Tensor& frames) const;

  const RunFiles reads_;  // before anything is read
  OpenModel& open_;
  const ModelFolder& model_;
  const GenerateOptions options_;
  const RunPlan plan_;
  const Inputs inputs_;
  const Weights weights_;  // whether they are read
  SharedContexts contexts_;
  std::unique_ptr<trace::Trace> trace_ = options_.trace.empty() ? nullptr : std::make_unique<trace::Trace>();
};

}  // namespace zoetrope::pipeline
