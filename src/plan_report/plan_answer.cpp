#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/words.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/outputs/videos.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/layout_question.h"
#include "pipeline/planning/planned_run.h"
#include "pipeline/planning/profile_choice.h"
#include "pipeline/planning/run_words.h"
#include "pipeline/planning/weights_to_fit.h"
#include "pipeline/settings/generate_options.h"
#include "plan_report/plan_report.h"

namespace zoetrope::plan_report {
namespace {

using planner::Bytes;
using planner::Candidate;
using planner::HardwareProfile;

constexpr double kHour = 3600, kGigabyte = 1e9;

struct Machine {
  HardwareProfile hardware;
  std::string origin;
  std::vector<std::string> notes;
  bool shares_process = false;     // the ranks of a host are threads of one process
  std::optional<int64_t> threads;  // of a process; unset: as on this machine
  int rank_threads = 1;            // those of a rank
  bool accelerators = false;       // not CPUs: other systems run there, too
};

void apply(HardwareProfile& hardware, const PlanOptions& options) {
  planner::set_figures(hardware, options.what_if);
  if (options.price) hardware.price_per_hour = *options.price * hardware.devices;
}

// What a plan for more ranks than the profile has devices assumes.
std::string growth_note(const HardwareProfile& described, const HardwareProfile& planned, int ranks) {
  const planner::LinkLevel& outer = planned.links.back();
  const int members = described.links.back().members, group = planned.devices / outer.members;
  const auto groups = [group](int count) {
    return group == 1 ? fmt::format("{} devices", count)
                      : fmt::format("{} of {} devices", counted(count, "group"), group);
  };
  return fmt::format(
      "{} ranks are more than the {} devices of {}: planned for {} joined by '{}' ({:.4g} GB/s per port), "
      "where the profile has {}",
      ranks, described.devices, described.name, groups(outer.members), outer.name, outer.bandwidth / kGigabyte,
      groups(members));
}

// Published devices are used as they are; figures of a CPU's host are rescaled to the ranks.
Machine machine_of(const PlanOptions& options, int ranks) {
  pipeline::Job job = pipeline::job_of(ranks, options.run.threads);
  if (!options.hardware.empty()) {
    HardwareProfile hardware = pipeline::find_profile(options.hardware);
    if (!pipeline::is_of_hosts(hardware)) {
      apply(hardware, options);
      const std::string origin = fmt::format("{} ({})", hardware.name, hardware.description);
      Machine machine{planner::with_devices(hardware, ranks), origin, {}, false, 1};
      if (ranks > hardware.devices) machine.notes.push_back(growth_note(hardware, machine.hardware, ranks));
      // This machine's threads do not apply to another.
      machine.threads = options.run.threads.value_or(1);
      machine.accelerators = true;
      return machine;
    }
    job = pipeline::job_on(hardware, ranks, options.run.threads);
  }
  if (options.ranks_per_process.value_or(1) > 1 && *options.ranks_per_process < ranks)
    fail("ranks_per_process={}: on CPUs a process has one rank or all of them; give 1 or {}",
         *options.ranks_per_process, ranks);
  if (options.ranks_per_process == 1 && ranks > 1) {
    job.processes = true;
    if (options.run.threads) job.threads = static_cast<int>(*options.run.threads);
  }
  pipeline::ProfileChoice choice = pipeline::choose_profile(options.hardware, job);
  if (!choice.known()) fail("hardware: {}; or name one as hardware=FILE", fmt::join(choice.notes, "; "));
  apply(choice.hardware, options);
  choice.hardware = planner::with_devices(choice.hardware, ranks);
  Machine machine{std::move(choice.hardware), choice.origin, choice.notes, !job.processes, options.run.threads};
  if (job.processes || job.cores > 0) machine.threads = job.threads * job.ranks_here();
  machine.rank_threads = job.threads;
  return machine;
}

// One model at one size, on any machine.
class Subject {
 public:
  explicit Subject(const PlanOptions& options) : options_(options), run_(options.run) {}

