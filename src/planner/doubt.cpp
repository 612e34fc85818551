#include "planner/doubt.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>

#include "base/available_cores.h"
#include "base/error.h"

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

// What is best with an assumed figure at one end of its range.
struct End {
  const HardwareProfile::Assumption* assumed;
  std::string value;                  // as the profile writes it
  std::string instead;                // as people read it
  std::optional<Configuration> best;  // none where nothing fits, or the figure cannot be that
  double ahead = 0;                   // of the ranking's best
  std::vector<bool> turned;           // candidates of the ranking
};

void search_again(const Question& question, const Ranking& ranking, End& end) {
  Question changed = question;
  try {
    set_figure(changed.hardware, end.assumed->figure, end.value);
  } catch (const Error&) {  // impossible beside what the user set
    return;
  }
  end.instead = figure_text(changed.hardware, end.assumed->figure);
  const Ranking then = search(changed);
  if (then.best() == nullptr) return;
  end.best = then.best()->configuration;
  end.ahead = behind(changed, then, ranking.best()->configuration);
  for (const Candidate& c : ranking.candidates) end.turned.push_back(turns(c, then));
}

// body(i) for all i < count, on all cores; throws what the first of them that fails throws.
template <typename Body>
void on_all_cores(size_t count, const Body& body) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min<size_t>(count, static_cast<size_t>(available_threads())); ++i)
      others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace

Doubts doubts(const Question& question, const Ranking& ranking) {
  Doubts found;
  found.verdicts.resize(ranking.candidates.size());
  if (ranking.best() == nullptr) return found;
  Question same = question;
  same.memory = remembered(question.memory);
  const std::vector<std::string> names = figure_names(question.hardware);
  std::vector<End> ends;
  for (const HardwareProfile::Assumption& assumed : question.hardware.assumed) {
    // A part of a machine may lack a level of its links.
    if (std::find(names.begin(), names.end(), assumed.figure) == names.end()) continue;
    for (const std::string& value : {assumed.low, assumed.high}) ends.push_back({&assumed, value, "", {}, 0, {}});
  }
  on_all_cores(ends.size(), [&](size_t i) { search_again(same, ranking, ends[i]); });
  for (const End& end : ends) {
    if (!end.best) continue;
    const std::string& figure = end.assumed->figure;
    for (size_t i = 0; i < found.verdicts.size(); ++i) {
      if (!found.verdicts[i].empty() || !end.turned[i]) continue;
      found.verdicts[i] = fmt::format("{} with {} at {}", near(ranking.candidates[i].verdict) ? "slower" : "a tie",
                                      figure, end.instead);
    }
    if (end.ahead <= kNoDifference) continue;
    Doubt doubt{figure, figure_text(question.hardware, figure), end.instead, *end.best, end.ahead};
    const bool other_end = !found.best.empty() && found.best.back().figure == figure;
    if (!other_end) found.best.push_back(std::move(doubt));
    else if (doubt.ahead > found.best.back().ahead) found.best.back() = std::move(doubt);
  }
  std::stable_sort(found.best.begin(), found.best.end(),
                   [](const Doubt& a, const Doubt& b) { return a.ahead > b.ahead; });
  return found;
}

}  // namespace zoetrope::planner
