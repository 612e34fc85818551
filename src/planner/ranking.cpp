// Names and values of a ranking's candidates. The search itself is in search.cpp.
#include "planner/search.h"

namespace zoetrope::planner {

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBest:
      return "best";
    case Verdict::kTie:
      return "tie";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kDoesNotFit:
      return "does_not_fit";
    case Verdict::kIllegal:
      return "illegal";
  }
  return "";
}

const char* objective_name(Objective objective) {
  switch (objective) {
    case Objective::kLatency:
      return "latency";
    case Objective::kThroughput:
      return "throughput";
    case Objective::kCost:
      return "cost";
  }
  return "";
}

double objective_value(const Question& question, double seconds, int ranks) {
  constexpr double kHour = 3600;
  const HardwareProfile& hardware = question.hardware;
  switch (question.objective) {
    case Objective::kLatency:
      return seconds;
    case Objective::kThroughput:
      return seconds * ranks / question.ranks;
    case Objective::kCost:
      return seconds * ranks * (hardware.price_per_hour > 0 ? hardware.price_per_hour / (kHour * hardware.devices) : 1);
  }
  return seconds;
}

const Candidate* Ranking::best() const {
  if (candidates.empty() || candidates.front().verdict != Verdict::kBest) return nullptr;
  return &candidates.front();
}

const Candidate* Ranking::simpler() const {
  const Candidate* found = nullptr;
  for (const Candidate& c : candidates) {
    if (c.verdict != Verdict::kTie || c.complexity >= candidates.front().complexity) continue;
    if (found == nullptr || c.complexity < found->complexity) found = &c;
  }
  return found;
}

const Candidate* Ranking::quickest_run() const {
  const Candidate* found = nullptr;
  for (const Candidate& c : candidates) {
    if (c.verdict != Verdict::kTie || c.ranks() <= candidates.front().ranks()) continue;
    if (found == nullptr || c.run_seconds() < found->run_seconds()) found = &c;
  }
  return found;
}

}  // namespace zoetrope::planner
