// The VAE in use, of either generation: latents to frames and frames to latents, in float32 or bf16, streamed in time.
// A causal convolution needs two past frames of its input and nothing else, so both halves take a clip piece by piece,
// keep those frames, and give the same result as one pass over the whole clip (wan.md section 4.4). Memory
// depends on the size of a frame, not on the length of the clip (vae_cost.h).
//
// The rows of every frame may be split over parts that exchange the rows at their borders: no tiles, no seams, and with
// float32 the same numbers as without the split but for the order of sums in the attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/conv/halo.h"
#include "models/wan/vae/vae_weights.h"
#include "tensor/probe.h"

namespace zoetrope::wan {

// Frames [first_frame, first_frame + n) of the clip, in order and without gaps; valid during the call only. An
// exception ends decode(), and the decoder can be used again. Rows are those of the part: 8 per latent row, or 16 with
// patches of two.
using FrameCallback =
    std::function<void(int64_t first_frame, const TensorView& frames /* [n, H, W, 3] F32 in [−1, 1] */)>;

// A decoding that stops between two latent frames and goes on elsewhere, with any split: what is remembered of the
// frames so far. The layers have frames in a fixed order, each [rows, W, C] of the weights' dtype; some are empty.
struct DecodeStops {
  struct Remembered {
    TensorView values;  // of the part's rows [rows, W, C], any strides; null: empty
    IndexRange rows;    // of the picture at this layer
    int64_t height = 0;
  };
  // After latent frame `done` − 1, when the sink has its frames; valid during the call.
  std::function<void(int64_t done, const std::vector<Remembered>& frames)> after;

  int64_t first = 0;  // latent frames that are done already; above 0 the two below are needed
  // [H, W, C] of remembered frame `index`, of the whole picture; rank 0: empty. Copies a row of it to `to`, [W, C].
  std::function<Shape(size_t index)> shape;
  std::function<void(size_t index, int64_t row, const TensorView& to)> read;
};

// One use at a time; keeps its buffers for the next clip of the same size. Probes see "conv_in", "mid_block",
// "up_blocks.i" and "conv_out" as [C, n, H, W] F32, several times a clip: joined along time they are the whole tensor.
// Where there are patches these are values of patches, not of pixels.
class VaeDecoder {
 public:
  explicit VaeDecoder(std::shared_ptr<const VaeWeights> weights);
  ~VaeDecoder();
  VaeDecoder(VaeDecoder&&) noexcept;

  // latents [z, T, h, w] or [1, z, T, h, w] F32, any strides, not normalised (see latents.h), of the whole picture.
  // Frames reach the sink as soon as they are computed, before later latent frames.
  void decode(Stream& stream, const TensorView& latents, const FrameCallback& sink, const Probe& probe = {},
              const kernels::RowSplit& split = {});

  // The rest of a clip, and word of what is remembered after each latent frame. `latents` are those of the whole clip,
  // and frames count from its beginning; `first_frame` is the first that the sink gets.
  void decode(Stream& stream, const TensorView& latents, int64_t first_frame, const FrameCallback& sink,
              const kernels::RowSplit& split, const DecodeStops& stops);

  // As decode() of a whole picture, but the sink gets the output of the last layer, before the clamp and with patches
  // as channels: [n, h, w, C] F32, and may change it.
  void decode_values(Stream& stream, const TensorView& latents, const FrameCallback& sink);

  size_t workspace_bytes() const;  // booked now, without weights

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A clip of `shape` [F, H, W, 3], frame by frame: frame(f) is the whole picture [H, W, 3] F32 in [−1, 1], any strides,
// valid until the next call. Called in order, once per frame (with tiles: per tile); an exception ends the encoding.
struct FrameSource {
  Shape shape;
  std::function<TensorView(int64_t frame)> frame;
};
FrameSource frames_of(const TensorView& video);  // [F, H, W, 3] F32, any strides

// As the decoder; probes see "conv_in", "down_blocks.i", "mid_block" and "conv_out".
class VaeEncoder {
 public:
  explicit VaeEncoder(std::shared_ptr<const VaeWeights> weights);
  ~VaeEncoder();
  VaeEncoder(VaeEncoder&&) noexcept;

  // [2·z, T, h, w] for a clip of `video_shape`: mean, then log variance (not clamped). Error where it is too small.
  Shape moments_shape(const Shape& video_shape) const;

  // Frames beyond 1 + 4·k are not used. moments as above or with a leading 1, F32, any strides; with a split of the
  // part's own rows.
  void encode(Stream& stream, const FrameSource& video, const TensorView& moments, const Probe& probe = {},
              const kernels::RowSplit& split = {});
  void encode(Stream& stream, const TensorView& video, const TensorView& moments, const Probe& probe = {},
              const kernels::RowSplit& split = {}) {
    encode(stream, frames_of(video), moments, probe, split);
  }

  size_t workspace_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::wan
