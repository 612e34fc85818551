// The diffusion transformer of the Wan family in float64. Read this first: transformer.cpp has a block from top to
// bottom as wan.md section 2 defines it, one operation a line, without packing, chunks, ranks or threads. The engine
// (models/wan/transformer) computes the same; `zoetrope bench` and tests compare the two.
#pragma once

#include <string>
#include <vector>

#include "models/reference/rows.h"
#include "models/wan/config.h"

namespace zoetrope::wan::reference {

using namespace zoetrope::reference;  // its arithmetic

// Tokens of the latents: frames × height × width, token (t·height + y)·width + x.
struct Grid {
  int64_t frames, height, width;
};

class Transformer {
 public:
  // Both must outlive it. Parameters are rounded as a model in `dtype` holds them, but those it keeps in float32.
  Transformer(const TransformerConfig& config, DType dtype, const Parameters& parameters)
      : config_(config), rounding_(rounding_of(dtype)), parameters_(parameters) {}

  struct Context {
    Rows text, image;  // the second without rows where the model looks at none
  };

  // Latents [C, F, H, W] F32 as cells of the patch grid, [C·pt·ph·pw, tokens].
  Rows cells(const TensorView& latents, const Grid& grid) const;
  Rows patch_embedding(const Rows& cells) const;
  Rows text_embedding(const Rows& text) const;
  Rows image_embedding(Rows image) const;  // [image_dim, S]
  Rows time_embedding(double timestep) const;
  Rows time_projection(Rows time_embedding) const;  // six vectors of a block: shift, scale, gate, twice

  // A block in three stages, each from the result of the one before. `name` is the block's prefix with its dot:
  // "blocks.0."; `time`: the time projection, once for all tokens or for each.
  // What the tokens `of` take from all of x by self-attention, all heads side by side.
  Rows self_attention(const std::string& name, const Rows& x, const Rows& time, const Grid& grid,
                      const std::vector<int64_t>& of) const;
  // x plus the projected result of self-attention plus cross-attention.
  Rows after_cross_attention(const std::string& name, Rows x, const Rows& attended, const Rows& time,
                             const Context& context) const;
  Rows after_feed_forward(const std::string& name, Rows x, const Rows& time) const;

  // `time_embedding`: once for all tokens or for each.
  Rows head(const Rows& x, const Rows& time_embedding) const;

  // VACE: what the control stream begins with, and the hint that follows its block number `index`.
  Rows control_patches(const Rows& cells) const;
  Rows control_in(const Rows& patches, const Rows& x) const;
  Rows hint(size_t index, const Rows& control) const;

  // Animate: what is added to the tokens from the second frame on, and what is added behind every few blocks. `face`:
  // the tokens of all frames, those of the first zeros.
  Rows pose_patches(const Rows& cells) const;
  Rows face_adapter(size_t index, const Rows& x, const Rows& face) const;

 private:
  Rows normed_by_head(const std::string& projection, const std::string& norm, const Rows& x) const;
  Rows cross_attention(const std::string& name, const Rows& x, const Context& context) const;
  Rows feed_forward(const std::string& name, const Rows& x) const;
  Rows linear(const std::string& name, const Rows& x) const { return parameters_.linear(name, x, rounding_); }
  Rows normed(const std::string& projection, const std::string& norm, const Rows& x) const;
  Rows attended(const Rows& q, const Rows& k, const Rows& v) const;
  Rows affine_norm(const std::string& name, const Rows& x, double eps) const;
  void rotate(Rows& x, const Grid& grid, const std::vector<int64_t>& tokens) const;

  const TransformerConfig& config_;
  Rounding rounding_;
  const Parameters& parameters_;
};

}  // namespace zoetrope::wan::reference
