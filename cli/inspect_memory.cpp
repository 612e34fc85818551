#include "cli/inspect_memory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/words.h"
#include "cli/command.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/memory_here.h"
#include "pipeline/planning/planned_run.h"
#include "pipeline/planning/rank_plan.h"
#include "pipeline/planning/run_words.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

// What `generate` would be given: for a model of configs/ beginning with its YAML.
void parse(const fs::path& folder, const std::vector<std::string>& words, OptionSet& set) {
  if (const auto yaml = pipeline::yaml_of_config(folder)) set.load_yaml(*yaml);
  for (const std::string& word : words) set.set_argument(word);
  pipeline::refuse_keys_of_running(set, "inspect");
}

pipeline::Job job_of(const pipeline::GenerateOptions& options, comm::Communicator* world) {
  return world != nullptr ? pipeline::job_of(*world, options.threads, options.hardware)
                          : pipeline::job_of(static_cast<int>(options.ranks.value_or(1)), options.threads);
}

// As `generate` would choose: what a run holds depends on how its ranks are used.
pipeline::RankPlan plan_of_run(const pipeline::RunQuestion& question, comm::Communicator* world) {
  const auto decide = [&](const machine::Heartbeat& heartbeat) { return pipeline::choose_run(question, heartbeat); };
  return world != nullptr ? pipeline::agreed_plan(*world, decide) : decide({});
}

MemoryLines memory_lines(const pipeline::GenerateOptions& given, comm::Communicator* world) {
  const pipeline::PlannedRun run(given);
  const pipeline::GenerateOptions& options = run.options;
  if (world != nullptr) pipeline::require_ranks(options.ranks, *world);
  const pipeline::ModelFolder& model = run.model;
  const pipeline::RunPlan& plan = run.plan;
  const int ranks = world != nullptr ? world->size() : static_cast<int>(options.ranks.value_or(1));
  pipeline::MemoryQuestion question = run.memory;
  const int processes_here = world == nullptr ? 1 : pipeline::processes_on_this_host(*world);
  const std::vector<planner::MemoryLimit> limits = pipeline::limits_here(question, processes_here);
  const std::optional<planner::Bytes> available = planner::tightest(limits);
  const pipeline::RankPlan planned = plan_of_run({plan, model, question, job_of(options, world), available}, world);
  question.layout = planned.layout;
  question.options.strategy.softmax = planned.softmax;
  question.options.keep_weights = planned.keep_weights;
  question.ranks_here = world != nullptr ? 1 : ranks;
  question.sharers = processes_here;
  question.grid_frames /= processes_here;
  std::vector<pipeline::MemoryQuestion> questions{question};
  if (options.compare_one_rank) questions.push_back(pipeline::one_rank_question(question));
  std::optional<double> streamed;
  if (available) streamed = pipeline::weight_memory_to_fit(questions, *available);
  for (pipeline::MemoryQuestion& each : questions)
    if (streamed) each.options.weight_memory = streamed;
  const planner::MemoryPlan memory = pipeline::memory_plan(questions.front());
  std::string text =
      fmt::format("Memory for {} x {}, {} frames, {} tokens, {}, {}; text encoder {}, VAE {}; {}{}\n", options.width,
                  options.height, options.num_frames, plan.tokens, plan.guided ? "guided" : "not guided",
                  pipeline::dtype_word(options.dtype), pipeline::dtype_word(options.text_encoder_dtype),
                  pipeline::dtype_word(options.vae_dtype), counted(ranks, "rank"),
                  world != nullptr ? ", each a process: of one" : "");
  for (const std::string& words : {pipeline::int8_words(model, plan), pipeline::step_cache_words(options)})
    if (!words.empty()) text += fmt::format("  {}\n", words);
  if (options.layers) text += fmt::format("  {} of each transformer\n", model.experts[0].layers_text());
  if (planned.keep_weights != options.keep_weights) {
    text += fmt::format("  {}: what several videos keep would not fit\n",
                        pipeline::keep_weights_text(planned.keep_weights));
  }
  if (streamed) text += fmt::format("  weight_memory={}: all of a transformer's weights would not fit\n", *streamed);
  for (const std::string& line : pipeline::lora_lines(model)) text += fmt::format("  {}\n", line);
  for (const planner::MemoryPhase& phase : memory.phases) {
    text += fmt::format("  {:<30} {:>9}{} {}\n", phase.name, phase.total().text(),
                        phase.total() == memory.peak().total() ? "  peak:" : ":      ", phase.text());
  }
  if (options.compare_one_rank) {
    const planner::MemoryPhase again = pipeline::memory_plan(questions.back()).peak();
    text += fmt::format("  {:<30} {:>9}:       {}\n", "on one rank, to compare", again.total().text(), again.text());
  }
  for (const planner::MemoryLimit& limit : limits)
    text += fmt::format("  available {:>9}: {}\n", limit.available.text(), limit.what);
  std::string refusal;
  for (const pipeline::MemoryQuestion& each : questions) {
    if (!refusal.empty()) break;
    refusal = pipeline::refusal(each, limits,
                                [&](const pipeline::MemoryQuestion& other) { return planned.step_seconds(other); });
  }
  return {text + (refusal.empty() ? "  admitted here\n" : fmt::format("  refused here: {}\n", refusal)),
          refusal.empty()};
}

}  // namespace

MemoryLines memory_lines(const std::string& model, const fs::path& configs, const std::vector<std::string>& words,
                         comm::Communicator* world) {
  pipeline::GenerateOptions options;
  OptionSet set = pipeline::describe_options(options);
  parse(pipeline::model_or_config(model), words, set);
  pipeline::read_text_files(options);
  pipeline::keep_weights_of_several(options, set);
  options.model = options.weights == WeightSource::kRandom ? configs.string() : model;
  return with_origins(set, [&] { return memory_lines(options, world); });
}

}  // namespace zoetrope::cli
