// The parts of the cases that measure whole models: what they count, how they add up spans, and that their checks tell
// right weights from wrong ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/project_folders.h"
#include "base/test_folder.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/whole_model.h"
#include "io/weights/checkpoint.h"
#include "io/weights/random_weights.h"
#include "models/encoders/cost.h"
#include "models/encoders/umt5.h"
#include "models/wan/model_flops.h"
#include "models/wan/tensor_tables.h"

namespace zoetrope::bench {
namespace {

using trace::Clock;

const std::string kTiny = std::string(kSourceFolder) + "/demo/wan-tiny";

PublishedSettings tiny(const char* weights) {
  PublishedSettings settings;
  settings.model = kTiny;
  settings.weights = weights;
  return settings;
}

// wan.md sections 2 and 4 by hand. 1.3 B: d = 1536, 30 layers, feed-forward 8960; 1 560 tokens are 480 × 832 × 1.
TEST(Flops, OfTheTransformerAreItsProducts) {
  const wan::TransformerConfig config = [] {
    wan::TransformerConfig c;
    c.num_attention_heads = 12;
    c.ffn_dim = 8960;
    c.num_layers = 30;
    return c;
  }();
  const double n = 1560, d = 1536, linear = 2 * n * (4 * d * d + 2 * d * d + 2 * d * 8960);
  const double attention = 4 * n * n * d + 4 * n * 512 * d, ends = 2 * n * d * (64 + 64);
  EXPECT_DOUBLE_EQ(wan::forward_flop(config, 1560, 512).total(),
                   30 * (linear + attention) + ends + 2 * (256 * d + d * d + 6 * d * d));
  EXPECT_NEAR(wan::forward_flop(config, 1560, 512).total(), 4.50e12, 0.005e12);
}

TEST(Flops, OfTheVaeMatchWhatIsQuoted) {
  // 5 frames of 480 × 832: 17.9 TFLOP by others' count.
  EXPECT_NEAR(wan::vae_decoder_dense_flop(wan::VaeConfig(), 2, 60, 104), 17.9e12, 0.05e12);
  // wan.md section 8: 121 frames of 704 × 1280 with TI2V-5B's.
  const auto residual = wan::VaeConfig::load(std::string(kSourceFolder) + "/configs/wan2.2_ti2v_5b/vae/config.json");
  EXPECT_NEAR(wan::vae_decoder_dense_flop(residual, 31, 44, 80), 2011e12, 5e12);
}

TEST(Flops, OfTheTextEncoderAreItsProducts) {
  encoders::TextEncoderConfig config;
  config.num_layers = 3;
  const double layer = 2 * 7.0 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 10240) + 4 * 7.0 * 7 * 4096;
  EXPECT_DOUBLE_EQ(encoders::text_encoder_flop(config, 7), 3 * layer);
}

TEST(Operations, OfTheLastPassAreWithoutWhatIsInsideThem) {
  trace::Trace trace;
  const auto origin = Clock::now();
  const auto add = [&](const char* name, int begin, int end, double flop = 0) {
    const auto at = [&](int milliseconds) { return origin + std::chrono::milliseconds(milliseconds); };
    trace.record(name, 0, trace::kComputeLane, at(begin), at(end), flop);
  };
  add(kPass, 0, 50);  // an earlier one
  add("gemm", 10, 40);
  add("gemm", 110, 130, 4e9);
  add("gemm", 130, 140, 1e9);
  add("block", 105, 150);
  add("norm", 160, 170);
  add(kPass, 100, 200);
  add("gemm", 210, 300);  // after it
  trace.record("gemm", 0, trace::kWaitLane, origin + std::chrono::milliseconds(110),
               origin + std::chrono::milliseconds(190));

  const std::vector<Operation> operations = operations_of_last_pass(trace);
  ASSERT_EQ(operations.size(), 4u);
  const auto expect = [&](size_t at, const char* name, int64_t calls, double seconds, double flop) {
    EXPECT_EQ(operations[at].name, name);
    EXPECT_EQ(operations[at].calls, calls);
    EXPECT_NEAR(operations[at].seconds, seconds, 1e-5);  // traces are written in nanoseconds
    EXPECT_NEAR(operations[at].flop, flop, 1e4);         // and six digits
  };
  expect(0, "(no span)", 0, 0.045, 0);
  expect(1, "gemm", 2, 0.030, 5e9);
  expect(2, "block", 1, 0.015, 0);
  expect(3, "norm", 1, 0.010, 0);
}

TEST(Operations, OfATraceWithoutAPassAreNone) { EXPECT_TRUE(operations_of_last_pass(trace::Trace()).empty()); }

TEST(Memory, PeakIsForgottenAndSeenAgain) {
  constexpr size_t kBytes = size_t{64} << 20;
  const auto touch = [] { return std::vector<char>(kBytes, 1).back(); };
  EXPECT_EQ(touch(), 1);
  forget_peak_resident();
  const int64_t before = peak_resident_bytes();
  EXPECT_EQ(touch(), 1);
  EXPECT_GE(peak_resident_bytes() - before, static_cast<int64_t>(kBytes / 2));
}

TEST(PublishedModel, RandomWeightsAreThoseOfTheirSeed) {
  const auto identity = [](std::optional<int64_t> seed) {
    PublishedSettings settings = tiny("random");
    settings.weights_seed = seed;
    return Published::open(settings).source(Part::kTransformer, 1)->identity();
  };
  EXPECT_EQ(identity(0), identity({}));
  EXPECT_NE(identity(7), identity({}));
}

// Each check with the weights that the model has, and with others.
class Checks : public ::testing::TestWithParam<DType> {
 protected:
  Stream stream_{2};
  Published right_ = Published::open(tiny("checkpoint")), wrong_ = Published::open(tiny("random"));
};

TEST_P(Checks, OfTheTransformerTellRightFromWrong) {
  const auto source = right_.source(Part::kTransformer, 1);
  const auto weights =
      wan::TransformerWeights::load(right_.transformer(), std::make_shared<io::Weights>(source), GetParam());
  const Verdict verdict = check_transformer(weights, source, stream_);
  EXPECT_TRUE(verdict.passed()) << verdict.relative_l2 << " of " << verdict.tolerance;
  EXPECT_FALSE(check_transformer(weights, wrong_.source(Part::kTransformer, 1), stream_).passed());
}

TEST_P(Checks, OfTheWholeFamilyTellRightFromWrong) {
  for (const char* name : {"wan21_i2v", "wan21_flf2v", "wan22_i2v", "wan22_ti2v", "wan21_vace"}) {
    const std::filesystem::path folder =
        std::filesystem::path(kSourceFolder) / "tests/golden/pipelines" / name / "transformer";
    const auto config = wan::TransformerConfig::load(folder / "config.json");
    const auto source = io::checkpoint_source(io::Checkpoint::open(folder, pipeline::kDiffusersStem));
    const auto weights = wan::TransformerWeights::load(config, std::make_shared<io::Weights>(source), GetParam());
    const Verdict verdict = check_transformer(weights, source, stream_);
    EXPECT_TRUE(verdict.passed()) << name << ": " << verdict.relative_l2 << " of " << verdict.tolerance;
    const auto random = io::random_weights(wan::transformer_tensors(config), "transformer", 1);
    EXPECT_FALSE(check_transformer(weights, random, stream_).passed()) << name;
  }
}

TEST_P(Checks, OfTheVaeTellRightFromWrong) {
  const auto source = right_.source(Part::kVae, 1);
  const auto weights =
      std::make_shared<wan::VaeWeights>(right_.vae(), source, wan::VaeUse{wan::VaeParts::kDecoder, GetParam()});
  const Verdict verdict = check_vae_decoder(weights, source, GetParam(), stream_);
  EXPECT_TRUE(verdict.passed()) << verdict.relative_l2 << " of " << verdict.tolerance;
  EXPECT_FALSE(check_vae_decoder(weights, wrong_.source(Part::kVae, 1), GetParam(), stream_).passed());
}

TEST_P(Checks, OfTheResidualVaeTellRightFromWrong) {
  const std::filesystem::path folder = std::string(kSourceFolder) + "/tests/golden/pipelines/wan22_ti2v/vae";
  const auto config = wan::VaeConfig::load(folder / "config.json");
  const auto source = io::checkpoint_source(io::Checkpoint::open(folder, pipeline::kDiffusersStem));
  const auto weights =
      std::make_shared<wan::VaeWeights>(config, source, wan::VaeUse{wan::VaeParts::kDecoder, GetParam()});
  const Verdict verdict = check_vae_decoder(weights, source, GetParam(), stream_);
  EXPECT_TRUE(verdict.passed()) << verdict.relative_l2 << " of " << verdict.tolerance;
  const auto wrong = io::random_weights(wan::vae_tensors(config), "vae", 1);
  EXPECT_FALSE(check_vae_decoder(weights, wrong, GetParam(), stream_).passed());
}

TEST_P(Checks, OfTheTextEncoderTellRightFromWrong) {
  const auto source = right_.source(Part::kTextEncoder, 1);
  encoders::TextEncoder encoder(source, right_.text_encoder(), GetParam(), stream_);
  const Verdict verdict = check_text_encoder(encoder, source, GetParam(), stream_);
  EXPECT_TRUE(verdict.passed()) << verdict.relative_l2 << " of " << verdict.tolerance;
  EXPECT_FALSE(check_text_encoder(encoder, wrong_.source(Part::kTextEncoder, 1), GetParam(), stream_).passed());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Checks, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(Degenerate, ResultsAreFound) {
  const Tensor x(DType::kF32, {2, 3});
  fill_normal(x, 1);
  EXPECT_EQ(degenerate(x), "");
  x.data<float>()[4] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(degenerate(x), ::testing::HasSubstr("not finite"));
  std::fill_n(x.data<float>(), 6, 0.75f);
  EXPECT_THAT(degenerate(x), ::testing::HasSubstr("equal"));
}

TEST(Published, ShortenedModelsKeepTheirFirstLayers) {
  PublishedSettings settings = tiny("checkpoint");
  settings.layers = 1;
  const Published model = Published::open(settings);
  EXPECT_EQ(model.transformer().num_layers, 1);
  EXPECT_EQ(model.text_encoder().num_layers, 1);
  EXPECT_LT(model.weight_bytes(Part::kTransformer, DType::kBF16),
            Published::open(tiny("checkpoint")).weight_bytes(Part::kTransformer, DType::kBF16));
  settings.layers = Published::open(tiny("checkpoint")).transformer().num_layers + 1;
  EXPECT_THAT(error_of([&] { Published::open(settings); }),
              ::testing::HasSubstr(fmt::format("layers={}", settings.layers)));
}

}  // namespace
}  // namespace zoetrope::bench
