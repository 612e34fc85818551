#include "pipeline/weights_to_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/words.h"
#include "pipeline/weight_memory.h"

namespace zoetrope::pipeline {
namespace {

// One way of having the weights, as a user would write it.
struct Way {
  std::string key;
  planner::Question question;
  planner::Ranking ranking;
  std::optional<double> weight_memory = {};

  const planner::Candidate& best() const { return *ranking.best(); }
};

// Of all that does not fit what needs least: a stream has most room in it. Null where nothing is legal.
const planner::Candidate* most_frugal(const planner::Ranking& ranking) {
  const planner::Candidate* least = nullptr;
  for (const planner::Candidate& candidate : ranking.candidates) {
    if (candidate.verdict != planner::Verdict::kDoesNotFit) continue;
    if (least == nullptr || candidate.bytes_per_rank < least->bytes_per_rank) least = &candidate;
  }
  return least;
}

std::optional<Way> streamed(const WeightsQuestion& asked, const planner::Ranking& without) {
  const planner::Candidate* frugal = most_frugal(without);
  if (frugal == nullptr) return std::nullopt;
  MemoryQuestion memory = asked.memory;
  memory.layout = frugal->configuration.layout;
  memory.ranks_here = frugal->ranks_here;
  memory.options.strategy.softmax = frugal->configuration.softmax;
  const std::optional<double> gigabytes = weight_memory_to_fit(memory, *asked.available);
  if (!gigabytes) return std::nullopt;
  memory.options.weight_memory = gigabytes;
  Way way{fmt::format("weight_memory={}", *gigabytes), asked.question, {}, gigabytes};
  const int ranks_here = way.question.work.weights.ranks_here;
  way.question.work.weights = work_of(memory).weights;
  way.question.work.weights.ranks_here = ranks_here;
  way.question.memory = workload_by_layout(memory);
  if (asked.add_disk) asked.add_disk(way.question, memory);
  way.ranking = planner::search(way.question);
  return way;
}

std::optional<Way> shared(const WeightsQuestion& asked, int shards) {
  Way way{fmt::format("fsdp_parallelism={}", shards), asked.question, {}};
  way.question.request.weight_shards = shards;
  way.ranking = planner::search(way.question);
  return way;
}

// Whether the keys leave open that ranks share the weights.
bool may_share(const WeightsQuestion& asked) {
  const GenerateOptions& o = asked.memory.options;
  return asked.processes && !asked.question.request.weight_shards && o.weights_in_memory == WeightsInMemory::kAuto &&
         !o.weight_memory && o.weight_cache.empty();
}

std::string note_of(const std::vector<Way>& ways) {
  std::string text = "memory is short of all weights";
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string step = duration_text(ways[i].best().time.step.seconds);
    text += i == 0   ? fmt::format(": {} takes {} a step", ways[i].key, step)
            : i == 1 ? fmt::format(", where {} would take {}", ways[i].key, step)
                     : fmt::format(" and {} {}", ways[i].key, step);
  }
  return text;
}

}  // namespace

WeightsToFit weights_to_fit(const WeightsQuestion& asked) {
  WeightsToFit choice{asked.question, {}, {}, {}};
  if (asked.add_disk && choice.question.work.weights.fetched > 0) asked.add_disk(choice.question, asked.memory);
  choice.ranking = planner::search(choice.question);
  if (choice.ranking.best() != nullptr || !asked.available) return choice;
  std::vector<Way> ways;
  const auto add = [&](std::optional<Way> way) {
    if (way && way->ranking.best() != nullptr) ways.push_back(*std::move(way));
  };
  add(streamed(asked, choice.ranking));
  const int ranks = asked.question.ranks;
  for (int shards = 2; may_share(asked) && shards <= ranks; ++shards)
    if (ranks % shards == 0) add(shared(asked, shards));
  if (ways.empty()) return choice;
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.best().value < b.best().value; });
  choice.note = note_of(ways);
  choice.weight_memory = ways.front().weight_memory;
  choice.question = std::move(ways.front().question);
  choice.ranking = std::move(ways.front().ranking);
  return choice;
}

}  // namespace zoetrope::pipeline
