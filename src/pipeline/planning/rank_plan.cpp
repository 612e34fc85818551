#include "pipeline/planning/rank_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "base/words.h"
#include "pipeline/planning/layout_question.h"
#include "pipeline/planning/memory_here.h"
#include "pipeline/planning/streamed_disk.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/planning/weights_to_fit.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

using parallel::ParallelLayout;
using planner::Question;
using planner::Verdict;

// Parts of a step that are less than this share of it are not worth a word.
constexpr double kWorthAWord = 0.005;

// How people read a layout.
using TextOf = std::string (*)(const ParallelLayout& layout, parallel::Softmax softmax);
std::string text_of_run(const ParallelLayout& layout, parallel::Softmax softmax) {
  return parallel::text(layout, softmax);
}
std::string text_of_attention(const ParallelLayout& layout, parallel::Softmax softmax) {
  return parallel::text(layout.context, softmax);
}

// Where nothing says what a step takes, the rules apply as without a planner.
RankPlan plan_by_rule(const ParallelLayout& layout, const Question& question, const ProfileChoice& profile,
                      TextOf text_of) {
  RankPlan plan;
  plan.layout = layout;
  plan.softmax = question.softmax.value_or(plan.softmax);
  plan.layout_text = text_of(layout, plan.softmax);
  plan.notes = profile.notes;
  return plan;
}

// The planner's best. Where nothing fits the most frugal.
const planner::Candidate& chosen_of(const planner::Ranking& ranking) {
  if (const planner::Candidate* best = ranking.best()) return *best;
  const planner::Candidate* least = nullptr;
  for (const planner::Candidate& candidate : ranking.candidates) {
    if (candidate.verdict == Verdict::kIllegal) continue;
    if (least == nullptr || candidate.bytes_per_rank < least->bytes_per_rank) least = &candidate;
  }
  ZT_CHECK(least != nullptr);
  return *least;
}

// The fastest other layout; another number of decoding ranks alone is not another layout.
const planner::Candidate* next_of(const planner::Ranking& ranking, const ParallelLayout& layout) {
  const planner::Candidate* next = nullptr;
  for (const planner::Candidate& candidate : ranking.candidates) {
    const bool runs = candidate.verdict == Verdict::kTie || candidate.verdict == Verdict::kSlower;
    const ParallelLayout& other = candidate.configuration.layout;
    const bool same = other.data == layout.data && other.context == layout.context && other.tensor == layout.tensor;
    if (!runs || same) continue;
    if (next == nullptr || candidate.value < next->value) next = &candidate;
  }
  return next;
}

RankPlan plan_of(const planner::Ranking& ranking, const ProfileChoice& profile, TextOf text_of) {
  const planner::Candidate& chosen = chosen_of(ranking);
  RankPlan plan;
  plan.layout = chosen.configuration.layout;
  plan.softmax = chosen.configuration.softmax;
  plan.layout_text = text_of(plan.layout, plan.softmax);
  plan.profile = profile.origin;
  plan.notes = profile.notes;
  plan.first_use = profile.first_use;
  plan.predicted = chosen.time;
  plan.bytes_per_rank = chosen.bytes_per_rank;
  plan.fits = ranking.best() != nullptr;
  plan.model_error = profile.hardware.model_error;
  if (const planner::Candidate* next = next_of(ranking, plan.layout)) {
    plan.next = {text_of(next->configuration.layout, next->configuration.softmax), next->value / chosen.value - 1};
  }
  return plan;
}

// "matrix multiplications 3.01 s, attention 812 ms".
std::string parts_text(const planner::StepPrediction& step) {
  std::vector<std::string> words;
  for (const planner::BreakdownPart& part : planner::kBreakdownParts) {
    const double seconds = step.critical().*part.seconds;
    if (seconds >= kWorthAWord * step.seconds) words.push_back(fmt::format("{} {}", part.name, duration_text(seconds)));
  }
  return fmt::to_string(fmt::join(words, ", "));
}

