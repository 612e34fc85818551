// The closed forms against what runs.
#include "models/wan/vae/vae_cost.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_test_util.h"
#include "models/wan/vae/vae_tiling.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

std::vector<VaeConfig> configs() {
  VaeConfig one_level = small_config();
  one_level.base_dim = 4;
  one_level.decoder_base_dim = 7;
  one_level.dim_mult = {2, 1};
  one_level.temporal_downsample = {false};
  VaeConfig one_halving = small_config();
  one_halving.temporal_downsample = {false, true};
  one_halving.num_res_blocks = 2;
  std::vector<VaeConfig> all = residual_configs();
  all.insert(all.end(), {small_config(), one_level, one_halving});
  return all;
}

TEST(VaeCost, WorkspaceIsWhatIsHeld) {
  for (const VaeConfig& config : configs()) {
    const auto plain = test_weights(config);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << config.dim_mult.size() << " levels");
      const auto weights = std::make_shared<const VaeWeights>(config, plain, VaeUse{VaeParts::kBoth, dtype});
      const int64_t factor = config.spatial_factor(), height = 5 * factor + 1, width = 4 * factor;
      VaeDecoder decoder(weights);
      VaeEncoder encoder(weights);
      Stream stream(1);
      decoder.decode(stream, random_tensor({3, 5, 5, 4}, 1), [](int64_t, const TensorView&) {});
      EXPECT_EQ(decoder.workspace_bytes(), vae_workspace_bytes(config, height, width, dtype, VaeParts::kDecoder));
      const Tensor video = random_tensor({17, height, width, 3}, 2);
      const Tensor moments(DType::kF32, encoder.moments_shape(video.shape()));
      encoder.encode(stream, video, moments);
      EXPECT_EQ(encoder.workspace_bytes(), vae_workspace_bytes(config, height, width, dtype, VaeParts::kEncoder));
    }
  }
}

// A clip long enough that the first frames do not matter, a picture large enough that its border does not: two
// products a weight and place it is used at.
TEST(VaeCost, FlopsAreTheProductsOfEveryTap) {
  kernels::FrameConvProblem p;
  p.in_channels = 3;
  p.out_channels = 5;
  p.kernel = {3, 3};
  EXPECT_EQ(convolution_flops(p, {0, 4}, 6, 4, 6, 1, 1), 2.0 * 15 * (3 * 4 - 2) * (3 * 6 - 2));
  EXPECT_EQ(convolution_flops(p, {1, 3}, 6, 4, 6, 2, 1), 2.0 * 15 * 2 * (3 * 2) * (3 * 6 - 2));  // no border above
  p.origin = {1, 1};
  p.stride = 2;
  EXPECT_EQ(convolution_flops(p, {0, 2}, 3, 4, 6, 1, 1), 2.0 * 15 * (3 * 2 - 1) * (3 * 3 - 1));
  EXPECT_EQ(convolution_flops(p, {0, 2}, 3, 5, 7, 1, 1), 2.0 * 15 * (3 * 2) * (3 * 3));
  EXPECT_EQ(attention_flops(3, 4, 5), 4.0 * 60);

  VaeConfig config = small_config();  // one resnet of two convolutions a stage in the encoder, two in the decoder
  config.base_dim = config.decoder_base_dim = 2;
  config.dim_mult = {1, 1};
  config.temporal_downsample = {false};
  config.z_dim = 1;
  const auto seen = [](int64_t clip) { return 3.0 * static_cast<double>(clip) - 3; };
  const auto area = [](int64_t h, int64_t w) { return static_cast<double>((3 * h - 2) * (3 * w - 2)); };
  const double c = 2, mid = 4 * c * c;
  const int64_t n = 5, h = 4, w = 6;
  double decode = 5 * h * w;                                            // post_quant_conv 1 → 1
  decode += seen(n) * area(h, w) * (c + mid + 4 * c * c);               // conv_in, middle, two blocks
  decode += 5 * h * w * (4 * c * c) + 5.0 * 2 * (h * w) * (h * w) * c;  // q, k, v, proj; attention
  decode += 5.0 * (4 * h - 2) * (4 * w - 2) * c * (c / 2);              // upsampling to one channel
  const double shortcut = 5 * (2 * h) * (2 * w) * 1 * c;
  decode += seen(n) * area(2 * h, 2 * w) * (1 * c + 3 * c * c) + shortcut;  // 1 → 2, 2 → 2, twice
  decode += seen(n) * area(2 * h, 2 * w) * c * 3;                           // conv_out
  EXPECT_EQ(vae_decode_flops(config, n, h, w), 2 * decode);

  double encode = seen(n) * area(2 * h, 2 * w) * (3 * c + 2 * c * c);
  encode += 5.0 * (3 * h - 1) * (3 * w - 1) * c * c;  // one row of taps lies below the picture
  encode += seen(n) * area(h, w) * (2 * c * c + mid + c * 2);
  encode += 5 * h * w * (4 * c * c) + 5.0 * 2 * (h * w) * (h * w) * c;
  encode += 5 * h * w * 2 * 2;
  EXPECT_EQ(vae_encode_flops(config, n, 2 * h, 2 * w), 2 * encode);
}

// What the layers executed: the operations that their spans claim, which a trace shows in its file alone.
double executed(const trace::Trace& trace) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("zoetrope-vae-cost-{}.json", getpid());
  trace.write(path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  const std::string key = "\"gflop\":", all = text.str();
  double flops = 0;
  for (size_t at = all.find(key); at != std::string::npos; at = all.find(key, at + 1)) {
    flops += std::stod(all.substr(at + key.size())) * 1e9;
  }
  return flops;
}

