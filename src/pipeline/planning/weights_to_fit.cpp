#include "pipeline/planning/weights_to_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/words.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/weight_memory.h"

namespace zoetrope::pipeline {
namespace {

// One way of having the weights.
struct Way {
  planner::Question question;
  planner::Ranking ranking;
  std::optional<double> weight_memory = {};
  std::string disk_note = {};

  const planner::Candidate& best() const { return *ranking.best(); }
  int tensor() const { return best().configuration.layout.tensor; }
};

// What compare_one_rank leaves a stream, whose memory both runs have; unset: there is none to choose. Ranks that share
// their weights stream nothing themselves.
std::optional<double> left_by_comparison(const WeightsQuestion& asked) {
  if (!asked.memory.options.compare_one_rank || asked.question.request.weight_shards.value_or(1) > 1)
    return std::nullopt;
  return weight_memory_to_fit(one_rank_question(asked.memory), *asked.available);
}

// Of all that must stream, by the ranks of a run, what needs least: a stream has most room in it.
std::map<int, const planner::Candidate*> most_frugal(const planner::Ranking& ranking, int tensor, bool all_stream) {
  std::map<int, const planner::Candidate*> least;
  for (const planner::Candidate& candidate : ranking.candidates) {
    if (candidate.verdict == planner::Verdict::kIllegal || candidate.configuration.layout.tensor != tensor) continue;
    if (candidate.verdict != planner::Verdict::kDoesNotFit && !all_stream) continue;
    const planner::Candidate*& found = least[candidate.ranks()];
    if (found == nullptr || candidate.bytes_per_rank < found->bytes_per_rank) found = &candidate;
  }
  return least;
}

// With as much memory for a stream as leaves room for this candidate, `most` at most.
std::optional<Way> streamed_around(const WeightsQuestion& asked, const planner::Candidate& frugal, int tensor,
                                   std::optional<double> most) {
  MemoryQuestion memory = asked.memory;
  memory.layout = frugal.configuration.layout;
  memory.ranks_here = frugal.ranks_here;
  memory.options.strategy.softmax = frugal.configuration.softmax;
  const planner::Bytes available = asked.question.limit() * frugal.ranks_here;
  std::optional<double> gigabytes = weight_memory_to_fit(memory, available);
  if (most) gigabytes = std::min(gigabytes.value_or(*most), *most);
  if (!gigabytes) return std::nullopt;
  memory.options.weight_memory = gigabytes;
  Way way{asked.question, {}, gigabytes};
  way.question.request.tensor = tensor;
  const planner::Work work = work_of(memory);
  const int ranks_here = way.question.work.weights.ranks_here;
  way.question.work.weights = work.weights;
  way.question.work.weights.ranks_here = ranks_here;
  way.question.work.weights_read = work.weights_read;
  way.question.memory = workload_by_layout(memory);
  if (asked.add_disk) way.disk_note = asked.add_disk(way.question, memory);
  way.ranking = planner::search(way.question);
  return way;
}

// What one stream may have fits runs of one size: the best of all sizes.
std::optional<Way> streamed(const WeightsQuestion& asked, const planner::Ranking& without, int tensor,
                            std::optional<double> most) {
  std::optional<Way> best;
  for (const auto& [ranks, frugal] : most_frugal(without, tensor, most.has_value())) {
    std::optional<Way> way = streamed_around(asked, *frugal, tensor, most);
    if (!way || way->ranking.best() == nullptr) continue;
    if (!best || way->best().value < best->best().value) best = std::move(way);
  }
  return best;
}

Way shared(const WeightsQuestion& asked, int shards, int tensor) {
  Way way{asked.question, {}};
  way.question.request.weight_shards = shards;
  way.question.request.tensor = tensor;
  way.ranking = planner::search(way.question);
  return way;
}

// Whether the keys leave open that ranks share the weights.
bool may_share(const WeightsQuestion& asked) {
  const GenerateOptions& o = asked.memory.options;
  return asked.processes && !asked.question.request.weight_shards && o.weights_in_memory == WeightsInMemory::kAuto &&
         !o.weight_memory && o.weight_cache.empty();
}

// Whether runs of every size can have all weights, without dividing layers more than keys say.
bool all_fit(const WeightsQuestion& asked, const planner::Ranking& ranking) {
  const int tensor = asked.question.request.tensor.value_or(1);
  std::map<int, bool> fits;  // by the ranks of a run
  for (const planner::Candidate& candidate : ranking.candidates) {
    if (candidate.verdict == planner::Verdict::kIllegal || candidate.configuration.layout.tensor != tensor) continue;
    bool& any = fits[candidate.ranks()];
    any = any || candidate.verdict != planner::Verdict::kDoesNotFit;
  }
  return !fits.empty() && std::ranges::all_of(fits, [](const auto& size) { return size.second; });
}

// Over how many ranks layers may be divided: as the keys say, or where they leave it open what can fit.
std::vector<int> tensor_degrees(const WeightsQuestion& asked, const planner::Ranking& ranking) {
  if (asked.question.request.tensor) return {*asked.question.request.tensor};
  std::set<int> degrees{1};
  for (const planner::Candidate& candidate : ranking.candidates)
    if (asked.processes && candidate.verdict != planner::Verdict::kIllegal)
      degrees.insert(candidate.configuration.layout.tensor);
  return {degrees.begin(), degrees.end()};
}

// Whether nothing is done but what keys say.
bool keeps_all(const Way& way, const WeightsQuestion& asked) {
  const planner::Question& question = asked.question;
  const bool shares = way.best().configuration.layout.weight_shards > 1 && !question.request.weight_shards;
  return !way.weight_memory && !shares && way.tensor() == question.request.tensor.value_or(1);
}

// As a user would write it.
std::string key_of(const Way& way, const WeightsQuestion& asked) {
  const parallel::ParallelLayout& layout = way.best().configuration.layout;
  if (keeps_all(way, asked)) return "keeping all weights";
  std::string key;
  const auto add = [&](const std::string& word) { key += (key.empty() ? "" : " ") + word; };
  if (way.weight_memory) add(fmt::format("weight_memory={}", *way.weight_memory));
  if (layout.weight_shards > 1) add(fmt::format("fsdp_parallelism={}", layout.weight_shards));
  if (layout.tensor > 1 && !asked.question.request.tensor) add(fmt::format("tensor_parallelism={}", layout.tensor));
  return key;
}

// What was chosen, and what else there was: of what divides layers without being told to, the fastest.
std::string note_of(const std::vector<Way>& ways, const WeightsQuestion& asked) {
  std::string text = "memory is short of all weights";
  bool divides = false;
  int named = 0;
  for (const Way& way : ways) {
    const bool tensor = way.tensor() > 1 && !asked.question.request.tensor;
    if (tensor && std::exchange(divides, true)) continue;
    const std::string step = duration_text(way.best().time.step.seconds), key = key_of(way, asked);
    text += named == 0   ? fmt::format(": {} takes {} a step", key, step)
            : named == 1 ? fmt::format(", where {} would take {}", key, step)
                         : fmt::format(" and {} {}", key, step);
    ++named;
  }
  return text;
}

// With what asked.memory keeps from one video to the next.
WeightsToFit fitted(const WeightsQuestion& asked) {
  WeightsToFit choice{asked.question, {}, {}, asked.memory.options.keep_weights, {}, {}};
  if (asked.available) {
    choice.question.least_memory = [memory = asked.memory](const parallel::ParallelLayout& layout, int ranks_here) {
      MemoryQuestion question = memory;
      question.layout = layout;
      return workload_by_layout(with_least_weights(question))(layout, ranks_here);
    };
  }
  if (asked.add_disk && choice.question.work.weights.fetched > 0)
    choice.disk_note = asked.add_disk(choice.question, asked.memory);
  choice.ranking = planner::search(choice.question);
  if (!asked.available) return choice;
  const std::optional<double> most = left_by_comparison(asked);
  if (!most && all_fit(asked, choice.ranking)) return choice;
  std::vector<Way> ways;
  const auto add = [&](std::optional<Way> way) {
    if (way && way->ranking.best() != nullptr) ways.push_back(*std::move(way));
  };
  // With layers that are divided, or runs of another size.
  if (!most) add(Way{choice.question, choice.ranking, {}, choice.disk_note});
  for (const int tensor : tensor_degrees(asked, choice.ranking)) {
    add(streamed(asked, choice.ranking, tensor, most));
    const int ranks = asked.question.ranks / tensor;
    for (int shards = 2; may_share(asked) && shards <= ranks; ++shards)
      if (ranks % shards == 0) add(shared(asked, shards, tensor));
  }
  if (ways.empty()) return choice;
  // Layers are divided for more than a gain within the model's error, as in planner::search().
  const auto value = [&](const Way& way) {
    const bool divides = way.tensor() > asked.question.request.tensor.value_or(1);
    return way.best().value * (divides ? 1 + asked.question.hardware.model_error : 1);
  };
  std::stable_sort(ways.begin(), ways.end(), [&](const Way& a, const Way& b) { return value(a) < value(b); });
  if (keeps_all(ways.front(), asked)) return choice;
  choice.note = note_of(ways, asked);
  choice.weight_memory = ways.front().weight_memory;
  choice.disk_note = ways.front().disk_note;
  choice.question = std::move(ways.front().question);
  choice.ranking = std::move(ways.front().ranking);
  return choice;
}

constexpr KeepWeights kLess[] = {KeepWeights::kTransformer, KeepWeights::kNone};

}  // namespace

WeightsToFit weights_to_fit(const WeightsQuestion& asked) {
  WeightsToFit choice = fitted(asked);
  const auto keeps_all_in_memory = [&] { return choice.ranking.best() != nullptr && choice.note.empty(); };
  if (!asked.available || !asked.memory.options.keeps_what_fits || keeps_all_in_memory()) return choice;
  for (const KeepWeights keep : kLess) {
    MemoryQuestion memory = asked.memory;
    memory.options.keep_weights = keep;
    planner::Question question = asked.question;
    question.memory = workload_by_layout(memory);
    choice = fitted({std::move(question), memory, asked.available, asked.processes, asked.add_disk});
    if (keeps_all_in_memory()) break;
  }
  if (choice.ranking.best() == nullptr) return choice;
  const std::string streamed = choice.note.empty() ? "" : "; " + choice.note;
  choice.note = fmt::format("memory is short of what several videos keep: {} is taken{}",
                            keep_weights_text(choice.keep_weights), streamed);
  return choice;
}

KeepWeights weights_kept_to_fit(const MemoryQuestion& question, planner::Bytes available) {
  MemoryQuestion kept = question;
  for (const KeepWeights less : kLess) {
    if (!kept.options.keeps_what_fits || peak_memory(kept) <= available) break;
    kept.options.keep_weights = less;
  }
  return kept.options.keep_weights;
}

}  // namespace zoetrope::pipeline
