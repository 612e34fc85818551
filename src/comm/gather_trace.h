// One trace for all ranks, whatever processes and hosts they are on.
#pragma once

#include <chrono>
#include <functional>

#include "zoetrope/communicator.h"

#include "trace/trace.h"

namespace zoetrope::comm {

// Collects the spans of all ranks in rank 0's trace. Collective: every rank passes the trace of its process.
// Ranks that share rank 0's trace have nothing to send. Processes of one host share one clock; a trace from another
// host is moved by the difference that clock_offset() measures, and its ranks are labelled with the error of that.
void gather_trace(Communicator& world, trace::Trace& trace);

struct ClockOffset {
  std::chrono::nanoseconds offset{};       // the peer's clock minus this rank's
  std::chrono::nanoseconds uncertainty{};  // half of the shortest round trip
};

using ReadClock = std::function<trace::Clock::time_point()>;

// Between rank 0 and `peer`; called by these two, the result is rank 0's. The peer reads its clock while rank 0 waits
// for the answer, so the offset is that reading minus the middle of the wait, to within half of it.
ClockOffset clock_offset(Communicator& world, int peer, const ReadClock& clock = &trace::Clock::now);

// While it exists, a communicator and those split from it record in a trace; for communicators of the caller.
class RecordingScope {
 public:
  RecordingScope(Communicator& world, trace::Trace* trace) : world_(trace != nullptr ? &world : nullptr) {
    if (world_ != nullptr) world_->set_trace(trace);
  }
  ~RecordingScope() {
    if (world_ != nullptr) world_->set_trace(nullptr);
  }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  Communicator* world_;
};

}  // namespace zoetrope::comm
