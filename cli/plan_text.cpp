#include <fmt/format.h>

#include <cmath>
#include <set>
#include <tuple>

#include "base/words.h"
#include "cli/plan.h"

namespace zoetrope::cli {

using namespace plan_report;
namespace {

using planner::Candidate;
using planner::Verdict;

// The columns of a step; parts that are rarely more than zero share one.
struct Column {
  const char* name;
  double (*seconds)(const planner::Breakdown&);
};
constexpr Column kColumns[] = {
    {"linear", [](const planner::Breakdown& b) { return b.linear; }},
    {"attent.", [](const planner::Breakdown& b) { return b.attention; }},
    {"tokens", [](const planner::Breakdown& b) { return b.tokens + b.overhead; }},
    {"exchange", [](const planner::Breakdown& b) { return b.exposed_exchange + b.tensor; }},
    {"ring", [](const planner::Breakdown& b) { return b.exposed_ring + b.merge; }},
    {"other", [](const planner::Breakdown& b) { return b.weights + b.gather + b.idle; }},
};

using SplitKey = std::tuple<int, int, int, int, int, int>;
SplitKey split_of(const Candidate& c) {
  const parallel::ParallelLayout& layout = c.configuration.layout;
  return {c.ranks(), layout.data, layout.context.ulysses, layout.context.ring, layout.context.gather, layout.tensor};
}

bool runs(const Candidate& c) { return c.verdict != Verdict::kDoesNotFit && c.verdict != Verdict::kIllegal; }

std::string verdict_text(const Candidate& c, const Candidate& best) {
  constexpr double kPercent = 100;
  if (c.verdict == Verdict::kBest) return "best";
  constexpr double kShown = 0.05;
  double more = kPercent * (c.value / best.value - 1);
  if (std::abs(more) < kShown) more = 0;  // no "-0.0"
  return fmt::format("{}{}{:+.1f} %", c.verdict == Verdict::kTie ? "tie " : "", c.simulated ? "" : ">= ", more);
}

// Three or four digits, as accurate as the model.
std::string number(double seconds) {
  return seconds < 10 ? fmt::format("{:.3f}", seconds) : fmt::format("{:.1f}", seconds);
}

std::string row(const PlanPart& part, const Candidate& c, const Candidate& best) {
  std::string text = fmt::format("  {:<14} {:>9} {:>8} ", verdict_text(c, best), number(video_seconds(part, c)),
                                 number(c.time.step.seconds));
  for (const Column& column : kColumns) text += fmt::format(" {:>8}", number(column.seconds(c.time.step.critical())));
  return text + fmt::format("  {:>8}  {}\n", c.bytes_per_rank.text(), configuration_text(c, part.ranks));
}

std::string heading() {
  std::string text = fmt::format("  {:<14} {:>9} {:>8} ", "", "video s", "step s");
  for (const Column& column : kColumns) text += fmt::format(" {:>8}", column.name);
  return text + fmt::format("  {:>8}  {}\n", "per rank", "configuration");
}

// At most `top` lines; counts the others.
class Lines {
 public:
  explicit Lines(int64_t top) : left_(top) {}
  void add(std::string line) {
    if (left_-- > 0) text_ += line;
    else ++more_;
  }
  std::string text() const {
    return more_ == 0 ? text_ : text_ + fmt::format("  … and {} more (json=FILE has all)\n", more_);
  }
  bool empty() const { return text_.empty(); }

 private:
  int64_t left_, more_ = 0;
  std::string text_;
};

std::string settings_part(const PlanPart& part) {
  std::string text = fmt::format("To type{}\n  {}  {}\n", part.runs > 1 ? ", for each run" : "", part.command,
                                 settings_text(part.settings));
  for (const OtherSystem& system : part.systems)
    text += fmt::format("  {:<17}  {}\n", system.name, system_text(system));
  return text;
}

std::string part_text(const PlanPart& part, int64_t top) {
  std::string text = fmt::format("\n{}\n", counted(part.ranks, "rank"));
  const Candidate* best = part.ranking.best();
  std::set<SplitKey> seen;
  Lines splits(top), settings(top), why(top), others(top);
  for (size_t i = 0; i < part.ranking.candidates.size(); ++i) {
    const Candidate& c = part.ranking.candidates[i];
    const bool first = seen.insert(split_of(c)).second;
    if (best != nullptr && runs(c) && first) {
      splits.add(row(part, c, *best));
      if (c.verdict != Verdict::kBest)
        why.add(fmt::format("  {}: {}\n", configuration_text(c, part.ranks), reason_text(part, i)));
    } else if (best != nullptr && runs(c) && split_of(c) == split_of(*best)) {
      settings.add(row(part, c, *best));
    } else if (!runs(c) && (first || c.verdict == Verdict::kIllegal)) {
      others.add(fmt::format("  {}: {}: {}\n", configuration_text(c, part.ranks), verdict_words(c.verdict), c.reason));
    }
  }
  if (!splits.empty()) text += heading() + splits.text();
  if (!settings.empty()) text += "  the same split, other settings:\n" + settings.text();
  for (const std::string& line : part.explanation) text += fmt::format("  {}\n", line);
  if (best != nullptr) text += settings_part(part);
  if (!why.empty()) text += "Why not\n" + why.text();
  if (!others.empty()) text += "Not possible\n" + others.text();
  if (part.ranking.left_out > 0) {
    text += fmt::format(
        "  {} more combinations are slower by their lower bounds, differ from these by a slower kernel, or do "
        "not fit either.\n",
        part.ranking.left_out);
  }
  return text;
}

std::string scaling_text(const PlanReport& report) {
  std::string text =
      fmt::format("\nScaling\n  {:>6} {:>10} {:>9} {:>11} {:>9} {:>11} {:>14} {:>9}  {}\n", "ranks", "video", "step",
                  "videos/hour", "speed-up", "efficiency", "device-seconds", "price", "configuration");
  for (const PlanPart& part : report.parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) {
      text += fmt::format("  {:>6}  does not fit\n", part.ranks);
      continue;
    }
    constexpr double kPercent = 100;
    text +=
        fmt::format("  {:>6} {:>10} {:>9} {:>11.4g} {:>9.2f} {:>9.0f} % {:>14.1f} {:>9}  {}\n", part.ranks,
                    seconds_text(part.seconds), seconds_text(best->time.step.seconds), part.videos_per_hour,
                    part.speed_up, kPercent * part.efficiency, part.device_seconds,
                    part.price > 0 ? fmt::format("{:.4g}", part.price) : "-", configuration_text(*best, part.ranks));
  }
  return text;
}

}  // namespace

std::string plan_text(const PlanReport& report, int64_t top) {
  std::string text;
  for (const std::string& line : report.question) text += line + "\n";
  for (const PlanPart& part : report.parts) text += part_text(part, top);
  if (report.parts.size() > 1) text += scaling_text(report);
  text += "\n";
  for (const std::string& line : report.answer) text += line + "\n";
  const Candidate* best = report.parts.back().ranking.best();
  if (best != nullptr) {
    text += fmt::format(
        "The time of a video is text encoder, denoising and decoding; loading the weights once takes {} more.\n",
        seconds_text(best->time.load));
  }
  return text;
}

}  // namespace zoetrope::cli
