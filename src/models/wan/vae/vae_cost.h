// The cost of decoding and encoding, in closed form from the config: operations and memory. For benchmarks, the memory
// model and admission; needs no weights. vae_cost_test.cpp compares it with the running code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/wan/config.h"
#include "models/wan/vae/frame_pool.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// FLOPs (two per multiply-add) of one convolution for output pixels `rows` × `columns` of a picture: taps that fall on
// the zeros around an input of `input_height` × `input_width` are not counted, nor frames before the clip's first
// (`frames`: those that exist). `border`: pixels that the input has around the picture.
double convolution_flops(const kernels::FrameConvProblem& problem, IndexRange rows, int64_t columns,
                         int64_t input_height, int64_t input_width, int64_t frames, int64_t border);
double attention_flops(int64_t queries, int64_t keys, int64_t channels);

// Of a whole picture. Latent sizes for the decoder, a video's for the encoder; the first frames of a clip have fewer
// taps.
double vae_decode_flops(const VaeConfig& config, int64_t latent_frames, int64_t latent_height, int64_t latent_width);
double vae_encode_flops(const VaeConfig& config, int64_t video_frames, int64_t height, int64_t width);

// Bytes that a decoder or encoder (one of the two) holds for a clip of any length above a few frames, of a picture in
// pixels or the latent rows of one part of it: frames of history and in work (less where layers of the same channels
// happen to share). Not included: the weights, and the kernels' scratch: a few MB per thread, and the function below.
size_t vae_workspace_bytes(const VaeConfig& config, int64_t height, int64_t width, DType dtype, VaeParts part);
size_t vae_workspace_bytes(const VaeConfig& config, int64_t height, int64_t width, DType dtype, VaeParts part,
                           IndexRange latent_rows);

// Keys and values of all of a frame as the attention packs them, at most: float32, whatever the dtype and the part.
size_t vae_attention_scratch_bytes(const VaeConfig& config, int64_t height, int64_t width, VaeParts part);

}  // namespace zoetrope::wan
