// Tiles against a plain evaluation of the reference's loops; what the values have to be, the recorded runs say
// (tests/golden_test).
#include "models/wan/vae/vae_tiling.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "models/wan/vae/vae_pixels.h"
#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

struct Model {
  explicit Model(const VaeConfig& vae_config = small_config())
      : config(vae_config),
        weights(std::make_shared<const VaeWeights>(config, test_weights(config))),
        decoder(weights),
        encoder(weights) {}
  VaeConfig config;
  std::shared_ptr<const VaeWeights> weights;
  VaeDecoder decoder;
  VaeEncoder encoder;
  Stream stream{1};
};

struct Case {
  int64_t frames, height, width;  // of the latents
  TileSizes cells;                // latent cells
};

TileSizes times(const TileSizes& sizes, int64_t factor) {
  return {sizes.height * factor, sizes.width * factor, sizes.stride_height * factor, sizes.stride_width * factor};
}

// Tiles that fit, that end short, of one row or column; wide and high ones; overlaps from nothing to more than half;
// clips that are one tile high or wide or both.
const Case kCases[] = {
    {2, 7, 8, {4, 5, 3, 3}}, {1, 9, 5, {4, 4, 4, 2}}, {1, 8, 8, {3, 3, 1, 1}},
    {1, 3, 9, {4, 3, 3, 2}}, {1, 9, 3, {3, 4, 2, 3}}, {2, 4, 4, {4, 4, 3, 3}},
};

// [n, h, w, c] as nested loops, row after row of whole tiles kept.
using Tiles = std::vector<std::vector<Tensor>>;

float& at(const Tensor& tile, int64_t n, int64_t y, int64_t x, int64_t c) {
  const Shape& s = tile.shape();
  return tile.data<float>()[((n * s[1] + y) * s[2] + x) * s[3] + c];
}

Tensor blend_plainly(const Tiles& tiles, const Shape& whole, int64_t overlap_y, int64_t overlap_x, int64_t stride_y,
                     int64_t stride_x) {
  Tensor out(DType::kF32, whole);
  for (size_t i = 0; i < tiles.size(); ++i) {
    for (size_t j = 0; j < tiles[i].size(); ++j) {
      const Tensor& b = tiles[i][j];
      const auto each = [&](int64_t height, int64_t width, auto&& body) {
        for (int64_t n = 0; n < b.extent(0); ++n) {
          for (int64_t y = 0; y < height; ++y) {
            for (int64_t x = 0; x < width; ++x) {
              for (int64_t c = 0; c < b.extent(3); ++c) body(n, y, x, c);
            }
          }
        }
      };
      if (i > 0) {
        const Tensor& a = tiles[i - 1][j];
        const int64_t e = std::min({a.extent(1), b.extent(1), overlap_y});
        each(e, b.extent(2), [&](int64_t n, int64_t y, int64_t x, int64_t c) {
          const double share = static_cast<double>(y) / static_cast<double>(e);
          at(b, n, y, x, c) = at(a, n, a.extent(1) - e + y, x, c) * static_cast<float>(1 - share) +
                              at(b, n, y, x, c) * static_cast<float>(share);
        });
      }
      if (j > 0) {
        const Tensor& a = tiles[i][j - 1];
        const int64_t e = std::min({a.extent(2), b.extent(2), overlap_x});
        each(b.extent(1), e, [&](int64_t n, int64_t y, int64_t x, int64_t c) {
          const double share = static_cast<double>(x) / static_cast<double>(e);
          at(b, n, y, x, c) = at(a, n, y, a.extent(2) - e + x, c) * static_cast<float>(1 - share) +
                              at(b, n, y, x, c) * static_cast<float>(share);
        });
      }
      const int64_t row = static_cast<int64_t>(i) * stride_y, column = static_cast<int64_t>(j) * stride_x;
      each(std::min(b.extent(1), stride_y), std::min(b.extent(2), stride_x),
           [&](int64_t n, int64_t y, int64_t x, int64_t c) { at(out, n, row + y, column + x, c) = at(b, n, y, x, c); });
    }
  }
  return out;
}

Tensor collect(const Shape& clip, const std::function<void(const FrameCallback&)>& decode) {
  Tensor video(DType::kF32, clip);
  int64_t filled = 0;
  decode([&](int64_t first, const TensorView& frames) {
    EXPECT_EQ(first, filled);
    filled += frames.extent(0);
    std::memcpy(video.view().slice(0, first, filled).raw(), frames.raw(), frames.bytes());
  });
  EXPECT_EQ(filled, clip[0]);
  return video;
}

