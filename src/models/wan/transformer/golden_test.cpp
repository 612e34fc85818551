// The transformer on one rank against recorded runs of the reference, value by value from patch embedding to velocity.
#include "models/testing/golden.h"

#include <gtest/gtest.h>

#include <map>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/recorded_face.h"
#include "models/wan/transformer/transformer_testing.h"

namespace zoetrope::wan {
namespace {

using golden::GoldenCase;

using Values = std::map<std::string, Tensor>;

// Everything the case records, as this transformer computes it.
Values run_case(const GoldenCase& golden, DType dtype) {
  const auto folder = golden.root() / golden.description().at("checkpoint").get<std::string>();
  const auto config = TransformerConfig::load(folder / "config.json");
  const auto weights = TransformerWeights::load(config, testing::open_weights(folder), dtype);
  const TensorView latents = golden.tensor("in.hidden_states"), text = golden.tensor("in.encoder_hidden_states");
  const auto optional = [&](const char* name) { return golden.has(name) ? golden.tensor(name) : TensorView(); };
  const TensorView image = optional("in.encoder_hidden_states_image"), control = optional("in.control_hidden_states");
  const golden::RecordedTimesteps timesteps(golden.tensor("in.timestep"));
  const Shape latent{latents.extent(2), latents.extent(3), latents.extent(4)};
  const int64_t batch = latents.extent(0), tokens = token_grid(config, latent).tokens();

  Values values;
  // What is seen sample by sample or frame by frame is joined.
  const Probe keep = [&](std::string_view name, const TensorView& value) {
    const auto [at, first] = values.emplace(std::string(name), golden::clone(value));
    if (!first) at->second = golden::joined(at->second, value);
  };
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    Stream stream(2);
    attention::ContextAttention attention = attention::plan({.batch = batch,
                                                             .tokens = tokens,
                                                             .heads = config.num_attention_heads,
                                                             .head_dim = config.attention_head_dim,
                                                             .dtype = dtype,
                                                             .scale = 0},
                                                            {}, rank, stream);
    Transformer transformer(weights, stream);
    transformer.prepare(latent, batch, attention, {.timesteps = static_cast<int64_t>(timesteps.values.size())});
    transformer.set_context(text, {}, keep, image);
    std::vector<float> scales;
    if (control) {
      const TensorView recorded = golden.tensor("in.control_hidden_states_scale");
      for (int64_t j = 0; j < recorded.size(); ++j) scales.push_back(static_cast<float>(golden::element(recorded, j)));
      transformer.set_control(control, scales);
    }
    Tensor face;
    if (config.animate()) {
      face = testing::face_tokens(stream, *weights, golden.tensor("in.face_pixel_values"), keep);
      transformer.set_animation(golden.tensor("in.pose_hidden_states"), face);
    }
    const Tensor velocity(dtype, {batch, tokens, config.patch_output_dim()});
    transformer.forward(latents, {timesteps.values, timesteps.index}, velocity, keep);
    for (const char* name : {"temb", "timestep_proj"}) values[name] = timesteps.rows(values.at(name));
    Tensor output(DType::kF32, {batch, config.out_channels, latent[0], latent[1], latent[2]});
    unpatchify(stream, velocity, config.patch_size, output);
    values.emplace("output", std::move(output));
  });
  return values;
}

class RecordedTransformer : public ::testing::TestWithParam<const char*> {};

// A float32 engine sums in another order than the reference: the same kind of error as the reference's own against
// float64, so 4 times that (the two errors add, and the largest of so many values varies).
TEST_P(RecordedTransformer, Float32) {
  const GoldenCase golden(GetParam());
  const Values values = run_case(golden, DType::kF32);
  for (const std::string& name : golden.names("f32.")) {
    ASSERT_EQ(values.count(name), 1u) << name;
    const auto error = golden::difference(values.at(name), golden.tensor("f32." + name));
    const auto noise = golden.noise("f32_vs_f64", name);
    EXPECT_LE(error.rel_l2, 4 * noise.rel_l2) << name;
    EXPECT_LE(error.max_abs, 4 * noise.max_abs) << name;
  }
  EXPECT_GT(golden.names("f32.").size(), 1u);
}

// Rounding points are the reference's, single roundings fall elsewhere: at most 1.5 times its own error against
// float32.
TEST_P(RecordedTransformer, BFloat16) {
  const GoldenCase golden(GetParam());
  const Values values = run_case(golden, DType::kBF16);
  for (const std::string& name : golden.names("f32.")) {
    ASSERT_EQ(values.count(name), 1u) << name;
    const auto error = golden::difference(values.at(name), golden.tensor("f32." + name));
    // What a bf16 model computes in float32 has no bf16 error.
    const double noise = golden.noise("bf16_vs_f32", name).rel_l2;
    EXPECT_LE(error.rel_l2, noise > 0 ? 1.5 * noise : 4 * golden.noise("f32_vs_f64", name).rel_l2) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RecordedTransformer,
                         ::testing::Values("transformer_t2v", "transformer_hd128", "transformer_odd", "transformer_i2v",
                                           "transformer_flf2v", "transformer_ti2v", "transformer_vace",
                                           "transformer_animate"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace zoetrope::wan
