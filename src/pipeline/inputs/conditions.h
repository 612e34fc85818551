// The conditions of a run next to its prompt, in the form that the denoising loop takes, and the arithmetic that makes
// them from pictures and videos (wan.md sections 7.3 to 7.6). Pure: reads no file, encodes nothing, knows no ranks;
// that is inputs.h and condition_ranks.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/media/image.h"

namespace zoetrope::pipeline {

// Frames of a face as the motion encoder sees them, one at a time: those of a whole clip are large.
struct FaceFrames {
  int64_t count = 0, size = 0;
  std::function<void(int64_t frame, const TensorView& pixels)> fill;  // [3, size, size] F32 in [−1, 1]
};

// Every part may be absent. All F32, whole, the same on every rank.
struct Conditions {
  // [1, C', T, h, w]: behind the latents' own channels in every step; [videos, C', T, h, w] where each video of a batch
  // has its own, which is Animate's from the second segment on
  Tensor channels;
  Tensor
      given_frames;   // [1, C, T', h, w]: in place of the first T' frames of the latents, whose tokens have timestep 0
  Tensor pose;        // Animate: [1, C, T − 1, h, w]
  FaceFrames face;    // Animate
  Tensor image_rows;  // [images, S, D]: of the image encoder, for both guidance branches
  Tensor control;     // [1, C'', T, h, w]: what control layers are fed
  std::vector<float> control_scale;  // of each control layer

  int64_t clean_frames() const { return given_frames ? given_frames.extent(2) : 0; }
};

// What the transformer is given of the latents in a step. Books its memory once, and none where the latents alone are
// the input.
class StepInput {
 public:
  // `latent`: [1, C, T, h, w]. The conditions must outlive this.
  StepInput(const Conditions& conditions, const Shape& latent);
  // latents [1, C, T, h, w] of a video of the batch → [1, C + C', T, h, w]; valid until the next call.
  TensorView of(const TensorView& latents, int64_t video = 0) const;

 private:
  bool own_channels() const { return conditions_.channels && conditions_.channels.extent(0) > 1; }

  const Conditions& conditions_;
  Tensor input_;
};
// The given frames into latents [1, C, T, h, w]: what ends the last step.
void put_given_frames(const Conditions& conditions, const TensorView& latents);

// ---- pixels ----

// Bytes to [−1, 1] as the reference rounds it, 2·(u/255) − 1. Both contiguous, of equal size; out F32.
void to_signed_unit(const TensorView& bytes, const TensorView& out);

// The halves of a video that a mask divides: what is kept and what is regenerated. mask [H, W, 3] bytes like the frame,
// more than a half is 1; null: 1 everywhere. frame [H, W, 3] bytes, null: mid-grey. out [H, W, 3] F32.
enum class MaskHalf : uint8_t { kInactive, kReactive };
void masked_frame(const TensorView& frame, const TensorView& mask, MaskHalf half, const TensorView& out);

// [1, 1, F, H, W] F32 in [0, 1]: the first channel of a mask [F, H, W, 3] bytes.
Tensor first_channel(const TensorView& mask);

// A picture [h, w, 3] bytes as large as fits into [size, 3] bytes, Lanczos, in the middle of black.
Tensor on_black(const TensorView& picture, io::ImageSize size);

// The brightness of every pixel, [F, H, W, 3] bytes to [F, H, W, 1].
Tensor luminance(const TensorView& video);

// A picture [h, w, 3] bytes as large as fits into [H, W, 3] F32, bilinear, in the middle of white.
void reference_canvas(const TensorView& picture, const TensorView& out);

// ---- channels ----

// Which frames of the video are given as pictures: the first, and perhaps the last.
enum class GivenEnds : uint8_t { kFirst, kFirstAndLast };
// [f, T, h, w] F32 for latents {T, h, w} of f video frames each: channel j of latent frame t is 1 where frame f·t + j
// is given, the first frame counting f times.
Tensor frame_mask(const Shape& latent, int64_t frames_per_latent, GivenEnds given);

// Which frames a segment of Animate is given, [4, T, h, w] F32 for latents {T, h, w}: channel j of latent frame t is
// that of video frame 4·t + j, the first frame counting four times. known(frame, y, x) in [0, 1] of a latent cell.
Tensor segment_mask(const Shape& latent, const std::function<float(int64_t frame, int64_t y, int64_t x)>& known);

// [C, a + b, h, w] from a [C, a, h, w] and b, contiguous: b later in time.
Tensor joined_frames(const TensorView& a, const TensorView& b);

// [1, a + b, T, h, w] from a and b, [channels, T, h, w] each, contiguous.
Tensor joined_channels(const TensorView& a, const TensorView& b);

// [s², n + T, h, w] F32: every s × s cell of the mask's first channel as channels, at the T video frames nearest in
// time, behind n frames of zeros. mask [F, H, W, 3] bytes; null: ones. `latent`: {T, h, w} of the video alone.
Tensor mask_channels(const TensorView& mask, int64_t video_frames, const Shape& latent, int64_t cell,
                     int64_t references);

// ---- sizes ----

// The shape of a picture at about `area` pixels, in whole multiples of `unit` (wan.md section 7.5); at least one of
// them.
io::ImageSize size_of_area(io::ImageSize picture, int64_t area, int64_t unit);
// The size that the reference conditions on: a video's own, shrunk to no more pixels than `frame`, in multiples of
// `unit`.
io::ImageSize control_size(io::ImageSize video, io::ImageSize frame, int64_t unit);
// The part of the canvas that a picture takes up.
io::ImageSize fitted_size(io::ImageSize picture, io::ImageSize canvas);

}  // namespace zoetrope::pipeline