// [F, H, W, C] as the last layer makes it.
Tensor decode_unclamped(VaeDecoder& decoder, Stream& stream, const TensorView& latents, const Shape& clip) {
  Tensor video(DType::kF32, clip);
  int64_t filled = 0;
  decoder.decode(
      stream, latents, [](int64_t, const TensorView&) {},
      [&](std::string_view name, const TensorView& value) {
        if (name != "conv_out") return;
        copy(stream, video.view().slice(0, filled, filled + value.extent(1)), value.permute({1, 2, 3, 0}));
        filled += value.extent(1);
      });
  EXPECT_EQ(filled, clip[0]);
  return video;
}

Tensor part_of(Stream& stream, const TensorView& x, int axis, IndexRange rows, IndexRange columns) {
  const TensorView part = x.slice(axis, rows.begin, rows.end).slice(axis + 1, columns.begin, columns.end);
  Tensor copied(DType::kF32, part.shape());
  copy(stream, copied, part);
  return copied;
}

// Blending rounds thrice a value here and there (the compiler may fuse the product and the sum), and the tiles
// themselves are bit for bit the same but for the alignment of buffers.
constexpr double kRoundings = 1e-5;

class VaeTilingOf : public testing::TestWithParam<VaeConfig> {};
INSTANTIATE_TEST_SUITE_P(Generations, VaeTilingOf, testing::Values(small_config(), residual_configs()[0]),
                         [](const auto& tested) { return tested.param.is_residual ? "residual" : "plain"; });

TEST_P(VaeTilingOf, DecodesAsTheReferenceCutsAndBlends) {
  Model model(GetParam());
  const int64_t factor = model.config.spatial_factor(), layers = layer_factor(model.config);
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << " in tiles of " << c.cells.height << " x "
                                    << c.cells.width << " cells");
    const Tensor latents = random_tensor({3, c.frames, c.height, c.width}, 3);
    const int64_t frames = model.config.video_frames(c.frames);
    const auto made = [&](int64_t height, int64_t width) {
      return Shape{frames, layers * height, layers * width, model.config.out_channels};
    };
    const Shape clip{frames, factor * c.height, factor * c.width, 3};
    Tiles tiles;
    for (int64_t y = 0; y < c.height; y += c.cells.stride_height) {
      tiles.emplace_back();
      for (int64_t x = 0; x < c.width; x += c.cells.stride_width) {
        const IndexRange rows{y, std::min(y + c.cells.height, c.height)},
            columns{x, std::min(x + c.cells.width, c.width)};
        const Tensor part = part_of(model.stream, latents, 2, rows, columns);
        tiles.back().push_back(decode_unclamped(model.decoder, model.stream, part, made(rows.size(), columns.size())));
      }
    }
    const TileSizes out = times(c.cells, layers), sizes = times(c.cells, factor);
    const Tensor blended = blend_plainly(tiles, made(c.height, c.width), out.height - out.stride_height,
                                         out.width - out.stride_width, out.stride_height, out.stride_width);
    const Tensor expected(DType::kF32, clip);
    for (int64_t f = 0; f < frames; ++f) {
      store_pixels(model.stream.team(), blended.view().select(0, f), model.config.patch_size,
                   expected.view().select(0, f));
    }
    const Tensor ours = collect(clip, [&](const FrameCallback& sink) {
      decode_tiled(model.stream, model.decoder, model.config, latents, sink, {}, sizes);
    });
    const Tensor untiled =
        collect(clip, [&](const FrameCallback& sink) { model.decoder.decode(model.stream, latents, sink); });
    const bool in_tiles = decodes_in_tiles(model.config, latents.shape(), sizes);
    EXPECT_LE(difference(ours, in_tiles ? expected : untiled).max_abs, kRoundings);
    EXPECT_GT(difference(ours, in_tiles ? untiled : expected).max_abs, 1000 * kRoundings);
  }
}