  // As this program would run it: on CPUs weights that do not fit are streamed or shared. `note`: what is said of keys.
  pipeline::WeightsToFit question(const Machine& machine, int ranks, std::string& note) const {
    pipeline::MemoryQuestion memory = run_.memory;
    memory.options.threads = machine.threads;
    const int of_host = std::min(ranks, std::max(1, machine.hardware.devices_per_host));
    const int here = machine.shares_process ? of_host : 1;
    memory.ranks_here = std::min(ranks, options_.ranks_per_process.value_or(here));
    // Processes of a host keep one copy of the weights.
    if (!machine.accelerators) memory.sharers = std::max(1, of_host / memory.ranks_here);
    memory.grid_frames /= memory.sharers;
    planner::Question q = pipeline::run_question(run_.plan, run_.model, memory, ranks, options_.objective);
    q.hardware = machine.hardware;
    if (memory.ranks_here > 1) note = pipeline::keep_one_copy(q, run_.options);
    q.ranks_here = memory.ranks_here;
    if (run_.options.memory_limit) {
      q.memory_limit = Bytes::of_gigabytes(*run_.options.memory_limit) / q.ranks_here;
      // Only a machine that is named can be planned beyond its memory.
      if (options_.hardware.empty()) q.memory_limit = std::min(*q.memory_limit, q.hardware.device_memory);
    }
    q.work.name = name();
    std::optional<Bytes> available;
    if (!machine.accelerators) available = q.limit() * q.ranks_here;
    const attention::BlockSizes& tiles = options_.run.strategy.flash_block_sizes;
    if (machine.accelerators && tiles.block_q > 0) q.block_q = tiles.block_q;
    if (machine.accelerators && tiles.block_kv > 0) q.block_kv = tiles.block_kv;
    if (available && run_.options.compare_one_rank) {
      const std::string refusal =
          pipeline::refusal(pipeline::one_rank_question(memory), {{"what a process may use", *available}});
      if (!refusal.empty()) fail("compare_one_rank: on one rank, {}", refusal);
    }
    return pipeline::weights_to_fit({std::move(q), memory, available, memory.ranks_here == 1});
  }

  bool takes_pictures() const { return run_.model.kind.image.taken; }

  std::string name() const {
    const pipeline::GenerateOptions& o = run_.options;
    const std::string layers = o.layers ? ", " + run_.model.experts[0].layers_text() : "";
    const std::string batch = o.batch_size > 1 ? fmt::format(", batch of {}", o.batch_size) : "";
    // The model that was found.
    const std::string model = without_last_slash(run_.model.folder).filename().string();
    return fmt::format("{}{}, {} x {}, {} frames{}", model, layers, o.width, o.height, o.num_frames, batch);
  }
  std::vector<std::string> missing_files() const { return run_.missing_files; }

  std::vector<std::string> lines() const {
    const pipeline::GenerateOptions& o = run_.options;
    std::vector<std::string> lines{
        fmt::format("Model     {}: {} tokens, {} steps, {}{}", name(), run_.plan.tokens, run_.plan.total_steps(),
                    run_.plan.guided ? "two guidance branches" : "no guidance",
                    after_comma(pipeline::step_cache_words(o))),
        fmt::format("Dtypes    transformer {}{}, text encoder {}, VAE {}", pipeline::dtype_word(o.dtype),
                    after_comma(pipeline::int8_words(run_.model, run_.plan)),
                    pipeline::dtype_word(o.text_encoder_dtype), pipeline::dtype_word(o.vae_dtype))};
    for (const std::string& line : pipeline::lora_lines(run_.model)) lines.push_back("Files     " + line);
    return lines;
  }

