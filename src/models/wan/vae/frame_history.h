// The input of a convolution over time as one run of frames: those kept from before, then those that arrive. Producers
// write where the convolution reads, so nothing is joined; the price is moving the kept frames to the front each time
// (two frames read and written for every piece of the clip).
#pragma once

#include <cstddef>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::wan {

class FrameHistory {
 public:
  // Empties it and puts `zeros` frames of zeros in it. Memory for `capacity` frames is kept while the sizes stay.
  void start(Stream& stream, int64_t capacity, int64_t zeros, int64_t height, int64_t width, int64_t channels);

  int64_t frames() const { return filled_; }
  TensorView incoming(int64_t frames) const;  // [frames, H, W, C]: room behind what is there
  TensorView append(int64_t frames);          // takes what was written to incoming(); everything there is
  void drop(Stream& stream, int64_t frames);  // forgets the oldest

  size_t bytes() const { return memory_.view().bytes(); }

 private:
  Tensor memory_;  // [capacity, H, W, C]
  int64_t filled_ = 0;
};

}  // namespace zoetrope::wan
