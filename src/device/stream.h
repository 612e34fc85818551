// What an operation needs to run: the rank's thread team, scratch memory, the trace lane and the counter of copied
// bytes. One stream per rank, passed to every operation.
#pragma once

#include <atomic>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "device/arena.h"
#include "device/thread_team.h"
#include "trace/trace.h"

namespace zoetrope {

class Stream {
 public:
  explicit Stream(int threads, trace::Lane lane = {}) : team_(threads), lane_(lane) {}

  ThreadTeam& team() { return team_; }
  Arena& scratch() { return scratch_; }
  const trace::Lane& lane() const { return lane_; }

  // Bytes of tensor data copied by this rank so far, without results of operations and transfers of comm.
  int64_t copied_bytes() const { return copied_bytes_; }
  void count_copied(int64_t bytes) { copied_bytes_ += bytes; }

 private:
  ThreadTeam team_;
  Arena scratch_;
  trace::Lane lane_;
  int64_t copied_bytes_ = 0;
};

// All copies of tensor data use this function: same shape and dtype, any strides, counted in the stream. Source and
// destination must not overlap.
void copy(Stream& stream, const TensorView& destination, const TensorView& source);

}  // namespace zoetrope
