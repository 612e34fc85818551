// Floating-point operations that a pass through a model executes, as fractions of the peak count them: a multiply and
// an add are two, norms, softmax and activations none.
//
// Transformer forward, N tokens, width d, L text rows, batch 1:
//   2·N·(weights of each linear layer a token goes through)   patch embedding, q, k, v, out, cross q and out, both of
//   the
//                                                             feed-forward, proj_out
//   + 4·N²·d + 4·N·L·d                                        a layer: self-attention, cross-attention
//   + 2·(freq·d + d² + 6d²)                                   the time embedding
// Keys and values of the text are not in it: they are made once a prompt, not in a forward. (Programs that make them in
// every forward execute 4·L·d² more a layer.)
//
// Text encoder, N ids, without padding: a layer 2·N·(4·d·a + 3·d·f) + 4·N²·a, a = heads × d_kv, f = d_ff.
#pragma once

#include <cstdint>

#include "models/wan/config.h"

namespace zoetrope::bench {

double transformer_flop(const wan::TransformerConfig& config, int64_t tokens, int64_t text_rows);
double text_encoder_flop(const wan::TextEncoderConfig& config, int64_t ids);

// VAE decoder on latents of frames × height × width cells, every tap of every convolution counted, also those that fall
// on the zeros around a frame: what others quote. What ours executes is less (wan::vae_decode_flops).
double vae_decoder_dense_flop(const wan::VaeConfig& config, int64_t frames, int64_t height, int64_t width);

}  // namespace zoetrope::bench
