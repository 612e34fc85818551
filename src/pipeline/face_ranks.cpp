#include "pipeline/face_ranks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/index_range.h"
#include "models/wan/transformer/face_encoder.h"

namespace zoetrope::pipeline {
namespace {

// Motion vectors of all frames, [S, e] F32, on every rank.
Tensor motion_vectors(const wan::TransformerWeights& weights, const std::vector<TensorView>& frames,
                      comm::Communicator& world, Stream& stream, const std::function<void()>& between) {
  const auto count = static_cast<int64_t>(frames.size());
  Tensor vectors = Tensor::uninitialized(DType::kF32, {count, weights.config.face->vector_dim});
  const IndexRange mine = split_range(count, world.size(), world.rank());
  for (int64_t f = mine.begin; f < mine.end; ++f) {
    between();
    wan::encode_motion(stream, weights, frames[static_cast<size_t>(f)], vectors.view().select(0, f));
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

Tensor encode_faces(const wan::TransformerWeights& weights, const TensorView& frames, const FaceSamples& samples,
                    comm::Communicator& world, Stream& stream, const std::function<void()>& between) {
  const int64_t count = frames.extent(0), d = weights.config.inner_dim();
  // A black frame has one vector, however often it is shown.
  Tensor black;
  std::vector<TensorView> all;
  for (int64_t f = 0; f < count; ++f) all.push_back(frames.select(0, f));
  if (samples.any_unconditional) {
    black = Tensor::uninitialized(DType::kF32, frames.select(0, 0).shape());
    std::fill_n(black.data<float>(), black.size(), -1.0f);
    all.push_back(black);
  }
  const Tensor vectors = motion_vectors(weights, all, world, stream, between);
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
