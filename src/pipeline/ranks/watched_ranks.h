// Work that ranks in several processes do together, one part after another: what fails on one rank ends on all of them,
// and the next part can follow. Knows no videos, nor what the parts are.
//
// While a part runs, a thread of each rank tells the others ten times a second whether this rank still works on it, has
// ended it or has failed. When one has failed, all stop the parts' communicator and those split from it, also by
// earlier parts, so that ranks that wait for the failed one get an error. The next part begins when all have ended this
// one, on another communicator.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

class WatchedRanks {
 public:
  // `stopped`: whether this rank is to give its part up; for any thread.
  using Part = std::function<void(comm::Communicator& ranks, const std::function<bool()>& stopped)>;
  struct Failure {
    int rank;
    std::string why;
    std::exception_ptr thrown;  // by this rank: it failed itself, with the same words. Null: it did not
  };

  // Collective over `world`, which must outlive this. `timeout_seconds`: the deadline of the waits of `world`.
  WatchedRanks(comm::Communicator& world, double timeout_seconds);

  // Collective. Returns when all have ended their part: the first failure of any rank, the same one on all. Throws
  // Error where they could not tell each other, and where a rank has not ended `timeout_seconds` after a failure, or
  // three times the longest time between two questions of any rank whether it is stopped, as in a read that does not
  // return; then no part can follow.
  std::optional<Failure> run(const Part& part);

 private:
  enum class State : uint8_t { kRuns, kEnded, kFailed, kWaitedEnough };
  struct Word;
  struct Job;
  void watch(Job& job);
  void end_others(Job& job, int failed);

  comm::Communicator& world_;
  const double timeout_seconds_;
  const std::unique_ptr<comm::Communicator> states_;  // for the threads that watch
  // All parts use this one until one fails; what a part keeps for later ones splits off from it, and stops with it.
  std::unique_ptr<comm::Communicator> ranks_;
  std::string lost_;  // why no part can follow; empty while one can
};

}  // namespace zoetrope::pipeline
