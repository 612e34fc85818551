// Floating-point operations that a pass through a model executes, as fractions of the peak and the planner count them:
// a multiply and an add are two, norms, softmax and activations none. What the decoder executes is vae/vae_cost.h.
#pragma once

#include <cstdint>

#include "models/wan/config.h"

namespace zoetrope::wan {

// One forward of the transformer, N tokens, width d, L text rows, I rows of an image, batch 1.
struct ForwardFlop {
  // Per layer.
  double linear = 0;        // 2·N·(4d² + 2d² + 2·d·ffn): q, k, v, out; cross q and out; both of the feed-forward
  double feed_forward = 0;  // of these, 2·N·2·d·ffn
  double self_attention = 0;   // 4·N²·d
  double cross_attention = 0;  // 4·N·(L + I)·d
  // Once per forward.
  // 2·N·d·(patch in + patch out); VACE: and 2·N·d·(control patch in + d + d for each hint)
  double ends = 0;
  double embedding = 0;  // 2·(freq·d + d² + 6d²), of the time; whatever N
  int64_t layers = 0;    // of both streams

  double total() const {
    return static_cast<double>(layers) * (linear + self_attention + cross_attention) + ends + embedding;
  }
};
// Keys and values of text and image are not counted: they are computed once per prompt, not in a forward. (Programs
// that compute them in every forward execute 4·(L + I)·d² more per layer.) `image_rows` counts for models that take an
// image.
ForwardFlop forward_flop(const TransformerConfig& config, int64_t tokens, int64_t text_rows, int64_t image_rows = 0);

// VAE decoder on latents of frames × height × width cells, every tap of every convolution counted, also those that fall
// on the zeros around a frame, and enlarging convolutions on the large picture: the number that others quote. This
// engine executes fewer (vae_decode_flops).
double vae_decoder_dense_flop(const VaeConfig& config, int64_t frames, int64_t height, int64_t width);

}  // namespace zoetrope::wan
