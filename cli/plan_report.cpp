// The page of `zoetrope plan`: what to use, where its time goes, how it scales, whether it fits, and what was not
// chosen. Drawn with bench's plots; computes nothing but sums of what the struct holds.
#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/atomic_file.h"
#include "bench/page.h"
#include "bench/report.h"
#include "cli/plan_answer.h"

namespace zoetrope::cli {
namespace {

using bench::BarPlot;
using bench::Column;
using bench::Format;
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
    {"products", [](const Breakdown& b) { return b.linear; }},
    {"norms, copies, fixed", [](const Breakdown& b) { return b.tokens + b.overhead; }},
    {"merging ring blocks", [](const Breakdown& b) { return b.merge; }},
    {"waiting for the exchange", [](const Breakdown& b) { return b.exposed_exchange; }},
    {"waiting for the ring", [](const Breakdown& b) { return b.exposed_ring; }},
    {"gathering the velocity", [](const Breakdown& b) { return b.gather; }},
    {"idle: others have more", [](const Breakdown& b) { return b.idle; }},
};

bool priced(const Candidate& c) { return c.simulated && c.verdict != Verdict::kIllegal && c.time.step.seconds > 0; }

std::string part_title(const PlanPart& part) {
  return fmt::format("{} rank{}", part.ranks, part.ranks == 1 ? "" : "s");
}

std::vector<BarPlot::Series> step_series(const std::vector<const Breakdown*>& rows) {
  std::vector<BarPlot::Series> series;
  for (const StepPart& part : kStepParts) {
    series.push_back({part.name, {}});
    for (const Breakdown* row : rows) series.back().values.push_back(part.seconds(*row));
  }
  return series;
}

bench::StackedPlot step_plot(const char* title) {
  bench::StackedPlot plot;
  plot.title = title;
  plot.x_label = "seconds a step";
  plot.unit = "s";
  return plot;
}

bench::StackedPlot step_bars(const PlanPart& part) {
  bench::StackedPlot plot = step_plot("A denoising step, of the rank that decides");
  std::vector<const Breakdown*> rows;
  for (const Candidate& candidate : part.ranking.candidates) {
    if (!priced(candidate) || rows.size() == kMostBars) continue;
    plot.rows.push_back(configuration_text(candidate) +
                        (candidate.verdict == Verdict::kDoesNotFit ? " (does not fit)" : ""));
    rows.push_back(&candidate.time.step.critical());
  }
  plot.series = step_series(rows);
  return plot;
}

// The best of every number of ranks.
bench::StackedPlot scaling_bars(const PlanReport& report) {
  bench::StackedPlot plot = step_plot("A denoising step with the best plan for so many ranks");
  std::vector<const Breakdown*> rows;
  for (const PlanPart& part : report.parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) continue;
    plot.rows.push_back(fmt::format("{}: {}", part_title(part), configuration_text(*best)));
    rows.push_back(&best->time.step.critical());
  }
  plot.series = step_series(rows);
  return plot;
}

bench::StackedPlot memory_bars(const PlanPart& part, const Candidate& best) {
  bench::StackedPlot plot;
  plot.title = "Memory of one process, phase by phase";
  plot.x_label = "GB";
  plot.unit = "GB";
  plot.limit = (part.memory_limit * best.configuration.ranks.here).gigabytes();
  plot.limit_label = fmt::format("limit {:.3g} GB", plot.limit);
  // The largest kinds have a colour each, all others share the last.
  std::map<std::string, double> largest;
  for (const planner::MemoryPhase& phase : best.memory.phases) {
    for (const planner::MemoryItem& item : phase.items)
      largest[item.name] = std::max(largest[item.name], item.bytes.gigabytes());
  }
  std::vector<std::pair<std::string, double>> kinds(largest.begin(), largest.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kNamed = 7;
  for (size_t i = 0; i < std::min(kNamed, kinds.size()); ++i) plot.series.push_back({kinds[i].first, {}});
  if (kinds.size() > kNamed) plot.series.push_back({"all else", {}});
  for (BarPlot::Series& series : plot.series) series.values.resize(best.memory.phases.size());
  for (size_t row = 0; row < best.memory.phases.size(); ++row) {
    plot.rows.push_back(best.memory.phases[row].name);
    for (const planner::MemoryItem& item : best.memory.phases[row].items) {
      const auto named = std::find_if(plot.series.begin(), plot.series.end(),
                                      [&](const BarPlot::Series& series) { return series.name == item.name; });
      (named == plot.series.end() ? plot.series.back() : *named).values[row] += item.bytes.gigabytes();
    }
  }
  return plot;
}

bench::TimelinePlot timeline(const planner::StepPrediction& step) {
  constexpr const char* kLanes[] = {"compute", "moves", "waits"};
  constexpr double kMilliseconds = 1e3;
  bench::TimelinePlot plot;
  plot.title = "One layer, rank by rank";
  plot.unit = "ms";
  plot.kinds = {"computes", "bytes on their way", "waits"};
  std::map<std::pair<int, int>, size_t> row_of;
  for (const TimelineSpan& span : step.layer) {
    if (span.rank < kMostTimelineRanks) row_of[{span.rank, static_cast<int>(span.lane)}] = 0;
  }
  for (auto& [key, row] : row_of) {
    row = plot.rows.size();
    plot.rows.push_back(fmt::format("rank {} {}", key.first, kLanes[key.second]));
  }
  for (const TimelineSpan& span : step.layer) {
    const auto row = row_of.find({span.rank, static_cast<int>(span.lane)});
    if (row == row_of.end()) continue;
    plot.spans.push_back({row->second, static_cast<size_t>(span.lane), span.begin * kMilliseconds,
                          span.end * kMilliseconds, fmt::format("rank {}, {}", span.rank, span.name)});
  }
  return plot;
}

bench::Table candidate_table(const PlanPart& part) {
  bench::Table table;
  table.columns = {{"configuration", "configuration", Format::kText},
                   {"verdict", "verdict", Format::kText},
                   {"seconds", "video", Format::kText},
                   {"seconds_per_step", "step", Format::kText},
                   {"attention", "attention", Format::kPercent},
                   {"communication", "exchange, ring", Format::kPercent},
                   {"memory", "memory a rank", Format::kText},
                   {"reason", "why", Format::kText}};
  for (const Candidate& c : part.ranking.candidates) {
    std::vector<bench::Cell> row(table.columns.size());
    row[0] = configuration_text(c);
    row[1] = std::string(verdict_name(c.verdict));
    if (c.verdict != Verdict::kIllegal) {
      const char* least = c.simulated ? "" : "at least ";
      row[2] = least + seconds_text(c.video_seconds());
      row[3] = least + seconds_text(c.time.step.seconds);
      row[6] = c.bytes_per_rank.text();
    }
    if (priced(c)) {
      const Breakdown& b = c.time.step.critical();
      row[4] = b.attention / b.total();
      row[5] = (b.exposed_exchange + b.exposed_ring) / b.total();
    }
    row[7] = c.reason;
    table.add(std::move(row));
  }
  return table;
}

std::string joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += (text.empty() ? "" : " ") + sentence;
  return text;
}

