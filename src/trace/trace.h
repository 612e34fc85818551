// Named spans on the time line of a rank, written as Chrome/Perfetto JSON. Recording is off unless a Trace is passed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace zoetrope::trace {

using Clock = std::chrono::steady_clock;

// Collects the spans of one process; any thread may record. Ranks appear as processes, lanes ("compute", "comm") as
// threads of the viewer.
class Trace {
 public:
  Trace();
  void record(std::string name, int rank, const char* lane, Clock::time_point begin, Clock::time_point end);
  // Throws Error where the file cannot be written.
  void write(const std::filesystem::path& path) const;
  size_t size() const;

 private:
  struct Event {
    std::string name;
    int rank;
    const char* lane;
    int64_t begin_ns;
    int64_t duration_ns;
  };
  Clock::time_point origin_;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

// Where a rank records; without a trace every call is a test of a null pointer.
struct Lane {
  Trace* trace = nullptr;
  int rank = 0;
  const char* name = "compute";
};

// Records from construction to destruction.
class Span {
 public:
  Span(const Lane& lane, const char* name) : lane_(lane), name_(name) {
    if (lane_.trace != nullptr) begin_ = Clock::now();
  }
  ~Span() {
    if (lane_.trace != nullptr) lane_.trace->record(name_, lane_.rank, lane_.name, begin_, Clock::now());
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Lane lane_;
  const char* name_;
  Clock::time_point begin_;
};

}  // namespace zoetrope::trace
