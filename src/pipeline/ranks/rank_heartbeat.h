// Rank 0 works alone while the others wait: they receive a message after every piece of the work. So comm_timeout has
// to cover one piece and not the whole, and tells a rank that hangs from a slow one. Carries no results.
#pragma once

#include <cstdint>
#include <functional>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

class RankHeartbeat {
 public:
  // Every rank of `ranks`, which must outlive this, has one. `operation` (a string literal) names the waits.
  RankHeartbeat(comm::Communicator& ranks, const char* operation) : ranks_(ranks), operation_(operation) {}

  // On rank 0: after each piece, and at the end. The others are in wait() or will call it.
  void beat() { say(Word::kWait); }
  void done() { say(Word::kDone); }
  // On the others: returns when rank 0 is done. `tick` is called after each piece; what it throws ends the wait.
  void wait(const std::function<void()>& tick = {}) {
    Word word = Word::kWait;
    while (true) {
      ranks_.broadcast(0, &word, sizeof word, operation_);
      if (word == Word::kDone) return;
      if (tick) tick();
    }
  }

 private:
  enum class Word : uint8_t { kWait, kDone };
  void say(Word word) {
    if (ranks_.size() > 1) ranks_.broadcast(0, &word, sizeof word, operation_);
  }

  comm::Communicator& ranks_;
  const char* operation_;
};

}  // namespace zoetrope::pipeline
