#include "pipeline/face_ranks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/index_range.h"

namespace zoetrope::pipeline {

Tensor vectors_of_face(const FaceFrames& frames, bool black, int64_t width, comm::Communicator& world,
                       const EncodeFrame& encode) {
  const int64_t count = frames.count + (black ? 1 : 0);
  Tensor vectors = Tensor::uninitialized(DType::kF32, {count, width});
  const Tensor pixels = Tensor::uninitialized(DType::kF32, {3, frames.size, frames.size});
  const IndexRange mine = split_range(count, world.size(), world.rank());
  for (int64_t f = mine.begin; f < mine.end; ++f) {
    if (f < frames.count) frames.fill(f, pixels);
    else std::fill_n(pixels.data<float>(), pixels.size(), -1.0f);
    encode(pixels, vectors.view().select(0, f));
  }
  if (world.size() == 1) return vectors;
  std::vector<comm::Segment> receive;
  for (int rank = 0; rank < world.size(); ++rank) {
    const IndexRange range = split_range(count, world.size(), rank);
    const TensorView part = vectors.view().slice(0, range.begin, range.end);
    receive.push_back({rank, part.raw(), part.bytes()});
  }
  // The own ones are in their place already, and are sent from a copy.
  const comm::Segment own = receive[static_cast<size_t>(world.rank())];
  const Tensor copied = Tensor::uninitialized(DType::kU8, {std::max<int64_t>(1, static_cast<int64_t>(own.bytes))});
  std::memcpy(copied.view().raw(), own.data, own.bytes);
  world.all_gather_v({world.rank(), copied.view().raw(), own.bytes}, receive, "motion vectors");
  return vectors;
}

}  // namespace zoetrope::pipeline
