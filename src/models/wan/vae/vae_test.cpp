// The streamed VAE against a plain evaluation of the whole clip, and the conduct of the two objects.
#include "models/wan/vae/vae.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/test_folder.h"
#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

struct Model {
  explicit Model(const VaeConfig& vae_config, DType dtype = DType::kF32,
                 kernels::ConvAlgorithm algorithm = kernels::ConvAlgorithm::kAuto)
      : config(vae_config),
        source(test_weights(config)),
        weights(std::make_shared<const VaeWeights>(config, source, VaeUse{VaeParts::kBoth, dtype, algorithm})) {}
  VaeConfig config;
  std::shared_ptr<const io::WeightSource> source;
  std::shared_ptr<const VaeWeights> weights;
};

constexpr kernels::ConvAlgorithm kAlgorithms[] = {kernels::ConvAlgorithm::kDirect, kernels::ConvAlgorithm::kWinograd};
const char* name_of(kernels::ConvAlgorithm algorithm) {
  return algorithm == kernels::ConvAlgorithm::kWinograd ? "Winograd" : "direct";
}

// Puts the pieces where they belong and checks that they come in order.
class Collector {
 public:
  Collector(const VaeConfig& config, const Shape& latents) {
    const int64_t factor = config.spatial_factor();
    video_ = Tensor(DType::kF32, {config.video_frames(latents[1]), factor * latents[2], factor * latents[3], 3});
  }
  FrameCallback sink() {
    return [this](int64_t first, const TensorView& frames) {
      ASSERT_EQ(first, filled_);
      filled_ += frames.extent(0);
      ASSERT_LE(filled_, video_.extent(0));
      std::memcpy(video_.view().slice(0, first, filled_).raw(), frames.raw(), frames.bytes());
    };
  }
  const Tensor& video() const {
    EXPECT_EQ(filled_, video_.extent(0));
    return video_;
  }

 private:
  Tensor video_;
  int64_t filled_ = 0;
};

