// The page of `zoetrope plan`: what to use, where its time goes, how it scales, whether it fits, and what was not
// chosen. Drawn with bench's plots; computes nothing but sums of what the struct holds.
#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "bench/page.h"
#include "bench/report.h"
#include "cli/plan_charts.h"
#include "cli/plan_words.h"

namespace zoetrope::cli {
namespace {

using bench::Column;
using bench::Format;
using planner::Breakdown;
using planner::Candidate;
using planner::Verdict;

bench::Table candidate_table(const PlanPart& part) {
  bench::Table table;
  table.columns = {{"configuration", "configuration", Format::kText, false, true},
                   {"verdict", "verdict", Format::kText},
                   {"seconds", "video", Format::kText},
                   {"seconds_per_step", "step", Format::kText},
                   {"attention", "attention", Format::kPercent},
                   {"communication", "exchange, ring", Format::kPercent},
                   {"memory", "memory a rank", Format::kText},
                   {"reason", "why", Format::kText, false, true}};
  for (size_t i = 0; i < part.ranking.candidates.size(); ++i) {
    const Candidate& c = part.ranking.candidates[i];
    std::vector<bench::Cell> row(table.columns.size());
    row[0] = configuration_text(c, part.ranks);
    row[1] = verdict_words(c.verdict);
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
    row[7] = reason_text(part, i);
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
      "The best plan for every number of ranks. Speed-up and efficiency are of all runs side by side, against the "
      "fewest "
      "ranks that hold the model; the dashed line is 1.";
  bench::LinePlot seconds{"Seconds of a video", "ranks", "seconds", false, false, 0, {{"best plan", {}}}};
  bench::LinePlot efficiency{"Efficiency", "ranks", "of ideal", false, true, 1, {{"best plan", {}}}};
  section.table.columns = {{"ranks", "ranks", Format::kCount},
                           {"plan", "best plan", Format::kText, false, true},
                           {"seconds", "video", Format::kText},
                           {"step", "step", Format::kText},
                           {"videos_per_hour", "videos an hour", Format::kOneDecimal},
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
    section.table.add({static_cast<int64_t>(part.ranks), configuration_text(*best, part.ranks),
                       seconds_text(part.seconds), seconds_text(best->time.step.seconds), part.videos_per_hour,
                       part.speed_up, part.efficiency, seconds_text(part.device_seconds),
                       part.price > 0 ? bench::Cell(fmt::format("{:.3g}", part.price)) : bench::Cell()});
  }
  if (!seconds.lines[0].points.empty()) {
    section.line_plots = {seconds, efficiency};
    section.stacked_plots = {scaling_bars(report)};
  }
  return section;
}

// The one that came nearest to fitting; null where something fits, and where nothing is legal.
const Candidate* most_frugal(const PlanPart& part) {
  const std::vector<Candidate>& all = part.ranking.candidates;
  return !all.empty() && all.front().verdict == Verdict::kDoesNotFit ? &all.front() : nullptr;
}

std::string listing(const PlanPart& part) {
  std::string lines = "zoetrope generate: " + settings_text(part.settings);
  for (const OtherSystem& system : part.systems) lines += fmt::format("\n{}: {}", system.name, system_text(system));
  return lines;
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
    section.listing_title = part.runs > 1 ? "To type, for each run" : "To type";
    section.listing = listing(part);
    section.highlights = {{seconds_text(best->time.step.seconds), "a denoising step, predicted"},
                          part.runs > 1
                              ? std::pair(fmt::format("{:.3g}", part.videos_per_hour),
                                          fmt::format("videos an hour, of {} runs of {} rank{} side by side", part.runs,
                                                      best->ranks(), best->ranks() == 1 ? "" : "s"))
                              : std::pair(seconds_text(part.seconds), std::string("a video")),
                          {best->bytes_per_rank.text(), "memory of a rank, of " + part.memory_limit.text()},
                          {best->time.step.limited_by(), "is what limits it"}};
    section.stacked_plots.push_back(memory_bars(part, *best));
    if (!part.best_step.layer.empty()) section.timelines.push_back(timeline(part.best_step));
  } else if (const Candidate* frugal = most_frugal(part)) {
    section.stacked_plots.push_back(memory_bars(part, *frugal));
    section.stacked_plots.back().title += ", of what needs least: " + configuration_text(*frugal);
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
    const size_t name = line.find("  "), fact = line.find_first_not_of(' ', name);
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
