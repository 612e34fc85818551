// The rows next to a rank's own, from the ranks that have them: what a VAE that is split over ranks needs, and how
// the rows of its frames come together. Moves rows; what is done with them is the VAE's business.
#pragma once

#include <cstdint>

#include "zoetrope/communicator.h"
#include "zoetrope/index_range.h"

#include "device/stream.h"
#include "kernels/conv/halo.h"

namespace zoetrope::pipeline {

// Rank p of `ranks` is part p and lies above part p + 1. Every call waits for the neighbours, gather_rows for all.
class HaloRanks final : public kernels::HaloExchange {
 public:
  // Names of the exchanges in messages, traces and tests.
  static constexpr const char* kHaloRows = "halo rows";
  static constexpr const char* kGatherRows = "gather rows";

  explicit HaloRanks(comm::Communicator& ranks) : ranks_(ranks) {}

  int parts() const override { return ranks_.size(); }
  int part() const override { return ranks_.rank(); }
  void exchange(const TensorView& first, const TensorView& last, const TensorView& above,
                const TensorView& below) override;
  void gather_rows(const TensorView& mine, IndexRange own, const TensorView& all) override;

 private:
  comm::Communicator& ranks_;
};

// The rows of a part, of `rows` in all: sizes differ by one at most, and none is empty while rows ≥ parts.
IndexRange rows_of_part(int64_t rows, int parts, int part);

// Puts the rows of frames together on rank 0 while the ranks go on decoding: a frame's rows travel until the next
// frame's are ready.
class FrameGather {
 public:
  static constexpr const char* kFrameRows = "frame rows";

  // Of `rows` latent rows in all, each of which is `scale` rows of a frame.
  FrameGather(comm::Communicator& ranks, int64_t rows, int64_t scale) : ranks_(ranks), rows_(rows), scale_(scale) {}

  // mine [own rows, W, C], contiguous, is copied. whole [H, W, C], contiguous, may be read after wait(); rank 0's,
  // elsewhere null. Waits for the frame before.
  void post(Stream& stream, const TensorView& mine, const TensorView& whole);
  void wait();  // for the last frame posted

 private:
  comm::Communicator& ranks_;
  const int64_t rows_, scale_;
  Tensor sent_;  // the decoder's own memory is another frame's by the time that rank 0 reads it
  comm::Work work_;
};

}  // namespace zoetrope::pipeline