TEST(VaeCost, FlopsAreThoseOfTheLayers) {
  constexpr double kDigits = 1e-5;  // that the file has of each
  for (const VaeConfig& config : configs()) {
    const auto plain = test_weights(config);
    const auto weights = std::make_shared<const VaeWeights>(config, plain);
    const int64_t factor = config.spatial_factor();
    trace::Trace decoding, encoding;
    Stream stream(1, {&decoding, 0, trace::kComputeLane});
    VaeDecoder(weights).decode(stream, random_tensor({3, 4, 3, 2}, 1), [](int64_t, const TensorView&) {});
    const double decode = vae_decode_flops(config, 4, 3, 2);
    EXPECT_NEAR(executed(decoding), decode, kDigits * decode);
    Stream other(1, {&encoding, 0, trace::kComputeLane});
    VaeEncoder encoder(weights);
    const Tensor video = random_tensor({13, 3 * factor, 2 * factor, 3}, 2);
    encoder.encode(other, video, Tensor(DType::kF32, encoder.moments_shape(video.shape())));
    const double encode = vae_encode_flops(config, 13, 3 * factor, 2 * factor);
    EXPECT_NEAR(executed(encoding), encode, kDigits * encode);
  }
}

// Tiles that fit, end short and are cut off by the picture; pixels of the video that make no latent cell.
TEST(VaeCost, FlopsOfTilesAreThoseOfTheLayers) {
  constexpr double kDigits = 1e-5;
  for (const VaeConfig& config : {small_config(), residual_configs()[0]}) {
    const auto plain = test_weights(config);
    const auto weights = std::make_shared<const VaeWeights>(config, plain);
    const int64_t cell = config.spatial_factor(), layers = layer_factor(config);
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{7, 8}, {4, 9}, {9, 3}}) {
      SCOPED_TRACE(testing::Message() << "patches of " << config.patch_size << ", " << height << " x " << width);
      trace::Trace decoding, encoding;
      Stream stream(1, {&decoding, 0, trace::kComputeLane});
      const TileSizes pixels{4 * cell, 5 * cell, 3 * cell, 3 * cell};
      VaeDecoder decoder(weights);
      const Tensor latents = random_tensor({3, 3, height, width}, 1);
      ASSERT_TRUE(decodes_in_tiles(config, latents.shape(), pixels));
      decode_tiled(
          stream, decoder, config, latents, [](int64_t, const TensorView&) {}, {}, pixels);
      const double decode = tiled_decode_flops(config, 3, height, width, pixels);
      EXPECT_NEAR(executed(decoding), decode, kDigits * decode);

      Stream other(1, {&encoding, 0, trace::kComputeLane});
      const TileSizes sizes{4 * layers, 5 * layers, 3 * layers, 3 * layers};
      VaeEncoder encoder(weights);
      const Tensor video = random_tensor({9, height * cell + 1, width * cell, 3}, 2);
      ASSERT_TRUE(encodes_in_tiles(video.shape(), sizes));
      encode_tiled(other, encoder, config, video, Tensor(DType::kF32, encoder.moments_shape(video.shape())), sizes);
      const double encode = tiled_encode_flops(config, 9, video.extent(1), video.extent(2), sizes);
      EXPECT_NEAR(executed(encoding), encode, kDigits * encode);
    }
  }
}

// The figures of the published decoder (base 96, z 16) at 480×832.
TEST(VaeCost, PublishedSizes) {
  const VaeConfig config;
  EXPECT_NEAR(vae_decode_flops(config, 2, 60, 104) * 1e-12, 13.2, 0.8);
  const size_t whole = vae_workspace_bytes(config, 480, 832, DType::kF32, VaeParts::kDecoder);
  EXPECT_LT(whole, size_t{4800} << 20);
  EXPECT_LT(vae_workspace_bytes(config, 480, 832, DType::kBF16, VaeParts::kDecoder), size_t{2500} << 20);
  // A part holds its share, but for borders and the keys of the whole picture.
  const size_t half = vae_workspace_bytes(config, 480, 832, DType::kF32, VaeParts::kDecoder, {0, 30});
  EXPECT_NEAR(static_cast<double>(half) / static_cast<double>(whole), 0.5, 0.02);
}

// The decoder of TI2V-5B at 704×1280. Frames of 1024 channels: 26 of 46×82 and 18 of 90×162 values, 4 of 178×322 with
// 15 of 512; 4 of 354×642 with 512 and 15 with 256. With what the attention and the ends hold, 2.40 G values.
TEST(VaeCost, PublishedSizesOfTheSecondGeneration) {
  const VaeConfig config = published_residual_config();
  const auto bytes = [&](DType dtype, VaeParts part) {
    return static_cast<double>(vae_workspace_bytes(config, 704, 1280, dtype, part));
  };
  EXPECT_NEAR(bytes(DType::kF32, VaeParts::kDecoder) * 1e-9, 9.60, 0.05);
  EXPECT_NEAR(bytes(DType::kBF16, VaeParts::kDecoder) * 1e-9, 4.80, 0.03);
  EXPECT_LT(bytes(DType::kBF16, VaeParts::kEncoder), bytes(DType::kBF16, VaeParts::kDecoder));
  const double quarter =
      static_cast<double>(vae_workspace_bytes(config, 704, 1280, DType::kBF16, VaeParts::kDecoder, IndexRange{0, 11}));
  EXPECT_NEAR(quarter / bytes(DType::kBF16, VaeParts::kDecoder), 0.25, 0.02);
}

}  // namespace
}  // namespace zoetrope::wan
