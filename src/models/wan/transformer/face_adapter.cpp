// What Animate adds to the blocks (wan.md sections 14.2 and 14.5): the pose behind the patch embedding, and attention
// of the tokens to the face of their own latent frame behind every few blocks. Frame 0 is the reference image: it has
// no pose, and its face is zeros.
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/state.h"
#include "tensor/dispatch.h"
#include "tensor/half.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

// As configs allow.
constexpr int64_t kMostFaceTokens = 1025, kMostHeadDim = 1024;

}  // namespace

// Tokens from the second frame on: x += the pose's patch. Each is rounded on its own, as the reference has it.
void Transformer::State::add_pose(const Probe& probe) {
  const trace::Span span(stream.lane(), "pose embedding");
  const int64_t first = grid.height * grid.width;  // tokens of the reference image
  const LinearWeights& layer = weights->face.pose_patch_embedding;
  const int64_t before = std::clamp<int64_t>(first - tokens.begin, 0, tokens_local);  // of this rank
  for_each_chunk({0, batch}, [&](const Chunk& chunk) {
    Chunk part = chunk;
    part.begin = std::clamp(before, chunk.begin, chunk.end);
    if (part.rows() == 0) return;
    const IndexRange positions{tokens.begin + part.begin - first, tokens.begin + part.end - first};
    const TensorView cells = wide_part(0, part.rows(), layer.weight.k), embedded = rows(buffers.x, part);
    const int64_t sample = pose.extent(0) == 1 ? 0 : part.sample;
    patchify(stream, pose.slice(0, sample, sample + 1), config.patch_size, positions, one_sample(cells));
    kernels::PackedGemm call;
    call.out = rows(buffers.o, {part.sample, 0, part.begin, part.end});
    multiply("pose embedding: product", as_operand(stream, cells, layer.weight, operand(part.rows(), layer.weight)),
             layer, call);
    observe(probe, "pose_patch_embedding", call.out);
    kernels::gated_add(stream, one_sample(embedded), one_sample(call.out), {}, one_sample(embedded));
  });
  if (before == tokens_local) observe(probe, "pose_patch_embedding", rows(buffers.x, {}));  // as every rank
}

// Keys and values of every adapter, for the face tokens of all frames.
void Transformer::State::project_faces(const TensorView& face) {
  const trace::Span span(stream.lane(), "face: keys");
  const int64_t d = config.inner_dim(), given = face.extent(1) * face.extent(2), width = config.face->tokens();
  ZT_CHECK(width <= kMostFaceTokens && config.attention_head_dim <= kMostHeadDim);
  const Tensor all(dtype, {width + given, d});  // the reference frame's are zeros
  const Tensor normed = Tensor::uninitialized(dtype, all.shape()), raw = Tensor::uninitialized(dtype, all.shape());
  for (int64_t b = 0; b < batch; ++b) {
    std::memcpy(all.view().slice(0, width, width + given).raw(), face.select(0, b).raw(), face.select(0, b).bytes());
    normalise(all, {}, normed);
    for (size_t j = 0; j < weights->face.adapters.size(); ++j) {
      const io::WeightStream::Use use = weights->use_adapter(j);
      const FaceAdapterWeights& w = weights->face.adapters[j];
      linear(stream, normed, w.k, raw);
      norm_heads(raw, w.norm_k, face_keys(j, 0, b));
      linear(stream, normed, w.v, face_keys(j, 1, b));
    }
  }
}

// RMSNorm of every head on its own: rows [M, d] as [M·H, head_dim].
void Transformer::State::norm_heads(const TensorView& from, const TensorView& weight, const TensorView& to) const {
  const auto one_head = [&](const TensorView& x) {
    return x.reshape({1, x.size() / config.attention_head_dim, 1, config.attention_head_dim});
  };
  const HeadSlot slot{{0, 1}, one_head(to)};
  kernels::rms_norm_rope(stream, {.x = one_head(from),
                                  .weight = weight,
                                  .cos = {},
                                  .sin = {},
                                  .eps = static_cast<float>(config.eps),
                                  .slots = {&slot, 1},
                                  .implementation = {}});
}

