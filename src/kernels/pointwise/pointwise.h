// Element-wise operations. All take F32 or BF16, compute in float32 and round once to the output's dtype. The last
// argument forces an implementation by name: "avx2" or "reference".
#pragma once

#include <cstdint>
#include <string_view>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

enum class Activation : uint8_t { kNone, kSilu, kGeluTanh, kGeluErf };

// out = x + a·gate (product in float32; gate empty: out = x + a). x, a, out [B, S, d]; gate [B, 1, d] or [B, S, d] F32.
// out may be x.
void gated_add(Stream& stream, const TensorView& x, const TensorView& a, const TensorView& gate, const TensorView& out,
               std::string_view implementation = {});

// out = act(x), same shape, contiguous; out may be x.
void activate(Stream& stream, Activation activation, const TensorView& x, const TensorView& out,
              std::string_view implementation = {});

// dtype change (F32 ↔ BF16), same shape, last axis contiguous.
void convert(Stream& stream, const TensorView& x, const TensorView& out, std::string_view implementation = {});

// out = x·scale + offset per channel (last axis): latent normalisation and the like. scale, offset [C] F32.
void affine_channels(Stream& stream, const TensorView& x, const TensorView& scale, const TensorView& offset,
                     const TensorView& out, std::string_view implementation = {});

}  // namespace zoetrope::kernels
