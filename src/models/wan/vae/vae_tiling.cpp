#include "models/wan/vae/vae_tiling.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/wan/vae/vae_cost.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_pixels.h"
#include "models/wan/vae/without_batch.h"

namespace zoetrope::wan {
namespace {

// Tiles along one axis: their begins, their lengths, their overlap.
struct Axis {
  int64_t extent = 0;
  int64_t tile = 0;
  int64_t stride = 0;

  int64_t count() const { return (extent + stride - 1) / stride; }
  IndexRange range(int64_t index) const { return {index * stride, std::min(index * stride + tile, extent)}; }
  int64_t overlap() const { return tile - stride; }
  Axis times(int64_t factor) const { return {extent * factor, tile * factor, stride * factor}; }
};

struct Grid {
  Axis rows, columns;
  int64_t count() const { return rows.count() * columns.count(); }
  Grid times(int64_t factor) const { return {rows.times(factor), columns.times(factor)}; }
};

// In latent cells; `factor` pixels are one cell.
Grid grid_of(int64_t factor, int64_t height, int64_t width, const TileSizes& sizes) {
  for (const int64_t size : {sizes.height, sizes.width, sizes.stride_height, sizes.stride_width}) {
    ZT_CHECK(size > 0 && size % factor == 0, "a tile of {} pixels", size);
  }
  ZT_CHECK(sizes.stride_height <= sizes.height && sizes.stride_width <= sizes.width);
  return {{height, sizes.height / factor, sizes.stride_height / factor},
          {width, sizes.width / factor, sizes.stride_width / factor}};
}

Grid decoding_grid(const VaeConfig& config, int64_t height, int64_t width, const TileSizes& sizes) {
  return grid_of(config.spatial_factor(), height, width, sizes);
}

// Tiles of a video, and of its moments. Sizes are those of the layers, where a patch is a pixel; the
// video's height need not be a whole number of latent rows.
struct EncodingGrid {
  Grid latents, video;
};
EncodingGrid encoding_grid(const VaeConfig& config, int64_t height, int64_t width, const TileSizes& sizes) {
  const int64_t patch = config.patch_size, factor = config.spatial_factor();
  return {grid_of(layer_factor(config), height / factor, width / factor, sizes),
          {{height, patch * sizes.height, patch * sizes.stride_height},
           {width, patch * sizes.width, patch * sizes.stride_width}}};
}

// Memory of a clip that is assembled from tiles: its overlaps are the rows of the tiles above and the
// columns of the one to the left.
struct Seams {
  const Grid& grid;
  int64_t rows(int64_t i) const { return std::min(grid.rows.overlap(), grid.rows.range(i).size()); }
  int64_t columns(int64_t j) const { return std::min(grid.columns.overlap(), grid.columns.range(j).size()); }
  Shape above(int64_t n, int64_t j, int64_t channels) const {
    return {n, rows(0), grid.columns.range(j).size(), channels};
  }
  Shape left(int64_t n, int64_t channels) const { return {n, grid.rows.range(0).size(), columns(0), channels}; }
  int64_t values(int64_t n, int64_t channels) const {
    int64_t all = left(n, channels).size();
    for (int64_t j = 0; j < grid.columns.count(); ++j) all += above(n, j, channels).size();
    return all;
  }
};

// Assembles tiles [N, h, w, C] to a whole [N, H, W, C]. The reference blends whole tiles in place and in this order, so
// a neighbour's rows have been blended with its own neighbours before; of a finished tile only the rows and columns
// that its neighbours overlap have to stay.
class Mosaic {
 public:
  Mosaic(Stream& stream, const Grid& grid, const TensorView& whole)
      : stream_(stream),
        grid_(grid),
        seams_{grid_},
        whole_(whole),
        left_(Tensor::uninitialized(DType::kF32, seams_.left(whole.extent(0), whole.extent(3)))) {
    for (int64_t j = 0; j < grid_.columns.count(); ++j)
      above_.push_back(Tensor::uninitialized(DType::kF32, seams_.above(whole.extent(0), j, whole.extent(3))));
  }
  Mosaic(const Mosaic&) = delete;
  Mosaic& operator=(const Mosaic&) = delete;

