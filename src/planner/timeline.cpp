// Predicted spans in the format of measured traces.
#include <algorithm>
#include <chrono>

#include "planner/simulator.h"

namespace zoetrope::planner {
namespace {

const char* lane_name(TimelineSpan::Lane lane) {
  return lane == TimelineSpan::Lane::kWait ? trace::kWaitLane : trace::kComputeLane;
}

}  // namespace

void record_timeline(const StepPrediction& prediction, int64_t layers, trace::Trace& trace) {
  const auto origin = trace::Clock::now();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto at = [&](double seconds) {
      const std::chrono::duration<double> since(static_cast<double>(layer) * prediction.layer_seconds + seconds);
      return origin + std::chrono::duration_cast<trace::Clock::duration>(since);
    };
    for (const TimelineSpan& span : prediction.layer) {
      if (span.lane == TimelineSpan::Lane::kTransfer) {
        trace.record_transfer(span.name, span.rank, at(span.begin), at(span.end), span.bytes);
      } else {
        trace.record(span.name, span.rank, lane_name(span.lane), at(span.begin), at(span.end), span.flop);
      }
    }
  }
}

}  // namespace zoetrope::planner
