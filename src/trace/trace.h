// Named spans on the time line of a rank, written as Chrome/Perfetto JSON. Recording is off unless a Trace is passed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace zoetrope::trace {

using Clock = std::chrono::steady_clock;

// Lanes that more than one module records on.
inline constexpr const char* kComputeLane = "compute";
inline constexpr const char* kTransferLane = "comm: transfer";  // from the post of an exchange to its last byte
inline constexpr const char* kCopyLane = "comm: copy";          // a rank's own thread moves bytes
inline constexpr const char* kWaitLane = "comm: wait";

// One message between two ranks of the job, drawn as an arrow. `sequence` tells those of the same two ranks apart, and
// is the same on both sides.
struct Message {
  int sender = 0, receiver = 0;
  uint64_t sequence = 0;
};

// Collects the spans of one process; any thread may record. Ranks appear as processes, lanes as threads of the viewer:
// compute on top, transfers below.
class Trace {
 public:
  Trace();
  // `flops`: floating-point operations of the span, shown with their rate; 0: not counted.
  void record(std::string name, int rank, const char* lane, Clock::time_point begin, Clock::time_point end,
              double flops = 0);
  // Bytes in transit on the transfer lane. Transfers may overlap: those that do are drawn on rows below each other,
  // while spans of the other lanes nest as calls do. An arrow goes from where the sender's transfer with a message
  // begins to where the receiver's ends.
  void record_transfer(std::string name, int rank, Clock::time_point begin, Clock::time_point end, int64_t bytes,
                       std::vector<Message> messages = {});
  // A remark next to the rank's name.
  void set_label(int rank, std::string label);
  // What was recorded, for `otherData` of the file: "command", "plan". The version is there already.
  void set_metadata(const std::string& key, std::string value);

  // Times are in microseconds from the first span or from construction, whichever was earlier; the clock's value then
  // is in `otherData.ts_zero_ns`, to align files of one host. Throws Error if the file cannot
  // be written.
  void write(const std::filesystem::path& path) const;
  size_t size() const;

  // All spans as bytes, for a process that adds them to its own trace, `shift` later than their clock says.
  std::vector<char> pack() const;
  void add_packed(std::span<const char> packed, std::chrono::nanoseconds shift);

 private:
  static constexpr int64_t kNoTransfer = -1;

  struct Event {
    std::string name;
    int rank = 0;
    std::string lane;
    int64_t begin_ns = 0;  // of the clock, whose origin processes of one host share
    int64_t duration_ns = 0;
    int64_t bytes = kNoTransfer;
    double flops = 0;
    std::vector<Message> messages = {};
  };
  struct Row {
    int number = 0;  // of its rank
    std::string name;
  };
  using Rows = std::map<int, std::vector<Row>>;  // by rank

  void record(Event event);
  static std::vector<int> lay_out(const std::vector<Event>& events, Rows& rows);
  struct Arrow {
    size_t from = 0, to = 0;  // events
  };
  static std::vector<Arrow> arrows(const std::vector<Event>& events);

  int64_t origin_ns_;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::map<int, std::string> labels_;
  std::map<std::string, std::string> metadata_;
};

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