// Of a question that streams, on this machine: whether files stay in memory, else how fast their disk is. Profiles that
// are named say it themselves.
// Returns a note on the disk; empty: there is none.
std::string add_disk(const RunQuestion& q, Question& question, const MemoryQuestion& memory) {
  if (!memory.options.hardware.empty() || question.hardware.disk_read > 0 || question.work.weights.in_memory) return "";
  const int processes = q.job.processes ? q.job.ranks_per_host : 1;
  const planner::AvailableQuery query = query_here(processes, q.job.threads * q.job.ranks_here());
  const planner::Bytes free = planner::tightest(planner::memory_limits(query)).value_or(planner::Bytes());
  const planner::Bytes room = (free - peak_memory(memory)) * processes;
  const StreamedDisk disk = streamed_disk(streamed_files(q.model, memory.options.weight_cache), room);
  question.work.weights.in_memory = disk.in_memory;
  question.hardware.disk_read = disk.bytes_per_second;
  return disk.note;
}

}  // namespace

std::string RankPlan::text() const {
  if (!priced())
    return fmt::format("Plan: {}, by rule and without a prediction: {}", layout_text, fmt::join(notes, "; "));
  std::string text = fmt::format("Plan: {}; predicted {}{}", layout_text, duration_text(predicted.step.seconds), per);
  const std::string parts = parts_text(predicted.step);
  if (!parts.empty()) text += fmt::format(" ({})", parts);
  if (bytes_per_rank > planner::Bytes()) text += fmt::format(", {} a rank", bytes_per_rank.text());
  if (next) {
    text += fmt::format("; next best {}, {:.1f} % {}", next->layout_text, 100 * std::abs(next->slower),
                        next->slower < 0 ? "faster" : "slower");
    if (next->slower < model_error) text += fmt::format(", under the model's error of {:.0f} %", 100 * model_error);
  }
  text += fmt::format("\nPlanned with {}", profile);
  for (const std::string& note : notes) text += fmt::format("; {}", note);
  return text;
}

std::optional<double> RankPlan::step_seconds(const MemoryQuestion& question) const {
  if (hardware == nullptr || question.layout.ranks() > hardware->devices) return std::nullopt;
  planner::Configuration configuration;
  configuration.layout = question.layout;
  configuration.softmax = softmax;
  return planner::simulate_step(work_of(question), *hardware, configuration).seconds;
}

RankPlan choose_run(const RunQuestion& q, const machine::Heartbeat& heartbeat) {
  const GenerateOptions& o = q.memory.options;
  ParallelLayout by_rule = layout_by_rule(o, q.plan, q.model, q.job.ranks);
  MemoryQuestion memory = q.memory;
  memory.ranks_here = q.job.ranks_here();
  // Processes of a host keep one copy of the weights.
  if (q.job.processes) memory.sharers = q.job.ranks_per_host;
  Question question = run_question(q.plan, q.model, memory, q.job.ranks);
  leave_tiles_to_kernels(question);
  std::vector<std::string> notes;
  if (!q.job.processes) {
    if (std::string note = keep_one_copy(question, o); !note.empty()) notes.push_back(std::move(note));
    by_rule.weight_shards = 1;
  }
  const ProfileChoice profile = choose_profile(o.hardware, q.job, {question.work.flop(), heartbeat, q.available});
  RankPlan plan;
  if (profile.known()) {
    question.hardware = profile.hardware;
    question.ranks_here = memory.ranks_here;
    if (q.available) question.memory_limit = *q.available / question.ranks_here;
    const auto disk = [&](Question& streaming, const MemoryQuestion& of) { return add_disk(q, streaming, of); };
    const WeightsToFit weights = weights_to_fit({question, memory, q.available, q.job.processes, disk});
    for (const std::string& note : {weights.disk_note, weights.note})
      if (!note.empty()) notes.push_back(note);
    plan = plan_of(weights.ranking, profile, text_of_run);
    plan.keep_weights = weights.keep_weights;
    plan.hardware = std::make_shared<const planner::HardwareProfile>(weights.question.hardware);
    // Tiles are decoded by one rank.
    plan.layout.vae_ranks = std::min(plan.layout.vae_ranks, by_rule.vae_ranks);
  } else {
    plan = plan_by_rule(by_rule, question, profile, text_of_run);
    memory.layout = plan.layout;
    plan.keep_weights = o.keep_weights;
    if (q.available) {
      memory.options.keep_weights = plan.keep_weights = weights_kept_to_fit(memory, *q.available);
      plan.fits = peak_memory(as_it_fits(memory, *q.available)) <= *q.available;
    }
  }
  if (const std::string note = no_exchange_note(o, plan.layout); !note.empty()) notes.push_back(note);
  else if (o.strategy.shard_weights.automatic && !profile.known())
    notes.emplace_back("shard_weights=auto: shards stay even, for they follow the prices of a profile");
  plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
  return plan;
}

