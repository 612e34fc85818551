// Who waits for whom where a wait has passed its deadline: what each rank entered last, which of them the others wait
// for in the end, and the sentences about it. No transport is known here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zoetrope::comm {

// What a rank does; kUnknown: it has not said. Processes send it to each other as it is.
struct Activity {
  enum class Kind : int32_t { kComputes, kWaits, kEnded, kUnknown };
  Kind kind = Kind::kComputes;
  int32_t peer = -1;        // kWaits: the rank of the job that it waits for
  int64_t bytes = 0;        // kWaits: of the piece that it waits for
  bool sends = false;       // kWaits: the piece is to the peer, not from it
  bool computes = false;    // kWaits: another of the rank's threads waits, so the rank itself may compute
  double seconds = 0;       // since it last entered or left an operation or began a step
  char operation[64] = {};  // that it entered last, "" where there was none
  char step[96] = {};

  void set_operation(const std::string& name);
  void set_step(const std::string& name);
};

struct RankState {
  int rank = 0;  // of the job
  std::string host;
  Activity activity;  // the last that is known
  double silent = 0;  // seconds without a sign of life; 0: it answers
  bool process_has_ended = false;
};

// The ranks that `waiting` waits for in the end: those whose process does not answer, else the one at the end of the
// chain of waits, else those that wait for each other.
std::vector<int> awaited(std::span<const RankState> ranks, int waiting);

// Seconds since the rank that `waiting` waits for in the end went on, or the last of those that wait for each other,
// whose data may be on its way; none where one does not answer or has ended.
std::optional<double> seconds_since_progress(std::span<const RankState> ranks, int waiting);

// "rank 1 on HOST is stalled: it last entered 'ring hop' at step 3, 59 s ago". `timeout`: of the wait that failed.
std::string verdict(std::span<const RankState> ranks, int waiting, double timeout);

// A line for each rank, the awaited ones first; about `most` bytes, with a word on those that are left out.
std::string waits_table(std::span<const RankState> ranks, int waiting, size_t most = 1 << 20);

// While one exists, operations of its thread are no sign that its rank goes on, for ranks that wait for that: of a
// thread that watches whether others work, over MPI.
class WatchingThread {
 public:
  WatchingThread();
  ~WatchingThread();
  WatchingThread(const WatchingThread&) = delete;
  WatchingThread& operator=(const WatchingThread&) = delete;
  static bool is_this();
};

}  // namespace zoetrope::comm
