// Latents ↔ tokens (wan.md sections 2.1 and 2.6). A token is a pt×ph×pw cell of latents; tokens run t slowest, then h,
// then w. The two directions order a token's vector differently: into the model channel slowest, out of it channel
// fastest.
#pragma once

#include <array>
#include <cstdint>

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::wan {

// tokens[b, n − range.begin, ((c·pt + dt)·ph + dy)·pw + dx] = latents[b, c, t·pt + dt, h·ph + dy, w·pw + dx] for the
// tokens n = (t·H' + h)·W' + w of `range`. latents [B, C, F, H, W] F32 or BF16, any strides;
// tokens [B, range.size(), C·pt·ph·pw] F32 or BF16, rounded where narrower.
void patchify(Stream& stream, const TensorView& latents, const std::array<int64_t, 3>& patch, IndexRange range,
              const TensorView& tokens);

// latents[b, c, t·pt + dt, h·ph + dy, w·pw + dx] = tokens[b, n, ((dt·ph + dy)·pw + dx)·C + c] for all N tokens.
// tokens [B, N, pt·ph·pw·C], latents [B, C, F, H, W], each F32 or BF16, any strides but a contiguous last axis of
// tokens.
void unpatchify(Stream& stream, const TensorView& tokens, const std::array<int64_t, 3>& patch,
                const TensorView& latents);

}  // namespace zoetrope::wan
