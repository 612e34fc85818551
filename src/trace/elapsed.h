// Seconds between a moment and now, for summaries and progress.
#pragma once

#include <chrono>

#include "trace/trace.h"

namespace zoetrope::trace {

inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

}  // namespace zoetrope::trace