TEST_P(VaeTilingOf, EncodesAsTheReferenceCutsAndBlends) {
  Model model(GetParam());
  const int64_t factor = model.config.spatial_factor();
  for (const Case& c : kCases) {
    const TileSizes pixels = times(c.cells, factor), sizes = times(c.cells, layer_factor(model.config));
    for (const int64_t rest : {0, 1}) {  // pixels that make no latent cell
      SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << " + " << rest);
      const Tensor video = random_tensor({5, factor * c.height + rest, factor * c.width + rest, 3}, 6);
      Tiles tiles;
      for (int64_t y = 0; y < factor * c.height; y += pixels.stride_height) {
        tiles.emplace_back();
        for (int64_t x = 0; x < factor * c.width; x += pixels.stride_width) {
          const Tensor part = part_of(model.stream, video, 1, {y, std::min(y + pixels.height, video.extent(1))},
                                      {x, std::min(x + pixels.width, video.extent(2))});
          const Shape size = model.encoder.moments_shape(part.shape());
          Tensor moments(DType::kF32, size);
          model.encoder.encode(model.stream, part, moments);
          tiles.back().emplace_back(DType::kF32, Shape{size[0] * size[1], size[2], size[3], 1});
          std::memcpy(tiles.back().back().data<float>(), moments.data<float>(), moments.view().bytes());
        }
      }
      const Shape size = model.encoder.moments_shape(video.shape());
      const Tensor expected =
          blend_plainly(tiles, {size[0] * size[1], size[2], size[3], 1}, c.cells.height - c.cells.stride_height,
                        c.cells.width - c.cells.stride_width, c.cells.stride_height, c.cells.stride_width);
      Tensor ours(DType::kF32, {1, size[0], size[1], size[2], size[3]});
      encode_tiled(model.stream, model.encoder, model.config, video, ours, sizes);
      Tensor untiled(DType::kF32, ours.shape());
      model.encoder.encode(model.stream, video, untiled);
      const TensorView values = ours.view().reshape(expected.shape()), whole = untiled.view().reshape(expected.shape());
      const bool in_tiles = encodes_in_tiles(video.shape(), sizes);
      EXPECT_LE(difference(values, in_tiles ? expected : whole).max_abs, kRoundings);
      if (c.cells.height < c.height || c.cells.width < c.width) {
        EXPECT_GT(difference(values, whole).max_abs, 1000 * kRoundings);
      }
    }
  }
}

// With patches a tile of the encoder is that much larger than what decides whether there are tiles.
TEST(VaeTiling, OneTileIsTheWholePicture) {
  Model model(residual_configs()[0]);
  const TileSizes sizes{32, 32, 32, 32};
  const Tensor video = random_tensor({5, 64, 48, 3}, 7);
  ASSERT_TRUE(encodes_in_tiles(video.shape(), sizes));
  const Shape shape = model.encoder.moments_shape(video.shape());
  const Tensor tiled(DType::kF32, shape), whole(DType::kF32, shape);
  encode_tiled(model.stream, model.encoder, model.config, video, tiled, sizes);
  model.encoder.encode(model.stream, video, whole);
  EXPECT_LE(difference(tiled, whole).max_abs, kRoundings);

  const Tensor latents = random_tensor({3, 2, 2, 2}, 8);
  const Shape clip{5, 32, 32, 3};
  const Tensor one = collect(clip, [&](const FrameCallback& sink) {
    decode_tiled(model.stream, model.decoder, model.config, latents, sink, {}, sizes);
  });
  const Tensor untiled =
      collect(clip, [&](const FrameCallback& sink) { model.decoder.decode(model.stream, latents, sink); });
  EXPECT_LE(difference(one, untiled).max_abs, kRoundings);
}

TEST(VaeTiling, IsForWhatIsLargerThanOneTile) {
  const VaeConfig published;
  EXPECT_FALSE(decodes_in_tiles(published, {16, 1, 32, 32}));
  EXPECT_TRUE(decodes_in_tiles(published, {16, 1, 33, 32}));
  EXPECT_TRUE(decodes_in_tiles(published, {1, 16, 1, 32, 33}));
  EXPECT_FALSE(encodes_in_tiles({5, 256, 256, 3}));
  EXPECT_TRUE(encodes_in_tiles({5, 257, 256, 3}));
  EXPECT_TRUE(encodes_in_tiles({5, 256, 257, 3}));
}

