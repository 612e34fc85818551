#include "pipeline/face_ranks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/index_range.h"
#include "models/wan/transformer/face_encoder.h"

namespace zoetrope::pipeline {
namespace {

// Motion vectors of all frames and, with `black`, of one that is black, [S, e] or [S + 1, e] F32, on every rank.
Tensor motion_vectors(const wan::TransformerWeights& weights, const FaceFrames& frames, bool black,
                      comm::Communicator& world, Stream& stream, const std::function<void()>& between) {
  const int64_t count = frames.count + (black ? 1 : 0);
  Tensor vectors = Tensor::uninitialized(DType::kF32, {count, weights.config.face->vector_dim});
  const Tensor pixels = Tensor::uninitialized(DType::kF32, {3, frames.size, frames.size});
  const IndexRange mine = split_range(count, world.size(), world.rank());
  for (int64_t f = mine.begin; f < mine.end; ++f) {
    between();
    if (f < frames.count) frames.fill(f, pixels);
    else std::fill_n(pixels.data<float>(), pixels.size(), -1.0f);
    wan::encode_motion(stream, weights, pixels, vectors.view().select(0, f));
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

}  // namespace

Tensor encode_faces(const wan::TransformerWeights& weights, const FaceFrames& frames, const FaceSamples& samples,
                    comm::Communicator& world, Stream& stream, const std::function<void()>& between) {
  const int64_t count = frames.count, d = weights.config.inner_dim();
  // A black frame has one vector, however often it is shown.
  const Tensor vectors = motion_vectors(weights, frames, samples.any_unconditional, world, stream, between);
  const TensorView seen = vectors.view().slice(0, 0, count);
  Tensor tokens = Tensor::uninitialized(
      weights.dtype, {samples.count, wan::face_token_frames(count), weights.config.face->tokens(), d});
  for (int64_t b = 0; b < samples.count; ++b) {
    if (b < samples.count - samples.unconditional) {
      wan::encode_face(stream, weights, seen, tokens.view().select(0, b));
      continue;
    }
    const Tensor repeated = Tensor::uninitialized(DType::kF32, seen.shape());
    for (int64_t f = 0; f < count; ++f)
      std::memcpy(repeated.view().select(0, f).raw(), vectors.view().select(0, count).raw(),
                  vectors.view().select(0, count).bytes());
    wan::encode_face(stream, weights, repeated, tokens.view().select(0, b));
  }
  return tokens;
}

}  // namespace zoetrope::pipeline