RankPlan choose_attention(const attention::Problem& problem, const attention::StrategyOptions& keys,
                          const std::string& hardware, const Job& job, const machine::Heartbeat& heartbeat) {
  Question question = attention_question(problem, keys, job.ranks);
  leave_tiles_to_kernels(question);
  const ProfileChoice profile = choose_profile(hardware, job, {question.work.flop(), heartbeat});
  if (!profile.known()) {
    ParallelLayout by_rule;
    by_rule.context = filled(question.request.context, job.ranks, problem.heads);
    return plan_by_rule(by_rule, question, profile, text_of_attention);
  }
  question.hardware = profile.hardware;
  // There are no layers around it, and nothing between them.
  question.hardware.layer_overhead = question.hardware.token_seconds = 0;
  question.ranks_here = job.ranks_here();
  RankPlan plan = plan_of(planner::search(question), profile, text_of_attention);
  plan.per.clear();
  plan.bytes_per_rank = {};  // of the engine alone: a caller has more
  return plan;
}

namespace {

// Calls body(field) for every field of a layout but the shard weights.
template <typename Layout, typename Body>
void each_field(Layout& layout, Body&& body) {
  for (auto* field : {&layout.data, &layout.vae_ranks, &layout.text_ranks, &layout.weight_shards, &layout.tensor})
    body(*field);
  body(layout.sharded);
  layout.context.for_each([&](const char*, auto& field) { body(field); });
}

void broadcast(comm::Communicator& world, ParallelLayout& layout) {
  constexpr const char* kLayout = "layout";
  std::vector<int> fields;
  each_field(layout, [&](const auto& field) { fields.push_back(static_cast<int>(field)); });
  fields.push_back(static_cast<int>(layout.context.shard_weights.size()));
  world.broadcast(0, fields.data(), fields.size() * sizeof(int), kLayout);
  size_t next = 0;
  each_field(layout,
             [&](auto& field) { field = static_cast<std::remove_reference_t<decltype(field)>>(fields[next++]); });
  std::vector<int>& weights = layout.context.shard_weights;
  weights.resize(static_cast<size_t>(fields.back()));
  if (!weights.empty()) world.broadcast(0, weights.data(), weights.size() * sizeof(int), kLayout);
}

}  // namespace

RankPlan agreed_plan(comm::Communicator& world, const std::function<RankPlan(const machine::Heartbeat&)>& decide) {
  constexpr const char* kPlan = "plan";
  RankPlan plan;
  std::string refusal;
  RankHeartbeat heartbeat(world, kPlan);
  if (world.rank() == 0) {
    try {
      plan = decide([&] { heartbeat.beat(); });
    } catch (const Error& error) {
      refusal = error.what();
    }
    heartbeat.done();
  } else {
    heartbeat.wait();
  }
  if (plan.priced()) plan.step_timeout = step_timeout(plan.predicted.step, plan.layout);
  fail_together(world, refusal, kPlan);
  if (world.size() == 1) return plan;
  broadcast(world, plan.layout);
  world.broadcast(0, &plan.softmax, sizeof plan.softmax, kPlan);
  world.broadcast(0, &plan.keep_weights, sizeof plan.keep_weights, kPlan);
  double timeout = plan.step_timeout.value_or(0);
  world.broadcast(0, &timeout, sizeof timeout, kPlan);
  if (timeout > 0) plan.step_timeout = timeout;
  return plan;
}

}  // namespace zoetrope::pipeline