std::vector<VaeConfig> odd_configs() {
  VaeConfig one_level = small_config();  // no resampling in time, odd channels that halve unevenly
  one_level.base_dim = 3;
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

// Derived tolerance: the plain evaluation in float32 differs from the one in float64 by rounding alone, and the engine
// rounds as often, in another order. As with the recorded data, four times that error is allowed: one clip's error is
// one draw, and 2.7 times has been seen.
void expect_as_exact(const TensorView& value, const Tensor& in_double, const Tensor& in_float) {
  const Difference ours = difference(value, in_double), floor = difference(in_float, in_double);
  EXPECT_LE(ours.relative_l2, 4 * floor.relative_l2);
  EXPECT_LE(ours.max_abs, 4 * floor.max_abs);
  EXPECT_LT(floor.relative_l2, 1e-5);
  EXPECT_GT(in_double.size(), 0);
}

// Sizes that are odd on the way.
Shape odd_clip(const VaeConfig& config, int64_t frames) {
  const int64_t factor = config.spatial_factor();
  return {frames, std::max<int64_t>(13, 3 * factor + 1), std::max<int64_t>(10, 2 * factor + 2), 3};
}

TEST(VaeDecoder, StreamedEqualsTheWholeClipAtOnce) {
  for (const VaeConfig& config : odd_configs()) {
    Stream stream(2);
    for (const int64_t frames : {1, 2, 3, 5}) {
      const auto source = test_weights(config);
      const Tensor latents = random_tensor({config.z_dim, frames, 3, 2}, static_cast<uint64_t>(frames));
      const Tensor exact = reference_decode<double>(config, source, latents);
      const Tensor floor = reference_decode<float>(config, source, latents);
      for (const kernels::ConvAlgorithm algorithm : kAlgorithms) {
        SCOPED_TRACE(testing::Message() << frames << " latent frames, " << config.dim_mult.size() << " levels, "
                                        << name_of(algorithm));
        const Model model(config, DType::kF32, algorithm);
        Collector collector(config, latents.shape());
        VaeDecoder(model.weights).decode(stream, latents, collector.sink());
        expect_as_exact(collector.video(), exact, floor);
      }
    }
  }
}

TEST(VaeEncoder, StreamedEqualsTheWholeClipAtOnce) {
  for (const VaeConfig& config : odd_configs()) {
    Stream stream(2);
    for (const int64_t frames : {1, 3, 5, 8, 13}) {  // of 3 and 8 some frames are dropped
      const auto source = test_weights(config);
      const Tensor video = random_tensor(odd_clip(config, frames), static_cast<uint64_t>(frames));
      const Tensor exact = reference_encode<double>(config, source, video);
      const Tensor floor = reference_encode<float>(config, source, video);
      for (const kernels::ConvAlgorithm algorithm : kAlgorithms) {
        SCOPED_TRACE(testing::Message() << frames << " frames, " << config.dim_mult.size() << " levels, "
                                        << name_of(algorithm));
        const Model model(config, DType::kF32, algorithm);
        VaeEncoder encoder(model.weights);
        Tensor moments(DType::kF32, encoder.moments_shape(video.shape()));
        encoder.encode(stream, video, moments);
        expect_as_exact(moments, exact, floor);
      }
    }
  }
}

// A model in bf16 that rounds after every op is one draw of the rounding errors; ours rounds in fewer places, but by
// Winograd transformed inputs and weights as well, whose errors the transforms make 5/3 as large (docs/cpu.md). The
// house allows twice the error of the low-precision reference; a single error may be 5/3 of that with Winograd (2.4 was
// seen).
TEST(Vae, Bf16IsAsGoodAsRoundingAfterEveryOp) {
  for (const VaeConfig& config : odd_configs()) {
    const auto source = test_weights(config);
    const Tensor latents = random_tensor({config.z_dim, 3, 4, 3}, 11);
    const Tensor exact = reference_decode<double>(config, source, latents);
    const Difference theirs = difference(reference_decode<double>(config, source, latents, DType::kBF16), exact);
    const Tensor video = random_tensor(odd_clip(config, 5), 12);
    const Tensor exact_moments = reference_encode<double>(config, source, video);
    const Difference reference =
        difference(reference_encode<double>(config, source, video, DType::kBF16), exact_moments);
    for (const kernels::ConvAlgorithm algorithm : kAlgorithms) {
      SCOPED_TRACE(testing::Message() << config.dim_mult.size() << " levels, " << name_of(algorithm));
      const double largest = algorithm == kernels::ConvAlgorithm::kWinograd ? 2 * 5.0 / 3 : 2;
      const Model model(config, DType::kBF16, algorithm);
      VaeDecoder decoder(model.weights);
      VaeEncoder encoder(model.weights);
      Stream stream(2);
      Collector collector(config, latents.shape());
      decoder.decode(stream, latents, collector.sink());
      const Difference ours = difference(collector.video(), exact);
      EXPECT_LE(ours.relative_l2, 2 * theirs.relative_l2);
      EXPECT_LE(ours.max_abs, largest * theirs.max_abs);
      EXPECT_GT(ours.relative_l2, 1e-4);  // it was bf16

      Tensor moments(DType::kF32, encoder.moments_shape(video.shape()));
      encoder.encode(stream, video, moments);
      const Difference encoded = difference(moments, exact_moments);
      EXPECT_LE(encoded.relative_l2, 2 * reference.relative_l2);
      EXPECT_LE(encoded.max_abs, largest * reference.max_abs);
      EXPECT_GT(encoded.relative_l2, 1e-4);
    }
  }
}

TEST(Vae, TakesStridedAndBatchedViews) {
  const Model model(small_config());
  Stream stream(1);
  VaeDecoder decoder(model.weights);
  const Tensor stored = random_tensor({3, 4, 2, 3}, 8);  // [h, T, w, z]
  const TensorView latents = stored.view().permute({3, 1, 0, 2});
  Tensor plain(DType::kF32, {1, 3, 4, 3, 2});
  copy(stream, plain.view().select(0, 0), latents);
  Collector a(model.config, latents.shape()), b(model.config, latents.shape());
  decoder.decode(stream, latents, a.sink());
  decoder.decode(stream, plain, b.sink());
  EXPECT_EQ(difference(a.video(), b.video()).max_abs, 0);

  VaeEncoder encoder(model.weights);
  const Tensor channels_first = random_tensor({3, 5, 8, 8}, 9);
  const TensorView video = channels_first.view().permute({1, 2, 3, 0});
  Tensor dense(DType::kF32, video.shape());
  copy(stream, dense, video);
  const Shape shape = encoder.moments_shape(video.shape());
  Tensor c(DType::kF32, shape), d(DType::kF32, {1, shape[0], shape[1], shape[2], shape[3]});
  encoder.encode(stream, video, c);
  encoder.encode(stream, dense, d);
  EXPECT_EQ(difference(c, d.view().select(0, 0)).max_abs, 0);
}

TEST(VaeDecoder, GivesFramesWhileLaterLatentsWait) {
  const Model model(small_config());
  Stream stream(2);
  VaeDecoder decoder(model.weights);
  const Tensor latents = random_tensor({3, 4, 2, 2}, 1);
  int64_t latents_begun = 0, frames_seen = 0;
  decoder.decode(
      stream, latents,
      [&](int64_t first, const TensorView& frames) {
        EXPECT_EQ(first, frames_seen);
        frames_seen += frames.extent(0);
        EXPECT_LE(frames_seen, model.config.video_frames(latents_begun));
        EXPECT_GT(frames_seen, model.config.video_frames(latents_begun - 1));
      },
      [&](std::string_view name, const TensorView&) { latents_begun += name == "conv_in"; });
  EXPECT_EQ(latents_begun, 4);
  EXPECT_EQ(frames_seen, 13);
}

TEST(VaeDecoder, IsUsableAfterTheSinkThrew) {
  const Model model(small_config());
  Stream stream(2);
  VaeDecoder decoder(model.weights);
  const Tensor latents = random_tensor({3, 3, 3, 2}, 4);
  Collector before(model.config, latents.shape()), after(model.config, latents.shape());
  decoder.decode(stream, latents, before.sink());
  for (const int64_t last : {0, 1, 4, 6}) {
    const auto stop = [&](int64_t first, const TensorView& frames) {
      if (first + frames.extent(0) > last) throw std::runtime_error("interrupted");
    };
    EXPECT_THROW(decoder.decode(stream, latents, stop), std::runtime_error);
  }
  const size_t bytes = decoder.workspace_bytes();
  decoder.decode(stream, latents, after.sink());
  EXPECT_EQ(difference(after.video(), before.video()).max_abs, 0);
  EXPECT_EQ(decoder.workspace_bytes(), bytes);  // nothing was left open
}

class VaeMemory : public testing::TestWithParam<VaeConfig> {};

TEST_P(VaeMemory, DoesNotGrowWithTheClip) {
  const Model model(GetParam());
  const int64_t factor = model.config.spatial_factor();
  Stream stream(1);
  size_t decoder_bytes = 0, encoder_bytes = 0;
  for (const int64_t frames : {4, 5, 8}) {  // from the fourth on every layer has two past frames (the first has no
                                            // part in the upsampling over time)
    VaeDecoder decoder(model.weights);
    VaeEncoder encoder(model.weights);
    decoder.decode(stream, random_tensor({3, frames, 8, 8}, 4), [](int64_t, const TensorView&) {});
    const Tensor video = random_tensor({1 + 4 * frames, 8 * factor, 8 * factor, 3}, 5);
    Tensor moments(DType::kF32, encoder.moments_shape(video.shape()));
    encoder.encode(stream, video, moments);
    if (frames == 4) {
      decoder_bytes = decoder.workspace_bytes();
      encoder_bytes = encoder.workspace_bytes();
    }
    EXPECT_EQ(decoder.workspace_bytes(), decoder_bytes);
    EXPECT_EQ(encoder.workspace_bytes(), encoder_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, VaeMemory, testing::Values(small_config(), residual_configs()[0]),
                         [](const auto& tested) { return tested.param.is_residual ? "residual" : "plain"; });

TEST(VaeDecoder, OneSetOfWeightsServesSeveralRanks) {
  const Model model(small_config());
  constexpr int kRanks = 3;
  std::vector<Tensor> videos(kRanks);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      Stream stream(1);
      VaeDecoder decoder(model.weights);
      const Tensor latents = random_tensor({3, 3, 3, 2}, 7);
      videos[rank] = Tensor(DType::kF32, {9, 12, 8, 3});
      decoder.decode(stream, latents, [&](int64_t first, const TensorView& frames) {
        std::memcpy(videos[rank].view().slice(0, first, first + frames.extent(0)).raw(), frames.raw(), frames.bytes());
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Tensor& video : videos) {
    // Buffers may be aligned differently, so not to the last bit: a few roundings of values up to 1.
    EXPECT_LE(difference(video, videos[0]).max_abs, 1e-5);
    EXPECT_GT(difference(video, videos[0]).reference_max, 0.01);
  }
}

TEST(Vae, RefusesWrongShapesAndMissingTensorsInOneSentence) {
  const Model model(small_config());
  Stream stream(1);
  VaeDecoder decoder(model.weights);
  const FrameCallback ignore = [](int64_t, const TensorView&) {};
  EXPECT_THAT(error_of([&] {
                decoder.decode(stream, Tensor(DType::kF32, {4, 1, 2, 2}), ignore);
              }),
              testing::HasSubstr("[4, 1, 2, 2]"));
  EXPECT_THAT(error_of([&] {
                decoder.decode(stream, Tensor(DType::kF32, {2, 3, 1, 2, 2}), ignore);
              }),
              testing::HasSubstr("[2, 3, 1, 2, 2]"));
  EXPECT_THAT(error_of([&] {
                decoder.decode(stream, Tensor(DType::kBF16, {3, 1, 2, 2}), ignore);
              }),
              testing::HasSubstr("BF16"));
  VaeEncoder encoder(model.weights);
  EXPECT_THAT(error_of([&] { encoder.moments_shape({5, 3, 8, 3}); }), testing::HasSubstr("4×4"));
  EXPECT_THAT(error_of([&] {
                encoder.encode(stream, Tensor(DType::kF32, {5, 8, 8, 3}), Tensor(DType::kF32, {6, 1, 2, 2}));
              }),
              testing::HasSubstr("[6, 2, 2, 2]"));
  VaeConfig deeper = small_config();
  deeper.num_res_blocks = 2;
  EXPECT_THAT(error_of([&] { std::make_shared<const VaeWeights>(deeper, model.source); }),
              testing::HasSubstr("missing"));
}

}  // namespace
}  // namespace zoetrope::wan
