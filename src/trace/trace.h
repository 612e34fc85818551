// Spans of a rank's lanes. Recording is off unless a Trace is passed.
#pragma once

#include "zoetrope/trace.h"

namespace zoetrope::trace {

// Lanes that more than one module records on.
inline constexpr const char* kComputeLane = "compute";
inline constexpr const char* kTransferLane = "comm: transfer";  // from the post of an exchange to its last byte
inline constexpr const char* kCopyLane = "comm: copy";          // a rank's own thread moves bytes
inline constexpr const char* kWaitLane = "comm: wait";

// Where a rank records; without a trace every call is a test of a null pointer.
struct Lane {
  Trace* trace = nullptr;
  int rank = 0;
  const char* name = kComputeLane;
};

// Records from construction to destruction, with the number of floating-point operations if it is known.
class Span {
 public:
  Span(const Lane& lane, const char* name, double flops = 0) : lane_(lane), name_(name), flops_(flops) {
    if (lane_.trace != nullptr) begin_ = Clock::now();
  }
  ~Span() {
    if (lane_.trace != nullptr) lane_.trace->record(name_, lane_.rank, lane_.name, begin_, Clock::now(), flops_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Lane lane_;
  const char* name_;
  double flops_;
  Clock::time_point begin_;
};

}  // namespace zoetrope::trace
