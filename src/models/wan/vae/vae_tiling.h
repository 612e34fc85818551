// The VAE in overlapping tiles that are blended, as the reference does it after enable_tiling() (wan.md section 4.6):
// each tile is a clip of its own, so what is worked on is never larger than a tile. The result is another one than the
// untiled VAE's: every convolution sees zeros at the borders of a tile, and the attention sees only the tile.
#pragma once

#include <cstdint>
#include <functional>

#include "zoetrope/tensor.h"

#include "models/wan/vae/vae.h"

namespace zoetrope::wan {

// In pixels; the reference's own sizes. Sizes in latent cells are these divided by the spatial factor, rounded down.
// The encoder of a VAE with patches counts a patch as a pixel, as the reference does: its tiles are that much larger.
struct TileSizes {
  int64_t height = 256;
  int64_t width = 256;
  int64_t stride_height = 192;  // from one tile to the next; where tiles overlap they are blended
  int64_t stride_width = 192;
};

// Whether latents [z, T, h, w] or [1, z, T, h, w], and video [F, H, W, 3], are larger than one tile.
bool decodes_in_tiles(const VaeConfig& config, const Shape& latents, const TileSizes& sizes = {});
bool encodes_in_tiles(const Shape& video, const TileSizes& sizes = {});

// What the tiles of a clip execute, those of their overlaps twice: of frames × height × width latent cells that are
// decoded, and of frames × height × width pixels that are encoded.
double tiled_decode_flops(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes = {});
double tiled_encode_flops(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes = {});

// Memory in addition to the coder's workspace for a tile: the assembled clip, overlaps of neighbouring tiles, a frame
// (or the moments) of a tile, and a frame for the sink.
size_t tiled_decode_bytes(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes = {});
size_t tiled_encode_bytes(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes = {});

// Called between frames of a tile, with the finished tiles and all tiles; an exception ends the work.
using TileTick = std::function<void(int64_t done, int64_t total)>;

// As VaeDecoder::decode(), and just that where one tile is enough. Tiles follow one another and each is decoded over
// the whole clip, so the sink gets its first frame after the last tile: until then the clip and one more frame are in
// memory, in float32.
void decode_tiled(Stream& stream, VaeDecoder& decoder, const VaeConfig& config, const TensorView& latents,
                  const FrameCallback& sink, const TileTick& tick = {}, const TileSizes& sizes = {});

// As VaeEncoder::encode(), and just that where one tile is enough; moments as there.
void encode_tiled(Stream& stream, VaeEncoder& encoder, const VaeConfig& config, const FrameSource& video,
                  const TensorView& moments, const TileSizes& sizes = {});
inline void encode_tiled(Stream& stream, VaeEncoder& encoder, const VaeConfig& config, const TensorView& video,
                         const TensorView& moments, const TileSizes& sizes = {}) {
  encode_tiled(stream, encoder, config, frames_of(video), moments, sizes);
}

}  // namespace zoetrope::wan