  // Tiles come row by row, from left to right, each as parts [first, first + n) of N, which are changed.
  void add(int64_t i, int64_t j, int64_t first, const TensorView& tile) {
    const int64_t n = tile.extent(0), h = tile.extent(1), w = tile.extent(2);
    const TensorView above = above_[static_cast<size_t>(j)].view().slice(0, first, first + n);
    const TensorView left = left_.view().slice(0, first, first + n).slice(1, 0, h);
    if (i > 0) blend(above.slice(1, 0, seams_.rows(i - 1)), tile, 1);
    if (j > 0) blend(left.slice(2, 0, seams_.columns(j - 1)), tile, 2);
    copy(stream_, above.slice(1, 0, seams_.rows(i)), tile.slice(1, h - seams_.rows(i), h));
    copy(stream_, left.slice(2, 0, seams_.columns(j)), tile.slice(2, w - seams_.columns(j), w));
    const int64_t row = grid_.rows.range(i).begin, column = grid_.columns.range(j).begin;
    const int64_t height = std::min(grid_.rows.stride, h), width = std::min(grid_.columns.stride, w);
    copy(stream_, whole_.slice(0, first, first + n).slice(1, row, row + height).slice(2, column, column + width),
         tile.slice(1, 0, height).slice(2, 0, width));
  }

 private:
  // The first rows (axis 1) or columns (axis 2) of `tile` fade in over the last ones of `before`.
  static void blend(const TensorView& before, const TensorView& tile, int axis) {
    const int64_t count = std::min(before.extent(axis), tile.extent(axis));
    for (int64_t line = 0; line < count; ++line) {
      const double share = static_cast<double>(line) / static_cast<double>(count);
      const TensorView from = before.select(axis, before.extent(axis) - count + line);
      fade(from, tile.select(axis, line), static_cast<float>(1 - share), static_cast<float>(share));
    }
  }

  // to = keep·from + share·to; [N, line, C], C contiguous.
  static void fade(const TensorView& from, const TensorView& to, float keep, float share) {
    for (int64_t n = 0; n < to.extent(0); ++n) {
      for (int64_t i = 0; i < to.extent(1); ++i) {
        const float* a = from.data<float>() + n * from.stride(0) + i * from.stride(1);
        float* b = to.data<float>() + n * to.stride(0) + i * to.stride(1);
        for (int64_t c = 0; c < to.extent(2); ++c) b[c] = a[c] * keep + b[c] * share;
      }
    }
  }

