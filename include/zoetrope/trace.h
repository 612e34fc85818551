// A recorder of named spans on the time lines of ranks, written as Chrome/Perfetto JSON. RankOptions::trace and
// Communicator::set_trace() say where ranks record.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/api.h"

namespace zoetrope::trace {

using Clock = std::chrono::steady_clock;

// One message between two ranks of the job, drawn as an arrow. `sequence` tells those of the same two ranks apart, and
// is the same on both sides.
struct Message {
  int sender = 0, receiver = 0;
  uint64_t sequence = 0;
};

// Collects the spans of one process; any thread may record. Ranks appear as processes, lanes as threads of the viewer:
// compute on top, below it what moves meanwhile.
class ZOETROPE_API Trace {
 public:
  Trace();
  // `lane` is a row of the rank in the viewer. `flops`: floating-point operations of the span; 0: not counted.
  void record(std::string name, int rank, const char* lane, Clock::time_point begin, Clock::time_point end,
              double flops = 0);
  // Bytes under way on the transfer lane. Transfers may overlap one another as they like: those that do are drawn on
  // rows below each other, while spans of the other lanes nest as calls do. An arrow goes from where the sender's
  // transfer with a message begins to where the receiver's ends.
  void record_transfer(std::string name, int rank, Clock::time_point begin, Clock::time_point end, int64_t bytes,
                       std::vector<Message> messages = {});
  // A remark next to the rank's name.
  void set_label(int rank, std::string label);
  // What was recorded, for `otherData` of the file: "command", "plan". The version is there already.
  void set_metadata(const std::string& key, std::string value);

  // Times are in microseconds from the first span or from construction, whichever was earlier; what the clock said then
  // is in `otherData.ts_zero_ns`, to combine files of one host on one time line. Throws Error where the file
  // cannot be written.
  void write(const std::filesystem::path& path) const;
  size_t size() const;

  // All spans as bytes, for a process that adds them to its own trace; `shift` is added to every time. Bytes must come
  // from pack().
  std::vector<char> pack() const;
  void add_packed(std::span<const char> packed, std::chrono::nanoseconds shift);

 private:
  static constexpr int64_t kNoTransfer = -1;

  struct Event {
    std::string name;
    int rank = 0;
    std::string lane;
    int64_t begin_ns = 0;  // of the clock, whose origin two processes of one host share
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

  ZOETROPE_PRIVATE void record(Event event);
  ZOETROPE_PRIVATE static std::vector<int> lay_out(const std::vector<Event>& events, Rows& rows);
  struct Arrow {
    size_t from = 0, to = 0;  // events
  };
  ZOETROPE_PRIVATE static std::vector<Arrow> arrows(const std::vector<Event>& events);

  int64_t origin_ns_;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::map<int, std::string> labels_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace zoetrope::trace
