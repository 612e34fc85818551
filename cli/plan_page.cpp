// The page of `zoetrope plan`: what to use, the time and memory of it, how it scales, and why other configurations were
// not chosen. Uses the tables and plots of bench/; one colour means one thing in all charts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/words.h"
#include "bench/page.h"
#include "bench/report.h"
#include "cli/plan.h"

namespace zoetrope::cli {

using namespace plan_report;
namespace {

using bench::Format;
using bench::RowPlot;
using planner::Breakdown;
using planner::Candidate;
using planner::TimelineSpan;
using planner::Verdict;

constexpr size_t kMostBars = 10;  // candidates in the plot; the table has all
constexpr int kMostTimelineRanks = 16;

// The parts of a step, in the same order and colour everywhere. There are more than colours: what adds up parts of a
// result has one.
struct StepPart {
  const char* name;
  double Breakdown::*parts[2];  // one or two
  size_t colour;

  double seconds(const Breakdown& step) const { return step.*parts[0] + (parts[1] == nullptr ? 0 : step.*parts[1]); }
};
constexpr StepPart kStepParts[] = {
    {"attention", {&Breakdown::attention}, 0},
    {"matrix multiplication", {&Breakdown::linear}, 1},
    {"norms, copies, fixed", {&Breakdown::tokens, &Breakdown::overhead}, 2},
    {"merging ring blocks", {&Breakdown::merge}, 3},
    {"waiting for the exchange", {&Breakdown::exposed_exchange}, 4},
    {"waiting for the ring", {&Breakdown::exposed_ring}, 5},
    {"sums over tensor ranks", {&Breakdown::tensor}, 3},
    {"waiting for weights", {&Breakdown::weights}, 6},
    {"gathering the velocity", {&Breakdown::gather}, 7},
    {"idle: others have more", {&Breakdown::idle}, 8},
};

RowPlot row_plot(std::string title, std::string label, std::string unit, bool sums) {
  RowPlot plot;
  plot.title = std::move(title);
  plot.label = std::move(label);
  plot.unit = std::move(unit);
  plot.sums = sums;
  return plot;
}

// A row per step, without parts that are zero everywhere.
struct NamedStep {
  std::string name;
  const Breakdown* step;
};
RowPlot step_plot(const char* title, const std::vector<NamedStep>& steps) {
  RowPlot plot = row_plot(title, "seconds per step", "s", true);
  for (const NamedStep& step : steps) plot.rows.push_back(step.name);
  for (const StepPart& part : kStepParts) {
    if (std::none_of(steps.begin(), steps.end(), [&](const NamedStep& s) { return part.seconds(*s.step) > 0; }))
      continue;
    plot.kinds.push_back({part.name, part.colour});
    for (size_t row = 0; row < steps.size(); ++row)
      plot.append(row, plot.kinds.size() - 1, part.seconds(*steps[row].step));
  }
  return plot;
}

// The largest kinds have a colour each, all others share the last. A kind has the same colour in every section, and
// attention the same as in a step.
constexpr const char* kMemoryKinds[] = {
    planner::kAttentionMemory, planner::kWeightMemory,  planner::kActivationMemory, planner::kContextMemory,
    planner::kFrameMemory,     planner::kPackingMemory, planner::kLayersReadMemory, "all else"};

// Of a timeline: the part of a step that a span belongs to.
size_t part_of_step(const TimelineSpan& span) {
  const auto* const found = std::ranges::find_if(kStepParts, [&](const StepPart& part) {
    return std::ranges::find(part.parts, span.part) != std::end(part.parts);
  });
  return static_cast<size_t>(found - std::begin(kStepParts));
}

// Whether the parts of its step are known.
bool priced(const Candidate& c) { return c.simulated && c.verdict != Verdict::kIllegal && c.time.step.seconds > 0; }

std::string part_title(const PlanPart& part) { return counted(part.ranks, "rank"); }

RowPlot step_bars(const PlanPart& part) {
  std::vector<NamedStep> steps;
  for (const Candidate& candidate : part.ranking.candidates) {
    if (!priced(candidate) || steps.size() == kMostBars) continue;
    const char* note = candidate.verdict == Verdict::kDoesNotFit ? " (does not fit)" : "";
    steps.push_back({configuration_text(candidate, part.ranks) + note, &candidate.time.step.critical()});
  }
  return step_plot("A denoising step, of the slowest rank", steps);
}

RowPlot scaling_bars(const PlanReport& report) {
  std::vector<NamedStep> steps;
  for (const PlanPart& part : report.parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) continue;
    steps.push_back(
        {fmt::format("{}: {}", part_title(part), configuration_text(*best, part.ranks)), &best->time.step.critical()});
  }
  return step_plot("A denoising step with the best plan for each number of ranks", steps);
}

RowPlot memory_bars(const PlanPart& part, const Candidate& candidate) {
  const int here = candidate.ranks_here;
  RowPlot plot = row_plot(here == 1 ? "Memory of a rank, phase by phase"
                                    : fmt::format("Memory of a process of {} ranks, phase by phase", here),
                          "GB", "GB", true);
  plot.limit = (part.memory_limit * here).gigabytes();
  plot.limit_label = fmt::format("limit {:.3g} GB", plot.limit);
  for (const char* kind : kMemoryKinds) plot.kinds.push_back({kind});
  for (const planner::MemoryPhase& phase : candidate.memory.phases) {
    std::vector<double> sums(plot.kinds.size());
    for (const planner::MemoryItem& item : phase.items) {
      const auto named = std::find_if(plot.kinds.begin(), plot.kinds.end() - 1,
                                      [&](const RowPlot::Kind& kind) { return kind.name == item.name; });
      sums[static_cast<size_t>(named - plot.kinds.begin())] += item.bytes.gigabytes();
    }
    plot.rows.push_back(phase.name);
    for (size_t kind = 0; kind < sums.size(); ++kind) plot.append(plot.rows.size() - 1, kind, sums[kind]);
  }
  return plot;
}

RowPlot timeline(const planner::StepPrediction& step) {
  constexpr const char* kLanes[] = {"computes", "moves", "waits"};
  constexpr double kMilliseconds = 1e3;
  RowPlot plot = row_plot("One layer, rank by rank", "ms", "ms", false);
  std::map<size_t, size_t> kind_of;
  std::map<std::pair<int, int>, size_t> row_of;
  for (const TimelineSpan& span : step.layer) {
    if (span.rank >= kMostTimelineRanks) continue;
    row_of[{span.rank, static_cast<int>(span.lane)}] = 0;
    kind_of[part_of_step(span)] = 0;
  }
  for (auto& [part, kind] : kind_of) {
    kind = plot.kinds.size();
    const StepPart& of = kStepParts[part];
    const bool exchange = of.parts[0] == &Breakdown::exposed_exchange, ring = of.parts[0] == &Breakdown::exposed_ring;
    plot.kinds.push_back({exchange ? "exchange" : ring ? "ring" : of.name, of.colour});
  }
  for (auto& [key, row] : row_of) {
    row = plot.rows.size();
    plot.rows.push_back(fmt::format("rank {} {}", key.first, kLanes[key.second]));
  }
  for (const TimelineSpan& span : step.layer) {
    const auto row = row_of.find({span.rank, static_cast<int>(span.lane)});
    if (row == row_of.end()) continue;
    plot.bars.push_back({row->second, kind_of[part_of_step(span)], span.begin * kMilliseconds, span.end * kMilliseconds,
                         fmt::format("rank {}, {}", span.rank, span.name)});
  }
  return plot;
}

// ---- tables and sections --------------------------------------------------------------------------------------------

bench::Table candidate_table(const PlanPart& part) {
  bench::Table table;
  table.columns = {{"configuration", "configuration", Format::kText, false, true},
                   {"verdict", "verdict", Format::kText},
                   {"seconds", "video", Format::kText},
                   {"seconds_per_step", "step", Format::kText},
                   {"attention", "attention", Format::kPercent},
                   {"communication", "exchange, ring, sums", Format::kPercent},
                   {"memory", "memory per rank", Format::kText},
                   {"reason", "why", Format::kText, false, true}};
  for (size_t i = 0; i < part.ranking.candidates.size(); ++i) {
    const Candidate& c = part.ranking.candidates[i];
    std::vector<bench::Cell> row(table.columns.size());
    row[0] = configuration_text(c, part.ranks);
    row[1] = verdict_words(c.verdict);
    if (c.verdict != Verdict::kIllegal) {
      const char* least = c.simulated ? "" : "at least ";
      row[2] = least + seconds_text(video_seconds(part, c));
      row[3] = least + seconds_text(c.time.step.seconds);
      row[6] = c.bytes_per_rank.text();
    }
    if (priced(c)) {
      const Breakdown& b = c.time.step.critical();
      row[4] = b.attention / b.total();
      row[5] = (b.exposed_exchange + b.exposed_ring + b.tensor) / b.total();
    }
    row[7] = reason_text(part, i);
    table.add(std::move(row));
  }
  return table;
}

bench::Section scaling_section(const PlanReport& report) {
  bench::Section section;
  section.name = "scaling";
  section.title = "How it scales";
  section.note =
      "The best plan for every number of ranks. Speed-up and efficiency are of all runs side by side, relative to the "
      "fewest ranks that fit; the dashed line is 1.";
  bench::LinePlot seconds{"Seconds of a video", "ranks", "seconds", false, false, 0, {{"best plan", {}}}};
  bench::LinePlot efficiency{"Efficiency", "ranks", "of ideal", false, true, 1, {{"best plan", {}}}};
  section.table.columns = {{"ranks", "ranks", Format::kCount},
                           {"plan", "best plan", Format::kText, false, true},
                           {"seconds", "video", Format::kText},
                           {"step", "step", Format::kText},
                           {"videos_per_hour", "videos per hour", Format::kOneDecimal},
                           {"speed_up", "speed-up", Format::kOneDecimal},
                           {"efficiency", "efficiency", Format::kPercent},
                           {"device_seconds", "device time per video", Format::kText},
                           {"price", "price per video", Format::kText}};
  for (const PlanPart& part : report.parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) {
      std::vector<bench::Cell> row(section.table.columns.size());
      row[0] = static_cast<int64_t>(part.ranks);
      row[1] = "nothing fits; the least that would: " + part.ranking.least_that_fits;
      section.table.add(std::move(row));
      continue;
    }
    seconds.lines[0].points.push_back({static_cast<double>(part.ranks), part.seconds});
    efficiency.lines[0].points.push_back({static_cast<double>(part.ranks), part.efficiency});
    section.table.add({static_cast<int64_t>(part.ranks), configuration_text(*best, part.ranks),
                       seconds_text(part.seconds), seconds_text(best->time.step.seconds), part.videos_per_hour,
                       part.speed_up, part.efficiency, seconds_text(part.device_seconds),
                       part.price > 0 ? bench::Cell(fmt::format("{:.3g}", part.price)) : bench::Cell()});
  }
  if (!seconds.lines[0].points.empty()) {
    section.line_plots = {seconds, efficiency};
    section.row_plots = {scaling_bars(report)};
  }
  return section;
}

