#include "pipeline/planning/admission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/planning/memory_here.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"

namespace zoetrope::pipeline {

MemoryQuestion one_rank_question(const MemoryQuestion& run) {
  MemoryQuestion one = run;
  one.layout = {};
  one.ranks_here = one.sharers = 1;
  return one;
}

std::string refusal(const MemoryQuestion& question, const std::vector<planner::MemoryLimit>& limits,
                    const StepSeconds& step_seconds) {
  if (limits.empty()) return {};
  const planner::MemoryLimit& limit = limits.front();
  if (peak_memory(as_it_fits(question, limit.available)) <= limit.available) return {};
  const auto words = [](const MemoryQuestion& of) {
    const planner::MemoryPhase peak = memory_plan(of).peak();
    return fmt::format("{} in phase '{}' ({})", peak.total().text(), peak.name, peak.text());
  };
  const MemoryQuestion streamed = with_least_weights(question);
  const bool helps = peak_memory(streamed) < peak_memory(question);
  std::string text = fmt::format("memory: this run needs {}{}, but {} are available, because of {}; ", words(question),
                                 helps ? ", and with its weights streamed still " + words(streamed) : "",
                                 limit.available.text(), limit.what);
  std::vector<std::string> ways = what_would_fit(question, limit.available, step_seconds);
  if (question.grid_frames > 0) {
    MemoryQuestion without = question;
    without.grid_frames = 0;
    if (const planner::Bytes needed = peak_memory(as_it_fits(without, limit.available)); needed <= limit.available)
      ways.insert(ways.begin(), with_peak("no grid, whose frames are kept to the last video", needed));
  }
  if (!ways.empty()) return text + fmt::format("what would fit: {}", fmt::join(ways, ", or "));
  const planner::MemoryPlan least = memory_plan(smallest_question(question));
  return text + fmt::format("the least that this model needs is {}, in phase '{}'", least.peak().total().text(),
                            least.peak().name);
}

void admit(const MemoryQuestion& question, comm::Communicator& world, const StepSeconds& step_seconds) {
  const std::vector<planner::MemoryLimit> limits = limits_here(question, processes_on_this_host(world));
  fail_together(world, refusal(question, limits, step_seconds), "admission");
}

}  // namespace zoetrope::pipeline
