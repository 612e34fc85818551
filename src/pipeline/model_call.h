// A call of a Model, as the threads know it that are in one of its callbacks or sinks: a call of the same model from
// there would wait for itself. Knows no turns and no ranks.
#pragma once

#include <vector>

#include "zoetrope/model.h"

namespace zoetrope::pipeline {

class ModelCall {
 public:
  // `model`: an address of its own. Throws Error where this thread is in a callback or a sink of a call of that model.
  explicit ModelCall(const void* model);
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  // The same functions, which mark the thread that they run on. They must not outlive this.
  Callbacks marked(Callbacks callbacks) const;
  std::vector<OpenSink> marked(const std::vector<OpenSink>& sinks) const;

  // The innermost call whose callback or sink this thread is in; null where it is in none.
  static const ModelCall* around_this_thread();

  // As long as it lives, this thread counts as in a callback of `call`, or of none where that is null.
  class Inside {
   public:
    explicit Inside(const ModelCall* call);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    const ModelCall* const before_;
  };

 private:
  const void* const model_;
  const ModelCall* const outer_;
};

}  // namespace zoetrope::pipeline
