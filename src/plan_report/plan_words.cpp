#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/words.h"
#include "plan_report/plan_report.h"

namespace zoetrope::plan_report {
namespace {

using planner::Candidate;

constexpr double kPercent = 100;

std::string percent(double share) { return fmt::format("{:.0f} %", kPercent * share); }

// How much a step could gain at most from faster compute or faster links.
std::string worth_of_links(const planner::StepPrediction& step) {
  const planner::Breakdown& b = step.critical();
  const double links = (b.exposed_exchange + b.exposed_ring + b.tensor + b.gather) / step.seconds;
  const double compute = (b.linear + b.attention) / step.seconds;
  return fmt::format(
      "Of a step {} is matrix multiplication and attention, which only faster or more devices shorten, and {} is "
      "waiting for links, the most that faster links could save.",
      percent(compute), percent(links));
}

std::string doubt_text(const planner::Doubt& doubt) {
  return fmt::format("{} is assumed to be {}: with {}, {} would be best, {:.1f} % ahead of this", doubt.figure,
                     doubt.assumed, doubt.instead, doubt.best.text(), kPercent * doubt.ahead);
}

// The assumed figures that the verdict depends on.
std::string grounds(const PlanPart& part) {
  const size_t assumed = part.hardware.assumed.size();
  if (assumed == 0) return "";
  if (part.doubts.best.empty()) {
    return fmt::format("It stays the best with each of the profile's {} at both ends of its plausible range.",
                       counted(static_cast<int64_t>(assumed), "assumed figure"));
  }
  std::vector<std::string> each;
  for (const planner::Doubt& doubt : part.doubts.best) each.push_back(doubt_text(doubt));
  return fmt::format("The verdict depends on figures that were not measured: {}.", fmt::join(each, "; "));
}

}  // namespace

std::string configuration_text(const Candidate& candidate) {
  std::string text = candidate.configuration.text();
  if (candidate.ranks() > 1 && candidate.verdict != planner::Verdict::kIllegal)
    text += fmt::format(", VAE over {}", candidate.configuration.layout.vae_ranks);
  return text;
}

std::string configuration_text(const Candidate& candidate, int ranks) {
  const int runs = ranks / candidate.ranks();
  return (runs > 1 ? fmt::format("{} runs of ", runs) : "") + configuration_text(candidate);
}

double video_seconds(const PlanPart& part, const Candidate& candidate) {
  return candidate.run_seconds() / static_cast<double>(part.videos);
}

std::string seconds_text(double seconds) {
  constexpr double kMinute = 60, kHour = 3600, kMilli = 1e-3;
  if (seconds >= 2 * kHour) return fmt::format("{:.3g} h", seconds / kHour);
  if (seconds >= 10 * kMinute) return fmt::format("{:.3g} min", seconds / kMinute);
  if (seconds >= 0.1) return fmt::format("{:.3g} s", seconds);
  return fmt::format("{:.3g} ms", seconds / kMilli);
}

std::string reason_text(const PlanPart& part, size_t candidate) {
  const std::string doubt = part.doubts.verdicts.empty() ? "" : part.doubts.verdicts[candidate];
  return part.ranking.candidates[candidate].reason + (doubt.empty() ? "" : "; " + doubt + ", which is assumed");
}

std::string verdict_words(planner::Verdict verdict) {
  std::string words = planner::verdict_name(verdict);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::vector<std::string> answer_of(const std::vector<PlanPart>& parts) {
  std::vector<std::string> answer;
  const PlanPart* before = nullptr;
  for (const PlanPart& part : parts) {
    const Candidate* best = part.ranking.best();
    if (best == nullptr) {
      answer.push_back(fmt::format("{}: nothing fits; the least hardware that would: {}.", counted(part.ranks, "rank"),
                                   part.ranking.least_that_fits));
      continue;
    }
    std::string line = counted(part.ranks, "rank") + ": ";
    if (part.runs > 1) {
      line += fmt::format("{} of {} side by side, {:.3g} videos per hour, each ", counted(part.runs, "run"),
                          counted(best->ranks(), "rank"), part.videos_per_hour);
    }
    if (part.videos > 1) line += fmt::format("a batch of {} videos ", part.videos);
    else if (part.runs == 1) line += "a video ";
    line += fmt::format("in {}, a step in {}, {} per rank, with {}", seconds_text(best->run_seconds()),
                        seconds_text(best->time.step.seconds), best->bytes_per_rank.text(), configuration_text(*best));
    if (part.price > 0) line += fmt::format(", at {:.3g} per video", part.price);
    if (before != nullptr) {
      line += fmt::format("; {:.2g} times the ranks of {} make {:.2f} times the videos",
                          static_cast<double>(part.ranks) / before->ranks, before->ranks,
                          part.videos_per_hour / before->videos_per_hour);
    }
    answer.push_back(line + ".");
    before = &part;
  }
  return answer;
}

std::vector<std::string> explanation_of(const PlanPart& part) {
  std::vector<std::string> explanation;
  const Candidate* best = part.ranking.best();
  if (best == nullptr) {
    explanation.push_back(
        fmt::format("Nothing fits; the least hardware that would: {}.", part.ranking.least_that_fits));
    return explanation;
  }
  explanation.push_back(fmt::format("Best: {}; {}.", configuration_text(*best, part.ranks), best->reason));
  if (const Candidate* simpler = part.ranking.simpler())
    explanation.push_back(fmt::format("Simpler: {}, {}.", configuration_text(*simpler, part.ranks), simpler->reason));
  if (const Candidate* faster = part.ranking.quickest_run()) {
    explanation.push_back(
        fmt::format("Faster for one video: {}, in {} instead of {}; {}.", configuration_text(*faster, part.ranks),
                    seconds_text(video_seconds(part, *faster)), seconds_text(part.seconds), faster->reason));
  }
  const auto ties = std::count_if(part.ranking.candidates.begin(), part.ranking.candidates.end(),
                                  [](const Candidate& c) { return c.verdict == planner::Verdict::kTie; });
  if (ties > 0) {
    explanation.push_back(fmt::format("{} {} within the model's error of {}: tied with it.",
                                      counted(ties, "other configuration"), ties == 1 ? "is" : "are",
                                      percent(part.hardware.model_error)));
  }
  if (const std::string text = grounds(part); !text.empty()) explanation.push_back(text);
  if (part.step_seconds_as_computed) {
    const double step = best->time.step.seconds, before = *part.step_seconds_as_computed;
    explanation.push_back(
        fmt::format("With kv_exchange_dtype a step of this takes {} instead of {} ({:+.1f} %), and the video changes "
                    "by the rounding of keys and values.",
                    seconds_text(step), seconds_text(before), kPercent * (step / before - 1)));
  }
  explanation.push_back(worth_of_links(best->time.step));
  return explanation;
}

}  // namespace zoetrope::plan_report
