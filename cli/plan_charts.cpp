#include "cli/plan_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/words.h"
#include "cli/plan_words.h"

namespace zoetrope::cli {
namespace {

using bench::BarPlot;
using planner::Breakdown;
using planner::Candidate;
using planner::TimelineSpan;
using planner::Verdict;

constexpr size_t kMostBars = 10;  // candidates in the plot; the table has all
constexpr int kMostTimelineRanks = 16;

// The parts of a step as the page shows them, in this order and colour everywhere.
struct StepPart {
  const char* name;
  double (*seconds)(const Breakdown&);
};
constexpr StepPart kStepParts[] = {
    {"attention", [](const Breakdown& b) { return b.attention; }},
    {"matrix multiplications", [](const Breakdown& b) { return b.linear; }},
    {"norms, copies, fixed", [](const Breakdown& b) { return b.tokens + b.overhead; }},
    {"merging ring blocks", [](const Breakdown& b) { return b.merge; }},
    {"waiting for the exchange", [](const Breakdown& b) { return b.exposed_exchange; }},
    {"waiting for the ring", [](const Breakdown& b) { return b.exposed_ring; }},
    {"gathering the velocity", [](const Breakdown& b) { return b.gather; }},
    {"idle: others have more", [](const Breakdown& b) { return b.idle; }},
};

// Without the parts that are nowhere.
std::vector<BarPlot::Series> step_series(const std::vector<const Breakdown*>& rows) {
  std::vector<BarPlot::Series> series;
  for (size_t slot = 0; slot < std::size(kStepParts); ++slot) {
    BarPlot::Series one{kStepParts[slot].name, {}, slot};
    for (const Breakdown* row : rows) one.values.push_back(kStepParts[slot].seconds(*row));
    if (std::any_of(one.values.begin(), one.values.end(), [](double value) { return value > 0; }))
      series.push_back(std::move(one));
  }
  return series;
}

bench::StackedPlot step_plot(const char* title) {
  bench::StackedPlot plot;
  plot.title = title;
  plot.x_label = "seconds a step";
  plot.unit = std::string("s");  // of a literal GCC 12 believes that it overlaps
  return plot;
}

// The kinds that are largest have a colour each, all others share the last. A kind has the same colour in every
// section, and attention the one that it has in a step.
constexpr const char* kMemoryKinds[] = {"attention",
                                        "weights",
                                        "activations",
                                        "prompt keys and values",
                                        "frames and feature caches",
                                        "file pages and weights being packed",
                                        "layers being read"};

// Of a time line: the part of a step that a span belongs to, by its name.
constexpr size_t kExchange = 4, kRing = 5, kIdle = 7;
size_t part_of_step(const std::string& span) {
  if (span.starts_with("attention")) return 0;
  if (span.starts_with("matrix multiplications")) return 1;
  if (span.starts_with("merge")) return 3;
  if (span.starts_with("ulysses")) return kExchange;
  if (span.starts_with("ring")) return kRing;
  if (span.starts_with("slower")) return kIdle;
  return 2;
}

}  // namespace

bool priced(const Candidate& c) { return c.simulated && c.verdict != Verdict::kIllegal && c.time.step.seconds > 0; }

std::string part_title(const PlanPart& part) { return counted(part.ranks, "rank"); }

bench::StackedPlot step_bars(const PlanPart& part) {
  bench::StackedPlot plot = step_plot("A denoising step, of the rank that decides");
  std::vector<const Breakdown*> rows;
  for (const Candidate& candidate : part.ranking.candidates) {
    if (!priced(candidate) || rows.size() == kMostBars) continue;
    plot.rows.push_back(configuration_text(candidate, part.ranks) +
                        (candidate.verdict == Verdict::kDoesNotFit ? " (does not fit)" : ""));
    rows.push_back(&candidate.time.step.critical());
  }
  plot.series = step_series(rows);
  return plot;
}

bench::StackedPlot scaling_bars(const PlanReport& report) {
  bench::StackedPlot plot = step_plot("A denoising step with the best plan for so many ranks");
  std::vector<const Breakdown*> rows;
  for (const PlanPart& part : report.parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) continue;
    plot.rows.push_back(fmt::format("{}: {}", part_title(part), configuration_text(*best, part.ranks)));
    rows.push_back(&best->time.step.critical());
  }
  plot.series = step_series(rows);
  return plot;
}

bench::StackedPlot memory_bars(const PlanPart& part, const Candidate& candidate) {
  bench::StackedPlot plot;
  const int here = candidate.ranks_here;
  plot.title = here == 1 ? "Memory of a rank, phase by phase"
                         : fmt::format("Memory of a process of {} ranks, phase by phase", here);
  plot.x_label = "GB";
  plot.unit = "GB";
  plot.limit = (part.memory_limit * here).gigabytes();
  plot.limit_label = fmt::format("limit {:.3g} GB", plot.limit);
  for (size_t slot = 0; slot < std::size(kMemoryKinds); ++slot) plot.series.push_back({kMemoryKinds[slot], {}, slot});
  plot.series.push_back({"all else", {}, std::size(kMemoryKinds)});
  for (BarPlot::Series& series : plot.series) series.values.resize(candidate.memory.phases.size());
  for (size_t row = 0; row < candidate.memory.phases.size(); ++row) {
    plot.rows.push_back(candidate.memory.phases[row].name);
    for (const planner::MemoryItem& item : candidate.memory.phases[row].items) {
      const auto named = std::find_if(plot.series.begin(), plot.series.end(),
                                      [&](const BarPlot::Series& series) { return series.name == item.name; });
      (named == plot.series.end() ? plot.series.back() : *named).values[row] += item.bytes.gigabytes();
    }
  }
  return plot;
}

bench::TimelinePlot timeline(const planner::StepPrediction& step) {
  constexpr const char* kLanes[] = {"computes", "moves", "waits"};
  constexpr double kMilliseconds = 1e3;
  bench::TimelinePlot plot;
  plot.title = "One layer, rank by rank";
  plot.unit = "ms";
  std::map<size_t, size_t> kind_of;
  std::map<std::pair<int, int>, size_t> row_of;
  for (const TimelineSpan& span : step.layer) {
    if (span.rank >= kMostTimelineRanks) continue;
    row_of[{span.rank, static_cast<int>(span.lane)}] = 0;
    kind_of[part_of_step(span.name)] = 0;
  }
  for (auto& [slot, kind] : kind_of) {
    kind = plot.kinds.size();
    plot.kinds.push_back({slot == kExchange ? "exchange" : slot == kRing ? "ring" : kStepParts[slot].name, slot});
  }
  for (auto& [key, row] : row_of) {
    row = plot.rows.size();
    plot.rows.push_back(fmt::format("rank {} {}", key.first, kLanes[key.second]));
  }
  for (const TimelineSpan& span : step.layer) {
    const auto row = row_of.find({span.rank, static_cast<int>(span.lane)});
    if (row == row_of.end()) continue;
    plot.spans.push_back({row->second, kind_of[part_of_step(span.name)], span.begin * kMilliseconds,
                          span.end * kMilliseconds, fmt::format("rank {}, {}", span.rank, span.name)});
  }
  return plot;
}

}  // namespace zoetrope::cli
