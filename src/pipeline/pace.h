// While rank 0 works and the others wait for it they hear of every piece of the work, so that comm_timeout has to cover
// a piece and not the whole: however slow the machine is, a rank that hangs is told from one that computes. Carries no
// results.
#pragma once

#include <cstdint>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

class Pace {
 public:
  // Every rank of `ranks`, which must outlive this, has one. `operation` (a string literal) names the waits.
  Pace(comm::Communicator& ranks, const char* operation) : ranks_(ranks), operation_(operation) {}

  // Of rank 0: after each piece, and at the end. The others must be waiting, or come to it.
  void still_working() { say(Word::kWait); }
  void done() { say(Word::kDone); }
  // Of the others: returns when rank 0 is done.
  void wait() {
    Word word = Word::kWait;
    while (word == Word::kWait) ranks_.broadcast(0, &word, sizeof word, operation_);
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