bench::Section scaling_section(const PlanReport& report) {
  bench::Section section;
  section.name = "scaling";
  section.title = "How it scales";
  section.note =
      "The best plan for every number of ranks. Speed-up and efficiency are against the fewest ranks that hold the "
      "model; "
      "the dashed line is 1.";
  bench::LinePlot seconds{"Seconds of a video", "ranks", "seconds", false, false, 0, {{"best plan", {}}}};
  bench::LinePlot efficiency{"Efficiency", "ranks", "of ideal", false, true, 1, {{"best plan", {}}}};
  section.table.columns = {{"ranks", "ranks", Format::kCount},
                           {"plan", "best plan", Format::kText},
                           {"seconds", "video", Format::kText},
                           {"step", "step", Format::kText},
                           {"speed_up", "speed-up", Format::kOneDecimal},
                           {"efficiency", "efficiency", Format::kPercent},
                           {"device_seconds", "device time of a video", Format::kText},
                           {"price", "price of a video", Format::kText}};
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
    section.table.add({static_cast<int64_t>(part.ranks), configuration_text(*best), seconds_text(part.seconds),
                       seconds_text(best->time.step.seconds), part.speed_up, part.efficiency,
                       seconds_text(part.device_seconds),
                       part.price > 0 ? bench::Cell(fmt::format("{:.3g}", part.price)) : bench::Cell()});
  }
  if (!seconds.lines[0].points.empty()) {
    section.line_plots = {seconds, efficiency};
    section.stacked_plots = {scaling_bars(report)};
  }
  return section;
}

bench::Section part_section(const PlanPart& part) {
  bench::Section section;
  section.name = fmt::format("ranks-{}", part.ranks);
  section.title = part_title(part);
  section.note = joined(part.explanation);
  if (part.ranking.left_out > 0) {
    section.note +=
        fmt::format(" {} more combinations cannot come near the fastest and are not listed.", part.ranking.left_out);
  }
  const bool any = std::any_of(part.ranking.candidates.begin(), part.ranking.candidates.end(), priced);
  if (any) section.stacked_plots.push_back(step_bars(part));
  if (const Candidate* best = part.ranking.best()) {
    section.highlights = {{seconds_text(best->time.step.seconds), "a denoising step, predicted"},
                          {seconds_text(part.seconds), "a video"},
                          {best->bytes_per_rank.text(), "memory a rank, of " + part.memory_limit.text()},
                          {best->time.step.limited_by(), "is what limits it"}};
    section.stacked_plots.push_back(memory_bars(part, *best));
    if (!part.best_step.layer.empty()) section.timelines.push_back(timeline(part.best_step));
  } else {
    section.note += " The least hardware that would do: " + part.ranking.least_that_fits + ".";
  }
  section.table = candidate_table(part);
  return section;
}

}  // namespace

std::string plan_page(const PlanReport& report) {
  bench::Report page;
  page.title = report.title;
  page.subtitle = joined(report.answer);
  page.facts = "The question";
  for (const std::string& line : report.question) {
    const size_t name = line.find(' '), fact = line.find_first_not_of(' ', name);
    page.machine.emplace_back(line.substr(0, name), fact == std::string::npos ? "" : line.substr(fact));
  }
  if (report.parts.size() > 1) page.sections.push_back(scaling_section(report));
  for (const PlanPart& part : report.parts) page.sections.push_back(part_section(part));
  return bench::report_page(page);
}

void write_plan_page(const PlanReport& report, const std::filesystem::path& path) {
  AtomicFile file(path);
  const std::string page = plan_page(report);
  file.write(page.data(), page.size());
  file.commit();
}

}  // namespace zoetrope::cli