// o[n] = softmax(q[n]·kᵀ/√D)·v over the face tokens of the frame that token n belongs to. A rank's tokens may begin and
// end inside a frame, so the frame follows from a token's place among all tokens. Five keys a token: of a step of the
// 14 B model at 720p less than a thousandth.
void Transformer::State::attend_faces(const Chunk& chunk, size_t adapter, const TensorView& q,
                                      const TensorView& o) const {
  const int64_t d = config.inner_dim(), head_dim = config.attention_head_dim, width = config.face->tokens();
  const int64_t frame_tokens = grid.height * grid.width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const TensorView k = face_keys(adapter, 0, chunk.sample), v = face_keys(adapter, 1, chunk.sample);
  with_compute_type(dtype, "face tokens", [&](auto tag) {
    using Value = typename decltype(tag)::type;
    constexpr int64_t kGrain = 16;
    stream.team().parallel_for(chunk.rows(), kGrain, [&](IndexRange mine, int) {
      std::array<float, kMostFaceTokens> score;
      std::array<float, kMostHeadDim> sums;
      for (int64_t row = mine.begin; row < mine.end; ++row) {
        const int64_t frame = (tokens.begin + chunk.begin + row) / frame_tokens;
        for (int64_t at = 0; at < d; at += head_dim) {
          const Value* query = q.data<Value>() + row * d + at;
          const Value* keys = k.data<Value>() + frame * width * d + at;
          const Value* values = v.data<Value>() + frame * width * d + at;
          float most = -INFINITY;
          for (int64_t i = 0; i < width; ++i) {
            float dot = 0;
            for (int64_t e = 0; e < head_dim; ++e) dot += to_float(query[e]) * to_float(keys[i * d + e]);
            most = std::max(most, score[static_cast<size_t>(i)] = dot * scale);
          }
          float total = 0;
          for (int64_t i = 0; i < width; ++i)
            total += score[static_cast<size_t>(i)] = std::exp(score[static_cast<size_t>(i)] - most);
          std::fill_n(sums.data(), head_dim, 0.0f);
          for (int64_t i = 0; i < width; ++i) {
            const float weight = score[static_cast<size_t>(i)];
            for (int64_t e = 0; e < head_dim; ++e) sums.data()[e] += weight * to_float(values[i * d + e]);
          }
          Value* out = o.data<Value>() + row * d + at;
          for (int64_t e = 0; e < head_dim; ++e) out[e] = from_float<Value>(sums.data()[e] / total);
        }
      }
    });
  });
}

// x += to_out(attention of LN(x) to the faces).
void Transformer::State::add_face(IndexRange samples, size_t adapter, const Probe& probe) {
  const std::string label = fmt::format("face adapter {}", adapter);
  const trace::Span span(stream.lane(), label.c_str());
  const io::WeightStream::Use use = wait_for_weights(&TransformerWeights::use_adapter, adapter);
  const FaceAdapterWeights& w = weights->face.adapters[adapter];
  const int64_t d = config.inner_dim();
  const TensorView x = stream_of(samples);
  for_each_chunk(samples, [&](const Chunk& chunk) {
    const int64_t m = chunk.rows();
    const TensorView n = operand(m, w.q.weight), raw = wide_part(0, m, d), q = wide_part(1, m, d),
                     o = wide_part(2, m, d);
    const TensorView to = rows(x, chunk), added = rows(buffers.o, chunk);
    normalise(to, {}, n);
    kernels::PackedGemm call;
    call.out = raw;
    multiply("face: q", n, w.q, call);
    norm_heads(raw, w.norm_q, q);
    attend_faces(chunk, adapter, q, o);
    call.out = added;
    multiply("face: out", as_operand(stream, o, w.out.weight, n), w.out, call);
    kernels::gated_add(stream, one_sample(to), one_sample(added), {}, one_sample(to));
  });
  if (probe) observe(probe, "face_adapter." + std::to_string(adapter), buffers.o);
}

}  // namespace zoetrope::wan
