#include "pipeline/auto_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/words.h"
#include "models/wan/step_work.h"
#include "pipeline/pace.h"
#include "pipeline/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

using planner::Fixed;
using planner::Question;
using planner::Verdict;

// Parts of a step that are less than this share of it are not worth a word.
constexpr double kWorthAWord = 0.005;

RankChoice choice_of(const planner::RankUse& use) {
  RankChoice choice;
  choice.data = use.data;
  choice.ulysses = use.context.ulysses;
  choice.head_chunks = use.head_chunks;
  choice.direction = static_cast<attention::Direction>(use.direction);
  choice.vae = use.vae;
  return choice;
}

// The softmax is the faster kernel here, and tiles are tuned for this CPU, whatever the profile says of others.
Fixed fixed_here(const attention::StrategyOptions& keys, const attention::Strategy& strategy) {
  Fixed fixed = fixed_by_keys(keys, strategy);
  fixed.fixed_max = strategy.softmax == attention::Softmax::kFixedMax;
  fixed.block_q = strategy.block_q;
  if (strategy.block_kv > 0) fixed.block_kv = strategy.block_kv;
  return fixed;
}

RankChoice choice_of(const RankLayout& layout) {
  RankChoice choice;
  choice.data = layout.degrees.data;
  choice.ulysses = layout.strategy.ulysses;
  choice.head_chunks = layout.strategy.head_chunks;
  choice.direction = layout.strategy.direction;
  choice.vae = layout.vae;
  return choice;
}

// Where nothing says what a step takes, the rules hold as they do without a planner.
AutoPlan plan_by_rule(const RankChoice& choice, const std::string& layout, const ProfileChoice& profile) {
  AutoPlan plan;
  plan.choice = choice;
  plan.layout = layout;
  plan.notes = profile.notes;
  return plan;
}

// Nothing is left to the search: what was measured must not change a bit.
void fix_all(Fixed& fixed, const RankLayout& layout) {
  fixed.data = layout.degrees.data;
  fixed.context = layout.degrees.context;
  fixed.ulysses = layout.strategy.ulysses;
  fixed.ring = layout.strategy.ring;
  fixed.direction = static_cast<parallel::Direction>(layout.strategy.direction);
  fixed.head_chunks = layout.strategy.head_chunks;
  fixed.vae = layout.vae;
  fixed.text_encoder = 1;  // see encode_prompts_over_ranks()
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

// The fastest beside it that is another layout and not, say, another number of ranks that decode.
const planner::Candidate* next_of(const planner::Ranking& ranking, const std::string& layout,
                                  const std::function<std::string(const RankChoice&)>& layout_of) {
  const planner::Candidate* next = nullptr;
  for (const planner::Candidate& candidate : ranking.candidates) {
    const bool runs = candidate.verdict == Verdict::kTie || candidate.verdict == Verdict::kSlower;
    if (!runs || layout_of(choice_of(candidate.configuration.ranks)) == layout) continue;
    if (next == nullptr || candidate.value < next->value) next = &candidate;
  }
  return next;
}

// `layout_of` says how people read a choice.
AutoPlan plan_of(const Question& question, const ProfileChoice& profile,
                 const std::function<std::string(const RankChoice&)>& layout_of) {
  const planner::Ranking ranking = planner::search(question);
  const planner::Candidate& chosen = chosen_of(ranking);
  AutoPlan plan;
  plan.choice = choice_of(chosen.configuration.ranks);
  plan.layout = layout_of(plan.choice);
  plan.profile = profile.origin;
  plan.notes = profile.notes;
  plan.first_use = profile.first_use;
  plan.predicted = chosen.time;
  plan.bytes_per_rank = chosen.bytes_per_rank;
  plan.model_error = profile.hardware.model_error;
  if (const planner::Candidate* next = next_of(ranking, plan.layout, layout_of))
    plan.next = {layout_of(choice_of(next->configuration.ranks)), next->value / chosen.value - 1};
  return plan;
}

// The layout that keys and rules alone make, with a degree of data that is legal. Throws the refusal of the simplest
// where none is.
RankLayout layout_by_rule(const GenerateOptions& o, const RunPlan& plan, const ModelFolder& model, int ranks) {
  RankChoice choice;
  try {
    return lay_out_ranks(o, plan, model, ranks, choice);
  } catch (const Error& refusal) {
    // What a key says may be possible with the branches dealt out.
    if (!plan.guided || o.strategy.deterministic || ranks % 2 != 0) throw;
    choice.data = 2;
    try {
      return lay_out_ranks(o, plan, model, ranks, choice);
    } catch (const Error&) {
      throw refusal;
    }
  }
}

// "products 3.01 s, attention 812 ms".
std::string parts_text(const planner::StepPrediction& step) {
  std::vector<std::string> words;
  for (const planner::BreakdownPart& part : planner::kBreakdownParts) {
    const double seconds = step.critical().*part.seconds;
    if (seconds >= kWorthAWord * step.seconds) words.push_back(fmt::format("{} {}", part.name, duration_text(seconds)));
  }
  return fmt::to_string(fmt::join(words, ", "));
}

}  // namespace

