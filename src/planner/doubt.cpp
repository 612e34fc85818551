#include "planner/doubt.h"

#include <fmt/format.h>

#include <algorithm>

namespace zoetrope::planner {
namespace {

// How much slower `best` is than the best of `ranking`, the ranking of `changed`. Relative.
double behind(const Question& changed, const Ranking& ranking, const Configuration& best) {
  const RunPrediction run = simulate_run(changed.work, changed.hardware, best);
  return objective_value(changed, run.total() - run.load, best.layout.ranks()) / ranking.best()->value - 1;
}

bool near(Verdict verdict) { return verdict == Verdict::kBest || verdict == Verdict::kTie; }

// Whether the ranking with another figure turns a tie into a slower candidate, or the reverse.
bool turns(const Candidate& c, const Ranking& ranking) {
  if (!c.simulated || c.verdict == Verdict::kBest || (c.verdict != Verdict::kTie && c.verdict != Verdict::kSlower))
    return false;
  const auto then = std::find_if(ranking.candidates.begin(), ranking.candidates.end(), [&](const Candidate& other) {
    return other.simulated && other.configuration == c.configuration;
  });
  return then != ranking.candidates.end() && near(then->verdict) != near(c.verdict);
}

}  // namespace

Doubts doubts(const Question& question, const Ranking& ranking) {
  Doubts found;
  found.verdicts.resize(ranking.candidates.size());
  const Candidate* best = ranking.best();
  if (best == nullptr) return found;
  const auto memory = remembered(question.memory);
  const std::vector<std::string> names = figure_names(question.hardware);
  for (const HardwareProfile::Assumption& assumed : question.hardware.assumed) {
    // A part of a machine may lack a level of its links.
    if (std::find(names.begin(), names.end(), assumed.figure) == names.end()) continue;
    Doubt most{assumed.figure, figure_text(question.hardware, assumed.figure), "", {}, kNoDifference};
    for (const std::string& end : {assumed.low, assumed.high}) {
      Question changed = question;
      changed.memory = memory;
      set_figure(changed.hardware, assumed.figure, end);
      const Ranking then = search(changed);
      if (then.best() == nullptr) continue;
      const std::string instead = figure_text(changed.hardware, assumed.figure);
      if (const double ahead = behind(changed, then, best->configuration); ahead > most.ahead) {
        most.instead = instead;
        most.best = then.best()->configuration;
        most.ahead = ahead;
      }
      for (size_t i = 0; i < found.verdicts.size(); ++i) {
        if (!found.verdicts[i].empty() || !turns(ranking.candidates[i], then)) continue;
        found.verdicts[i] = fmt::format("{} with {} at {}", near(ranking.candidates[i].verdict) ? "slower" : "a tie",
                                        assumed.figure, instead);
      }
    }
    if (!most.instead.empty()) found.best.push_back(std::move(most));
  }
  std::stable_sort(found.best.begin(), found.best.end(),
                   [](const Doubt& a, const Doubt& b) { return a.ahead > b.ahead; });
  return found;
}

}  // namespace zoetrope::planner