  Stream& stream_;
  const Grid grid_;
  const Seams seams_;
  const TensorView whole_;
  std::vector<Tensor> above_;  // by column
  const Tensor left_;
};

}  // namespace

bool decodes_in_tiles(const VaeConfig& config, const Shape& latents, const TileSizes& sizes) {
  const Grid grid = decoding_grid(config, latents[latents.rank() - 2], latents[latents.rank() - 1], sizes);
  return grid.rows.extent > grid.rows.tile || grid.columns.extent > grid.columns.tile;
}

double tiled_decode_flops(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes) {
  const Grid grid = decoding_grid(config, height, width, sizes);
  double flops = 0;
  for (int64_t i = 0; i < grid.rows.count(); ++i)
    for (int64_t j = 0; j < grid.columns.count(); ++j)
      flops += vae_decode_flops(config, frames, grid.rows.range(i).size(), grid.columns.range(j).size());
  return flops;
}

double tiled_encode_flops(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes) {
  const EncodingGrid grid = encoding_grid(config, height, width, sizes);
  double flops = 0;
  for (int64_t i = 0; i < grid.latents.rows.count(); ++i)
    for (int64_t j = 0; j < grid.latents.columns.count(); ++j)
      flops += vae_encode_flops(config, frames, grid.video.rows.range(i).size(), grid.video.columns.range(j).size());
  return flops;
}

size_t tiled_decode_bytes(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes) {
  const int64_t factor = layer_factor(config), channels = config.out_channels, made = config.video_frames(frames);
  const Grid grid = decoding_grid(config, height, width, sizes).times(factor);
  const int64_t frame = height * width * factor * factor * channels;
  const int64_t tile = grid.rows.range(0).size() * grid.columns.range(0).size() * channels;
  return static_cast<size_t>(made * frame + frame + Seams{grid}.values(made, channels) + tile) * sizeof(float);
}

size_t tiled_encode_bytes(const VaeConfig& config, int64_t frames, int64_t height, int64_t width,
                          const TileSizes& sizes) {
  const Grid grid = encoding_grid(config, height, width, sizes).latents;
  const int64_t planes = 2 * config.z_dim * config.latent_frames(frames);
  const int64_t tile = grid.rows.range(0).size() * grid.columns.range(0).size();
  const int64_t whole = grid.rows.extent * grid.columns.extent;
  return static_cast<size_t>(planes * (whole + tile) + Seams{grid}.values(planes, 1)) * sizeof(float);
}

bool encodes_in_tiles(const Shape& video, const TileSizes& sizes) {
  return video[1] > sizes.height || video[2] > sizes.width;
}

void decode_tiled(Stream& stream, VaeDecoder& decoder, const VaeConfig& config, const TensorView& latents,
                  const FrameCallback& sink, const TileTick& tick, const TileSizes& sizes) {
  const TensorView z = without_batch(latents, "the VAE's latents", "z, T, h, w");
  if (!decodes_in_tiles(config, z.shape(), sizes)) {
    decoder.decode(stream, z, [&](int64_t first, const TensorView& frames) {
      if (tick) tick(0, 1);
      sink(first, frames);
    });
    return;
  }
  const Grid grid = decoding_grid(config, z.extent(2), z.extent(3), sizes);
  const int64_t factor = layer_factor(config), frames = config.video_frames(z.extent(1)), patch = config.patch_size;
  const Shape size{frames, z.extent(2) * factor, z.extent(3) * factor, config.out_channels};
  const Tensor clip = Tensor::uninitialized(DType::kF32, size);
  const Tensor frame = Tensor::uninitialized(
      DType::kF32, {1, size[1] * patch, size[2] * patch, pixel_channels(config, config.out_channels)});
  Mosaic mosaic(stream, grid.times(factor), clip);
  int64_t done = 0;
  for (int64_t i = 0; i < grid.rows.count(); ++i) {
    for (int64_t j = 0; j < grid.columns.count(); ++j, ++done) {
      const IndexRange rows = grid.rows.range(i), columns = grid.columns.range(j);
      int64_t filled = 0;
      // Blending comes before the clamp, and patches are blended whole.
      decoder.decode_values(stream, z.slice(2, rows.begin, rows.end).slice(3, columns.begin, columns.end),
                            [&](int64_t first, const TensorView& values) {
                              if (tick) tick(done, grid.count());
                              mosaic.add(i, j, first, values);
                              filled = first + values.extent(0);
                            });
      ZT_CHECK(filled == frames, "{} frames of a tile instead of {}", filled, frames);
    }
  }
  for (int64_t f = 0; f < frames; ++f) {
    store_pixels(stream.team(), clip.view().select(0, f), patch, frame.view().select(0, 0));
    sink(f, frame);
  }
}

void encode_tiled(Stream& stream, VaeEncoder& encoder, const VaeConfig& config, const FrameSource& video,
                  const TensorView& moments, const TileSizes& sizes) {
  const Shape size = encoder.moments_shape(video.shape);
  const TensorView out = without_batch(moments, "the VAE's moments", "2·z, T, h, w");
  if (!(out.shape() == size)) {
    fail("the VAE's moments of video {} are {}, not {}", video.shape.to_string(), size.to_string(),
         moments.shape().to_string());
  }
  if (!encodes_in_tiles(video.shape, sizes)) {
    encoder.encode(stream, video, moments);
    return;
  }
  const int64_t factor = config.spatial_factor(), planes = size[0] * size[1];
  const auto [grid, cuts] = encoding_grid(config, video.shape[1], video.shape[2], sizes);
  const Tensor whole = Tensor::uninitialized(DType::kF32, size);
  Mosaic mosaic(stream, grid, whole.view().reshape({planes, size[2], size[3], 1}));
  for (int64_t i = 0; i < grid.rows.count(); ++i) {
    for (int64_t j = 0; j < grid.columns.count(); ++j) {
      const IndexRange own_rows = cuts.rows.range(i), own_columns = cuts.columns.range(j);
      const FrameSource part{
          {video.shape[0], own_rows.size(), own_columns.size(), video.shape[3]}, [&](int64_t frame) {
            const TensorView whole_frame = video.frame(frame);
            return whole_frame.slice(0, own_rows.begin, own_rows.end).slice(1, own_columns.begin, own_columns.end);
          }};
      const Shape tile_size = encoder.moments_shape(part.shape);
      const Tensor tile = Tensor::uninitialized(DType::kF32, tile_size);
      encoder.encode(stream, part, tile);
      mosaic.add(i, j, 0, tile.view().reshape({planes, part.shape[1] / factor, part.shape[2] / factor, 1}));
    }
  }
  copy(stream, out, whole);
}

}  // namespace zoetrope::wan
