// Makes all forms that a model computes with from its stored tensors, at the speed of memory: in the order of the file,
// by many threads, without ever holding a second copy of the model. Results belong to the Weights. Small tensors that
// are used as stored need no loader: Weights::get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "io/weights.h"

namespace zoetrope::io {

class WeightLoader {
 public:
  explicit WeightLoader(std::shared_ptr<const Weights> weights);

  // `placed` is told where the form lies (64-byte aligned, valid as long as the Weights, not to be written to), on the
  // thread that calls run(). A missing tensor or another shape is an Error here, as Weights::get gives it. A form that
  // these Weights made before is not made again.
  void add(DerivedForm form, std::function<void(const std::byte*)> placed);

  // Makes what was added, a form a thread, by `threads` threads while the caller waits. Pages are read ahead of them
  // and let go behind them. `tick(done, total)`, in bytes of stored tensors, is called once per form on the calling
  // thread, whoever made it; when it throws, or a form cannot be made, the threads stop and the exception is passed on:
  // what was placed is gone then.
  using Tick = std::function<void(int64_t done_bytes, int64_t total_bytes)>;
  void run(int threads, const Tick& tick = {});

 private:
  struct Job {
    DerivedForm form;
    std::function<void(const std::byte*)> placed;
    int64_t stored_bytes;
    std::string file;  // with `offset` the place of its first tensor
    uint64_t offset;
  };
  class Crew;

  std::shared_ptr<const Weights> weights_;
  std::vector<Job> jobs_;
};

}  // namespace zoetrope::io
