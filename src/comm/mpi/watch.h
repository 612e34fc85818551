// What this process knows of the others of the job. While it waits for long, it asks them what they do: their progress
// threads answer while the ranks compute, so that a slow rank and a dead one can be told apart. Of processes on the
// same host it also sees that they have ended. All calls on any thread with the runtime's mutex held.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/stall.h"

namespace zoetrope::comm::mpi {

// Where a rank is, as the ranks tell each other when MPI starts.
struct Home {
  char host[128] = {};
  char boot[64] = {};  // of the running kernel, which no two hosts share
  int64_t pid = 0;
  uint64_t pid_namespace = 0;  // in which the pid counts
};
Home home_here();

class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  Watch(int rank, std::vector<Home> homes);

  // The ranks to be asked now, in a wait that has lasted since `begin` and may last `timeout_seconds`.
  std::vector<int> to_ask(Clock::time_point begin, double timeout_seconds);
  void answered(int rank, const Activity& activity);
  // This process was stopped for a while: answers may be there that it has not read.
  void paused();

  // Whether it has not answered for longer than a starved process takes; in a wait of `timeout_seconds`.
  bool is_silent(int rank, double timeout_seconds) const;
  // A rank whose process has ended, as far as this host can tell. Looks a few times a second at most, or now.
  std::optional<int> ended_process(bool now);

  // The name of its host; empty where all ranks are on hosts of one name.
  std::string host_of(int rank) const;

  std::vector<RankState> states(const Activity& own, double timeout_seconds) const;

 private:
  struct Peer {
    std::optional<Clock::time_point> asked;  // and not answered
    std::optional<Clock::time_point> heard;
    Activity activity;
    bool ended = false;
  };
  bool on_this_host(int rank) const;

  const int rank_;
  const std::vector<Home> homes_;
  std::vector<Peer> peers_;
  const Clock::time_point made_ = Clock::now();
  Clock::time_point asked_at_ = made_, looked_at_ = made_;
};

}  // namespace zoetrope::comm::mpi