std::optional<int> degree(const std::optional<int64_t>& said) {
  return said ? std::optional<int>(static_cast<int>(*said)) : std::nullopt;
}

Fixed fixed_by_keys(const attention::StrategyOptions& keys, const attention::Strategy& strategy) {
  const attention::OpenFields open = attention::open_fields(keys);
  Fixed fixed;
  fixed.ulysses = degree(open.ulysses);
  fixed.ring = degree(open.ring);
  if (!open.direction) fixed.direction = static_cast<parallel::Direction>(strategy.direction);
  if (!open.head_chunks) fixed.head_chunks = strategy.head_chunks;
  return fixed;
}

void fix_by_rule(Fixed& fixed, const GenerateOptions& options, const RunPlan& plan, const ModelFolder& model,
                 int ranks) {
  fix_all(fixed, layout_by_rule(options, plan, model, ranks));
}

std::string AutoPlan::text() const {
  if (!priced()) return fmt::format("Plan: {}, by rule and without a prediction: {}", layout, fmt::join(notes, "; "));
  std::string text = fmt::format("Plan: {}; predicted {}{}", layout, duration_text(predicted.step.seconds), per);
  const std::string parts = parts_text(predicted.step);
  if (!parts.empty()) text += fmt::format(" ({})", parts);
  if (bytes_per_rank > planner::Bytes()) text += fmt::format(", {} a rank", bytes_per_rank.text());
  if (next) {
    text += fmt::format("; next best {}, {:.1f} % {}", next->layout, 100 * std::abs(next->slower),
                        next->slower < 0 ? "faster" : "slower");
    if (next->slower < model_error) text += fmt::format(", under the model's error of {:.0f} %", 100 * model_error);
  }
  text += fmt::format("\nPlanned with {}", profile);
  for (const std::string& note : notes) text += fmt::format("; {}", note);
  return text;
}

AutoPlan choose_run(const RunQuestion& q, const machine::Heartbeat& heartbeat) {
  const GenerateOptions& o = q.memory.options;
  const RankLayout by_rule = layout_by_rule(o, q.plan, q.model, q.job.ranks);
  const wan::RunSize size = run_size(q.memory);
  Question question;
  question.work = wan::work(q.memory.configs, size);
  question.work.steps = priced_steps(q.plan);
  const ProfileChoice profile = choose_profile(o.hardware, q.job, {question.work.flop(), heartbeat});
  if (!profile.known()) return plan_by_rule(choice_of(by_rule), layout_text(by_rule), profile);
  question.hardware = profile.hardware;
  question.ranks = q.job.ranks;
  question.ranks_here = q.job.ranks_here();
  question.sharded = by_rule.sharded;
  if (q.available) question.memory_limit = *q.available / question.ranks_here;
  question.memory = [&](const planner::RankUse& use) { return wan::workload(q.memory.configs, size, use); };
  question.fixed = fixed_here(o.strategy, by_rule.strategy);
  question.fixed.text_encoder = q.job.ranks;
  if (o.data_parallelism || computes_branches_in_turn(o)) question.fixed.data = by_rule.degrees.data;
  if (o.context_parallelism != -1) question.fixed.context = by_rule.degrees.context;
  if (o.vae_parallel) question.fixed.vae = by_rule.vae;
  if (o.strategy.deterministic) fix_all(question.fixed, by_rule);
  return plan_of(question, profile, [&](const RankChoice& choice) {
    return layout_text(lay_out_ranks(o, q.plan, q.model, q.job.ranks, choice));
  });
}