// The one that is closest to fitting; null where something fits, and where nothing is legal.
const Candidate* most_frugal(const PlanPart& part) {
  const std::vector<Candidate>& all = part.ranking.candidates;
  return !all.empty() && all.front().verdict == Verdict::kDoesNotFit ? &all.front() : nullptr;
}

std::string listing(const PlanPart& part) {
  std::string lines = part.command + ": " + settings_text(part.settings);
  for (const OtherSystem& system : part.systems) lines += fmt::format("\n{}: {}", system.name, system_text(system));
  return lines;
}

bench::Section part_section(const PlanPart& part) {
  bench::Section section;
  section.name = fmt::format("ranks-{}", part.ranks);
  section.title = part_title(part);
  section.note = fmt::to_string(fmt::join(part.explanation, " "));
  if (part.ranking.left_out > 0) {
    section.note +=
        fmt::format(" {} more combinations are far from the fastest and not listed.", part.ranking.left_out);
  }
  const bool any = std::any_of(part.ranking.candidates.begin(), part.ranking.candidates.end(), priced);
  if (any) section.row_plots.push_back(step_bars(part));
  if (const Candidate* best = part.ranking.best()) {
    section.listing_title = part.runs > 1 ? "To type, for each run" : "To type";
    section.listing = listing(part);
    section.highlights = {{seconds_text(best->time.step.seconds), "a denoising step, predicted"},
                          part.runs > 1 ? std::pair(fmt::format("{:.3g}", part.videos_per_hour),
                                                    fmt::format("videos per hour, of {} runs of {} side by side",
                                                                part.runs, counted(best->ranks(), "rank")))
                                        : std::pair(seconds_text(part.seconds), std::string("per video")),
                          {best->bytes_per_rank.text(), "memory of a rank, of " + part.memory_limit.text()},
                          {best->time.step.limited_by(), "is what limits it"}};
    section.row_plots.push_back(memory_bars(part, *best));
    if (!part.best_step.layer.empty()) section.row_plots.push_back(timeline(part.best_step));
  } else if (const Candidate* frugal = most_frugal(part)) {
    section.row_plots.push_back(memory_bars(part, *frugal));
    section.row_plots.back().title += ", of what needs least: " + configuration_text(*frugal);
  }
  section.table = candidate_table(part);
  return section;
}

}  // namespace

std::string plan_page(const PlanReport& report) {
  bench::Report page;
  page.title = report.title;
  page.subtitle = fmt::to_string(fmt::join(report.answer, " "));
  page.facts = "The question";
  for (const std::string& line : report.question) {
    const size_t name = line.find("  "), fact = line.find_first_not_of(' ', name);
    page.machine.emplace_back(line.substr(0, name), fact == std::string::npos ? "" : line.substr(fact));
  }
  if (report.parts.size() > 1) page.sections.push_back(scaling_section(report));
  for (const PlanPart& part : report.parts) page.sections.push_back(part_section(part));
  return bench::report_page(page);
}

}  // namespace zoetrope::cli
