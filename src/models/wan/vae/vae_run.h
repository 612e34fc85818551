// What running a layer of the VAE needs, whichever it is.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "kernels/conv/halo.h"
#include "models/wan/vae/frame_pool.h"

namespace zoetrope::wan {

// The rank's stream, the memory for values, and the exchange of neighbouring rows (nullptr: not split).
struct VaeRun {
  Stream& stream;
  FramePool& pool;
  kernels::HaloExchange* exchange = nullptr;

  Frame like(const Frame& x, int64_t channels, Border border = Border::kOne) const {
    return take(x.place(), channels, border);
  }
  Frame take(const FrameRows& place, int64_t channels, Border border = Border::kOne) const {
    return pool.take(stream.team(), place, channels, border);
  }
  // Fills the border with neighbouring rows, for kernels larger than one pixel.
  void fill_border(const Frame& x) const;
};

}  // namespace zoetrope::wan