AutoPlan choose_attention(const attention::Problem& problem, const attention::StrategyOptions& keys,
                          const std::string& hardware, const Job& job, const machine::Heartbeat& heartbeat) {
  const attention::Strategy strategy = attention::parse_strategy(keys, job.ranks, problem.heads);
  RankLayout by_rule;
  by_rule.degrees.context = job.ranks;
  by_rule.strategy = strategy;
  Question question;
  planner::Work& work = question.work;
  work.layers = 1;
  work.tokens = problem.tokens;
  work.heads = problem.heads;
  work.head_dim = problem.head_dim;
  work.element_bytes = static_cast<int64_t>(dtype_size(problem.dtype));
  work.branches = static_cast<int>(problem.batch);
  work.steps = 1;
  const ProfileChoice profile = choose_profile(hardware, job, {work.flop(), heartbeat});
  if (!profile.known()) return plan_by_rule(choice_of(by_rule), strategy_text(strategy), profile);
  question.hardware = profile.hardware;
  // There are no layers around it, and nothing between them.
  question.hardware.layer_overhead = question.hardware.token_seconds = 0;
  question.ranks = job.ranks;
  question.ranks_here = job.ranks_here();
  question.fixed = fixed_here(keys, strategy);
  if (keys.deterministic) fix_all(question.fixed, by_rule);
  question.fixed.data = question.fixed.text_encoder = 1;
  question.fixed.vae.reset();  // there is none
  question.memory = [&](const planner::RankUse& use) {
    planner::Workload workload;
    workload.ranks = use;
    workload.attention = work.sizes(problem.batch);
    workload.experts.emplace_back().name = "attention";
    return workload;
  };
  question.memory_limit = planner::Bytes::most();  // attention::plan books it, or says that it cannot
  AutoPlan plan = plan_of(question, profile, [&](const RankChoice& choice) {
    return strategy_text(attention::parse_strategy(filled_in(keys, choice), job.ranks, problem.heads));
  });
  plan.per.clear();
  plan.bytes_per_rank = {};  // of the engine alone: a caller has more
  return plan;
}

AutoPlan agreed_plan(comm::Communicator& world, const std::function<AutoPlan(const machine::Heartbeat&)>& decide) {
  static_assert(std::is_trivially_copyable_v<RankChoice>);
  constexpr const char* kPlan = "plan";
  AutoPlan plan;
  std::string refusal;
  Pace pace(world, kPlan);
  if (world.rank() == 0) {
    try {
      plan = decide([&] { pace.still_working(); });
    } catch (const Error& error) {
      refusal = error.what();
    }
    pace.done();
  } else {
    pace.wait();
  }
  if (world.size() > 1) {
    auto length = static_cast<int64_t>(refusal.size());
    world.broadcast(0, &length, sizeof length, kPlan);
    refusal.resize(static_cast<size_t>(length));
    if (length > 0) world.broadcast(0, refusal.data(), refusal.size(), kPlan);
    else world.broadcast(0, &plan.choice, sizeof plan.choice, kPlan);
  }
  if (!refusal.empty()) fail("{}", refusal);
  return plan;
}

}  // namespace zoetrope::pipeline