TEST(VaeTiling, WorksInTheMemoryOfOneTile) {
  Model model;
  const TileSizes sizes{16, 16, 12, 12};
  const auto ignore = [](int64_t, const TensorView&) {};
  VaeDecoder small(model.weights), large(model.weights);
  small.decode(model.stream, random_tensor({3, 2, 4, 4}, 1), ignore);
  const Tensor latents = random_tensor({3, 2, 12, 12}, 1);
  large.decode(model.stream, latents, ignore);
  decode_tiled(model.stream, model.decoder, model.config, latents, ignore, {}, sizes);
  EXPECT_LE(model.decoder.workspace_bytes(), small.workspace_bytes());
  EXPECT_GT(large.workspace_bytes(), 5 * small.workspace_bytes());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
#endif

// What malloc has given, to the byte.
int64_t allocated() {
  const struct mallinfo2 all = mallinfo2();
  return static_cast<int64_t>(all.uordblks + all.hblkhd);
}

// The memory of a tile in work, in addition to that of the decoder and the kernels, is what the plan books.
TEST_P(VaeTilingOf, HoldsWhatIsPlanned) {
  if (!kCountsAllocations) GTEST_SKIP() << "the sanitizer's own malloc is not counted";
  constexpr int64_t kRest = 40'000;  // lists of frames, functions
  Model model(GetParam());
  const int64_t cell = model.config.spatial_factor(), layers = layer_factor(model.config);
  // Tensors from 2 MiB on are mapped and not malloc's, so none is as large.
  const int64_t frames = model.config.patch_size == 1 ? 4 : 1, height = 9, width = 11;
  const int64_t video_height = 3 * height * cell, video_width = 3 * width * cell;
  // Overlaps from nothing to most of a tile; the last tile ends short.
  for (const TileSizes& cells : {TileSizes{4, 4, 4, 4}, TileSizes{4, 4, 3, 3}, TileSizes{4, 6, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << "strides of " << cells.stride_height << " x " << cells.stride_width);
    const TileSizes pixels = times(cells, cell), sizes = times(cells, layers);
    int64_t most = 0;
    // Without what the coder and the kernels have themselves.
    const auto others = [&](const auto& coder) {
      return allocated() - static_cast<int64_t>(coder.workspace_bytes() + model.stream.scratch().reserved());
    };
    const auto expect_planned = [&](size_t planned, int64_t before) {
      EXPECT_GE(static_cast<int64_t>(planned) + kRest, most - before);
      EXPECT_GE(most - before, static_cast<int64_t>(planned) * 3 / 4);
    };
    {
      VaeDecoder decoder(model.weights);
      const Tensor latents = random_tensor({3, frames, height, width}, 1);
      const auto decode = [&](const TileTick& tick) {
        decode_tiled(
            model.stream, decoder, model.config, latents, [](int64_t, const TensorView&) {}, tick, pixels);
      };
      decode({});  // a first call makes what libraries keep, for each size of a tile
      const int64_t before = others(decoder);
      decode([&](int64_t, int64_t) { most = std::max(most, others(decoder)); });
      expect_planned(tiled_decode_bytes(model.config, frames, height, width, pixels), before);
    }
    VaeEncoder encoder(model.weights);
    const Tensor video = random_tensor({1, video_height, video_width, 3}, 1);
    const Tensor moments(DType::kF32, encoder.moments_shape(video.shape()));
    const FrameSource source{video.shape(), [&](int64_t frame) {
                               most = std::max(most, others(encoder));
                               return video.view().select(0, frame);
                             }};
    encode_tiled(model.stream, encoder, model.config, source, moments, sizes);
    most = 0;
    const int64_t before = others(encoder);
    encode_tiled(model.stream, encoder, model.config, source, moments, sizes);
    expect_planned(tiled_encode_bytes(model.config, 1, video_height, video_width, sizes), before);
  }
}

TEST(VaeTiling, TellsBetweenFramesAndStopsWhenToldTo) {
  Model model;
  const TileSizes sizes{16, 20, 12, 12};
  const Tensor latents = random_tensor({3, 2, 7, 8}, 3);
  std::vector<int64_t> calls;
  int64_t all = 0;
  const auto tick = [&](int64_t done, int64_t total) {
    calls.push_back(done);
    all = total;
  };
  const auto whole = [&](const TileTick& told) {
    return collect({5, 28, 32, 3}, [&](const FrameCallback& sink) {
      decode_tiled(model.stream, model.decoder, model.config, latents, sink, told, sizes);
    });
  };
  const Tensor before = whole(tick);
  EXPECT_EQ(all, 9);
  EXPECT_EQ(calls.size(), 9u * 5);
  EXPECT_TRUE(std::is_sorted(calls.begin(), calls.end()));
  EXPECT_THROW(decode_tiled(
                   model.stream, model.decoder, model.config, latents,
                   [](int64_t, const TensorView&) { FAIL() << "no frame is ready"; },
                   [](int64_t done, int64_t) {
                     if (done == 4) throw std::runtime_error("interrupted");
                   },
                   sizes),
               std::runtime_error);
  EXPECT_LE(difference(whole({}), before).max_abs, kRoundings);
}

}  // namespace
}  // namespace zoetrope::wan
