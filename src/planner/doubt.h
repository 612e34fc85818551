// Which assumed figures decide a ranking: repeats the search with each figure that a profile assumes at both ends of
// its range.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace zoetrope::planner {

// A figure that decides what is best.
struct Doubt {
  std::string figure;            // "layer_overhead"
  std::string assumed, instead;  // "2000 microseconds", "100 microseconds"
  Configuration best;            // with `instead`
  double ahead = 0;              // of the new best over the ranking's best, relative; > kNoDifference
};

struct Doubts {
  std::vector<Doubt> best;  // at most one per figure, with the end of larger effect; largest effect first
  // For each candidate of the ranking: the figure that makes it a tie instead of slower or the reverse, "a tie with
  // layer_overhead at 100 microseconds"; empty if none does.
  std::vector<std::string> verdicts;
};

// `ranking` is search(question). Empty if nothing fits or the profile assumes nothing. Takes two searches per
// assumed figure, on all cores.
Doubts doubts(const Question& question, const Ranking& ranking);

}  // namespace zoetrope::planner
