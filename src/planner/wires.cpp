#include "planner/wires.h"

#include <algorithm>
#include <utility>

namespace zoetrope::planner {

Wires::Wires(const Routes& routes, int levels, int ranks)
    : routes_(routes), ranks_(ranks), busy_until_(static_cast<size_t>(levels * ranks), 0.0) {}

namespace {

std::vector<Arrival> nothing_sent(const std::vector<double>& posted) {
  std::vector<Arrival> arrivals;
  arrivals.reserve(posted.size());
  for (const double at : posted) arrivals.push_back({at, at, at, at, 0, -1, 0});
  return arrivals;
}

}  // namespace

std::vector<Arrival> Wires::gather(const std::vector<Routes::Group>& groups, const std::vector<double>& posted,
                                   int64_t times) {
  std::vector<Arrival> arrivals = nothing_sent(posted);
  const std::vector<Passage> passages = routes_.gathers(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    const Passage& passage = passages[g];
    if (passage.level < 0) continue;
    double met = 0, begin = 0;
    for (const int rank : groups[g].devices) {
      met = std::max(met, posted[static_cast<size_t>(rank)]);
      begin = std::max({begin, met, busy_until(passage.level, rank)});
    }
    const double seconds = passage.seconds + static_cast<double>(times - 1) * passage.latency, end = begin + seconds;
    for (const int rank : groups[g].devices) {
      Arrival& arrival = arrivals[static_cast<size_t>(rank)];
      const auto received = static_cast<int64_t>(groups[g].devices.size() - 1) * groups[g].bytes;
      arrival = {arrival.posted, met, begin, end, (1 - passage.overlap) * seconds, passage.level, received};
      busy_until(passage.level, rank) = end;
    }
  }
  return arrivals;
}

std::vector<Arrival> Wires::carry(const std::vector<Flow>& flows, const std::vector<double>& posted, int messages) {
  std::vector<Arrival> arrivals = nothing_sent(posted);
  std::vector<std::pair<int, double>> ends;  // level and end of each flow
  ends.reserve(flows.size());
  const std::vector<Passage> passages = routes_.passages(flows);
  for (size_t f = 0; f < flows.size(); ++f) {
    const Flow& flow = flows[f];
    const Passage& passage = passages[f];
    if (passage.level < 0) {
      ends.emplace_back(-1, 0.0);
      continue;
    }
    const double seconds = passage.seconds + (messages - 1) * passage.latency;
    const double met = std::max(posted[static_cast<size_t>(flow.from)], posted[static_cast<size_t>(flow.to)]);
    const double begin = std::max({met, busy_until(passage.level, flow.from), busy_until(passage.level, flow.to)});
    ends.emplace_back(passage.level, begin + seconds);
    for (const int rank : {flow.from, flow.to}) {
      Arrival& arrival = arrivals[static_cast<size_t>(rank)];
      arrival.met = std::max(arrival.met, met);
      arrival.slowdown = std::max(arrival.slowdown, (1 - passage.overlap) * seconds);
      if (arrival.level < 0 || begin + seconds > arrival.end) {
        arrival.level = passage.level;
        arrival.begin = begin;
        arrival.end = begin + seconds;
      }
    }
    arrivals[static_cast<size_t>(flow.to)].bytes += flow.bytes;
  }
  // Only now: messages of one phase are concurrent.
  for (size_t f = 0; f < flows.size(); ++f) {
    if (ends[f].first < 0) continue;
    for (const int rank : {flows[f].from, flows[f].to}) {
      double& until = busy_until(ends[f].first, rank);
      until = std::max(until, ends[f].second);
    }
  }
  return arrivals;
}

}  // namespace zoetrope::planner
