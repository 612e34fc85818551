#include "pipeline/stages/face_ranks.h"

#include <algorithm>

#include "base/index_range.h"
#include "pipeline/ranks/row_segments.h"

namespace zoetrope::pipeline {

Tensor vectors_of_face(const FaceFrames& frames, bool black, int64_t width, comm::Communicator& world,
                       const EncodeFrame& encode) {
  const int64_t count = frames.count + (black ? 1 : 0);
  Tensor vectors = Tensor::uninitialized(DType::kF32, {count, width});
  const Tensor pixels = Tensor::uninitialized(DType::kF32, {3, frames.size, frames.size});
  const auto share = [&](int rank) { return split_range(count, world.size(), rank); };
  const IndexRange mine = share(world.rank());
  for (int64_t f = mine.begin; f < mine.end; ++f) {
    if (f < frames.count) frames.fill(f, pixels);
    else std::fill_n(pixels.data<float>(), pixels.size(), -1.0f);
    encode(pixels, vectors.view().select(0, f));
  }
  if (world.size() == 1) return vectors;
  world.all_gather_in_place(row_segments(vectors, world.size(), share), "motion vectors");
  return vectors;
}

}  // namespace zoetrope::pipeline