 private:
  const PlanOptions& options_;
  const pipeline::PlannedRun run_;
};

PlanPart part_of(const pipeline::WeightsToFit& fitted, const Machine& machine, const pipeline::GenerateOptions& run) {
  const planner::Question& question = fitted.question;
  PlanPart part;
  part.ranks = question.ranks;
  part.memory_limit = question.limit();
  part.hardware = question.hardware;
  part.ranking = fitted.ranking;
  if (const Candidate* best = part.ranking.best()) {
    part.best_step =
        planner::simulate_step(question.work, question.hardware, best->configuration, planner::Timeline::kLayer);
    if (question.work.kv_vector_bytes > 0 && best->configuration.layout.of_sequence().ranks() > 1) {
      planner::Work as_computed = question.work;
      as_computed.kv_vector_bytes = 0;
      part.step_seconds_as_computed =
          planner::simulate_step(as_computed, question.hardware, best->configuration).seconds;
    }
    part.runs = question.ranks / best->ranks();
    part.videos = question.work.videos;
    part.seconds = video_seconds(part, *best);
    part.videos_per_hour = part.runs * kHour / part.seconds;
    part.device_seconds = part.seconds * best->ranks();
    if (question.hardware.price_per_hour > 0)
      part.price = part.device_seconds * question.hardware.price_per_hour / question.hardware.devices / kHour;
    part.doubts = planner::doubts(question, part.ranking);
    part.settings = settings_of(*best, run);
    if (fitted.keep_weights != run.keep_weights)
      part.settings.push_back(pipeline::keep_weights_text(fitted.keep_weights));
    if (fitted.weight_memory) part.settings.push_back(fmt::format("weight_memory={}", *fitted.weight_memory));
    const bool processes = best->ranks_here == 1 && best->ranks() > 1;
    if (processes && !machine.accelerators) part.command = fmt::format("mpirun -n {} {}", best->ranks(), part.command);
    // A run alone would take all cores.
    if ((part.runs > 1 || run.threads) && !machine.accelerators)
      part.settings.push_back(fmt::format("threads={}", machine.rank_threads * best->ranks_here));
  }
  part.explanation = explanation_of(part);
  return part;
}

std::string exchange_note(const PlanPart& part, const pipeline::GenerateOptions& run) {
  const Candidate* best = part.ranking.best();
  if (best == nullptr) return "";
  const std::string note = pipeline::no_exchange_note(run, best->configuration.layout);
  if (!note.empty() || !run.strategy.shard_weights.automatic) return note;
  return "shard_weights=auto: planned with even shards, which a run changes as its ranks are measured";
}

std::string batch_note(const pipeline::GenerateOptions& run, int ranks) {
  const int64_t batch = pipeline::with_device_batch(run, ranks).batch_size;
  if (batch == run.batch_size) return "";
  return fmt::format("per_device_batch_size={} is a batch of {} videos in generate; batch_size={} plans it",
                     run.videos_per_device, batch, batch);
}

void compare(std::vector<PlanPart>& parts) {
  const auto first =
      std::find_if(parts.begin(), parts.end(), [](const PlanPart& part) { return part.ranking.best() != nullptr; });
  if (first == parts.end()) return;
  for (PlanPart& part : parts) {
    if (part.ranking.best() == nullptr) continue;
    part.speed_up = part.videos_per_hour / first->videos_per_hour;
    part.efficiency = part.speed_up * first->ranks / part.ranks;
  }
}

// The price per device and hour, and its origin.
std::string price_text(const PlanOptions& options, const HardwareProfile& hardware) {
  const double each = hardware.price_per_hour / hardware.devices;
  if (options.price) return fmt::format("{:.4g} per device and hour, from price=", each);
  for (const auto& [key, value] : options.what_if)
    if (key == "price_per_hour") return fmt::format("{:.4g} per device and hour, from what_if.price_per_hour", each);
  if (each > 0) return fmt::format("{:.4g} per device and hour, from price_per_hour of the profile", each);
  return "unknown: device-seconds are used instead, which give the same order; price= sets the price per device and "
         "hour";
}

// One figure for devices; for CPUs it depends on how many ranks share the host.
std::string memory_text(const std::vector<PlanPart>& parts) {
  const bool same = std::all_of(parts.begin(), parts.end(),
                                [&](const PlanPart& part) { return part.memory_limit == parts.front().memory_limit; });
  if (same) return parts.front().memory_limit.text() + " of memory per device";
  std::vector<std::string> each;
  for (const PlanPart& part : parts) each.push_back(fmt::format("{} of {}", part.memory_limit.text(), part.ranks));
  return "memory per device: " + fmt::to_string(fmt::join(each, ", "));
}

// Gains that a profile does not state are 1.
std::string int8_note(const HardwareProfile& hardware, const planner::Work& work) {
  const planner::ComputeFigures& rates = hardware.compute(work.element_bytes);
  const char* key = work.int8_share > 0 && rates.int8_gain == 1             ? "int8_gain"
                    : work.int8_attention && rates.int8_attention_gain == 1 ? "int8_attention_gain"
                                                                            : nullptr;
  if (key == nullptr) return "";
  return fmt::format("{} has no bf16.{}, so int8 is predicted to take as long as bf16", hardware.name, key);
}

}  // namespace

PlanReport plan_answer(const PlanOptions& options) {
  const Subject subject = with_origins(*options.keys, [&] { return Subject(options); });
  PlanReport report;
  report.objective = options.objective;
  report.what_if = options.what_if;
  std::string origin;
  std::optional<Error> refusal;
  for (const int ranks : options.ranks) {
    try {
      const Machine machine = machine_of(options, ranks);
      std::string copies;
      const pipeline::WeightsToFit fitted = subject.question(machine, ranks, copies);
      PlanPart part = part_of(fitted, machine, options.run);
      if (const Candidate* best = part.ranking.best(); best != nullptr && machine.accelerators)
        part.systems = other_systems(*best, fitted.question.work, subject.takes_pictures());
      report.work = fitted.question.work;
      const std::string tiles =
          machine.accelerators ? "" : attention::tile_note(options.run.strategy.flash_block_sizes);
      for (const std::string& note :
           {exchange_note(part, options.run), copies, fitted.note, batch_note(options.run, ranks), tiles})
        if (!note.empty()) report.notes.push_back(fmt::format("{}: {}", counted(ranks, "rank"), note));
      report.parts.push_back(std::move(part));
      report.hardware = machine.hardware;
      origin = machine.origin;
      for (const std::string& note : machine.notes)
        if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end())
          report.notes.push_back(note);
    } catch (const Error& error) {  // what the keys say may be possible for other numbers of ranks
      refusal = Error(options.keys->with_origins(error.what()));
      report.notes.push_back(fmt::format("Not possible on {}: {}", counted(ranks, "rank"), refusal->what()));
    }
  }
  if (report.parts.empty()) throw *refusal;
  if (const std::string note = attention::strategy_note(options.run.strategy); !note.empty())
    report.notes.push_back(note);
  for (const std::string& file : subject.missing_files())
    report.notes.push_back(fmt::format("{}: is not here, or not whole; planned as the model is published", file));
  if (!options.ignored.empty()) report.notes.push_back(options.ignored);
  if (const std::string note = int8_note(report.hardware, report.work); !note.empty()) report.notes.push_back(note);
  compare(report.parts);
  report.title = fmt::format("{}, on {}", subject.name(), report.hardware.name);
  report.question = subject.lines();
  report.question.push_back(fmt::format("Hardware  {}; {}", origin, memory_text(report.parts)));
  for (const auto& [key, value] : options.what_if)
    report.question.push_back(fmt::format("What if   {} = {}", key, value));
  if (options.objective == planner::Objective::kCost || options.price || report.hardware.price_per_hour > 0)
    report.question.push_back("Price     " + price_text(options, report.hardware));
  for (const std::string& note : report.notes) report.question.push_back(fmt::format("Note      {}", note));
  report.answer = answer_of(report.parts);
  return report;
}

}  // namespace zoetrope::plan_report
