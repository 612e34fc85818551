// Which figures that nobody measured decide a ranking: it is made again with each figure that a profile assumes at both
// ends of what that may be. Prices and ranks nothing itself (search.h).
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
  double ahead = 0;              // of the best of the ranking by then, relative to the new best; > kNoDifference
};

struct Doubts {
  std::vector<Doubt> best;  // one at most a figure, the end with the most at stake; the most first
  // Of each candidate of the ranking: what makes a tie of what is slower or the other way round, "a tie with
  // layer_overhead at 100 microseconds"; empty where no figure does.
  std::vector<std::string> verdicts;
};

// `ranking` is search(question). Without doubts where nothing fits, and where the profile assumes nothing. Takes two
// searches for every figure that is assumed.
Doubts doubts(const Question& question, const Ranking& ranking);

}  // namespace zoetrope::planner
