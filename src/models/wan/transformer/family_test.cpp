// What the classes of the family add to a transformer, against itself: images, timesteps of tokens, kept residuals, the
// control stream. Recorded values of all of them are in tests/golden_test.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.h"
#include "models/wan/transformer/transformer_testing.h"
#include "models/wan/transformer/workspace.h"

namespace zoetrope::wan {
namespace {

using testing::Inputs;
using testing::Job;
using testing::kReordered;
using testing::Model;
using testing::ModelClass;
using testing::run;

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

Job job_of(const ModelClass& which, const Model& model) {
  Job job;
  if (which.clean_first_frame) job.clean_first_frame(model);
  return job;
}

std::string name_of(const ::testing::TestParamInfo<ModelClass>& test) { return test.param.name; }

class EveryClass : public ::testing::TestWithParam<ModelClass> {};
INSTANTIATE_TEST_SUITE_P(Family, EveryClass, ::testing::ValuesIn(testing::kModelClasses), name_of);

// One after the other or alone gives what all of a batch at once give.
TEST_P(EveryClass, ABatchIsItsSamples) {
  const Model model(DType::kF32, GetParam().model);
  Job job = job_of(GetParam(), model);
  const Inputs inputs(model, job);
  const Tensor both = run(model, job, inputs);
  job.group = 1;
  EXPECT_LE(golden::difference(run(model, job, inputs), both).rel_l2, kReordered);
  for (int64_t b = 0; b < job.batch; ++b) {
    Job single;
    single.batch = 1;
    single.timesteps = {job.timesteps[static_cast<size_t>(b)]};
    if (GetParam().clean_first_frame) single.clean_first_frame(model);
    Inputs one(model, single);
    const auto sample = [&](const Tensor& all) { return golden::clone(all.view().slice(0, b, b + 1)); };
    one.latents = sample(inputs.latents);
    one.text = sample(inputs.text);
    if (inputs.image) one.image = sample(inputs.image);
    if (inputs.control) one.control = sample(inputs.control);
    if (inputs.pose) one.pose = sample(inputs.pose);
    if (inputs.face) one.face = sample(inputs.face);
    EXPECT_LE(golden::difference(run(model, single, one), both.view().slice(0, b, b + 1)).rel_l2, kReordered) << b;
  }
}

TEST_P(EveryClass, AStepLeavesNothingBehind) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Model model(dtype, GetParam().model);
    const Job job = job_of(GetParam(), model);
    const Inputs inputs(model, job);
    EXPECT_TRUE(same_bytes(run(model, job, inputs, 1), run(model, job, inputs, 3)));
  }
}

// 663 tokens to a frame: chunks are longer than the runs of one timestep and end elsewhere.
TEST_P(EveryClass, ChunksGiveWhatOneChunkGives) {
  const Model model(DType::kF32, GetParam().model);
  Job job;
  job.batch = 1;
  job.timesteps = {625.0f};
  job.latent = {3, 2 * 17, 2 * 39};
  if (GetParam().clean_first_frame) job.clean_first_frame(model);
  ASSERT_GT(job.tokens(model), kMostChunkRows);
  const Tensor chunks = run(model, job);
  job.strategy.layout.ring = 2;
  EXPECT_LE(golden::difference(run(model, job), chunks).rel_l2, kReordered);
}

// What a step cache does with the blocks. Kept is exactly what they added, and reused is exactly that again.
TEST_P(EveryClass, KeepsWhatTheBlocksAddAndReusesIt) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Model model(dtype, GetParam().model);
    const Job job = job_of(GetParam(), model);
    const Inputs inputs(model, job);
    const Tensor other = testing::waves(inputs.latents.shape(), 0.11f);
    const std::vector<Blocks> keep(2, Blocks::kComputeAndKeep), reuse(2, Blocks::kReuse);
    const std::string last = "block." + std::to_string(model.config.num_layers - 1);
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(
          model, job, inputs, context_of(model, job, inputs), rank, [&](Transformer& transformer, IndexRange mine) {
            std::map<std::string, Tensor> seen;
            const Probe see = [&](std::string_view name, const TensorView& value) {
              if (value.contiguous()) seen[std::string(name)] = golden::clone(value);
            };
            const Timesteps times(job.timesteps, job.time_index);
            const auto forward = [&](const Tensor& latents, std::span<const Blocks> blocks) {
              Tensor velocity = testing::velocity_for(model, job, mine);
              seen.clear();
              transformer.forward(latents, times, velocity, see, blocks);
              return velocity;
            };
            const Tensor plain = forward(inputs.latents, {});
            EXPECT_TRUE(same_bytes(forward(inputs.latents, keep), plain));
            // Rounding the difference and the sum again is all that reusing it on the same latents changes.
            EXPECT_LE(golden::difference(forward(inputs.latents, reuse), plain).rel_l2,
                      dtype == DType::kF32 ? kReordered : 0x1p-7);
            EXPECT_EQ(seen.count(last), 0u);  // no block ran
            const Tensor elsewhere = forward(other, reuse);
            const Tensor computed = forward(other, {});
            EXPECT_EQ(seen.count(last), 1u);
            EXPECT_FALSE(same_bytes(elsewhere, computed));
            EXPECT_TRUE(same_bytes(forward(other, reuse), elsewhere));  // computing alone keeps nothing
            EXPECT_TRUE(same_bytes(forward(other, {}), computed));
          });
    });
  }
}

// Decisions of the samples' own, where attention takes them one by one.
TEST(Transformer, SamplesMayReuseAlone) {
  const Model model;
  Job job;
  job.group = 1;
  const Inputs inputs(model, job);
  const std::vector<Blocks> keep(2, Blocks::kComputeAndKeep), mixed{Blocks::kReuse, Blocks::kCompute};
  const Tensor other = testing::waves(inputs.latents.shape(), 0.11f);
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    testing::with_transformer(
        model, job, inputs, context_of(model, job, inputs), rank, [&](Transformer& transformer, IndexRange mine) {
          const auto forward = [&](const Tensor& latents, std::span<const Blocks> blocks) {
            Tensor velocity = testing::velocity_for(model, job, mine);
            transformer.forward(latents, job.timesteps, velocity, {}, blocks);
            return velocity;
          };
          forward(inputs.latents, keep);
          const Tensor computed = forward(other, {}), first = forward(other, mixed);
          const auto sample = [](const Tensor& all, int64_t b) { return all.view().slice(0, b, b + 1); };
          EXPECT_FALSE(same_bytes(sample(first, 0), sample(computed, 0)));
          EXPECT_TRUE(same_bytes(sample(first, 1), sample(computed, 1)));
          const std::vector<Blocks> reuse(2, Blocks::kReuse);
          EXPECT_TRUE(same_bytes(sample(forward(other, reuse), 0), sample(first, 0)));
          const std::vector<Blocks> one{Blocks::kCompute, Blocks::kLeaveOut};
          EXPECT_TRUE(same_bytes(sample(forward(other, one), 0), sample(computed, 0)));
          EXPECT_TRUE(same_bytes(forward(other, {}), computed));
        });
  });
}

TEST(Transformer, ShowsTheTimeEmbeddingOfEveryValue) {
  const Model model(DType::kF32);
  const Job job;
  const Inputs inputs(model, job);
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    testing::with_transformer(
        model, job, inputs, context_of(model, job, inputs), rank, [&](Transformer& transformer, IndexRange mine) {
          std::map<std::string, Tensor> seen;
          const Probe see = [&](std::string_view name, const TensorView& value) {
            seen[std::string(name)] = golden::clone(value);
          };
          transformer.forward(inputs.latents, job.timesteps, testing::velocity_for(model, job, mine), see);
          const Transformer::TimeEmbedding shown = transformer.embed_time(job.timesteps);
          EXPECT_TRUE(same_bytes(shown.temb, seen.at("temb")));
          EXPECT_TRUE(same_bytes(shown.timestep_proj, seen.at("timestep_proj")));
          EXPECT_EQ(shown.temb.shape(), Shape({2, model.config.inner_dim()}));
        });
  });
}

// mean |a − b| / mean |b|
double relative_l1(const TensorView& a, const TensorView& b) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    difference += std::abs(static_cast<double>(a.data<float>()[i]) - static_cast<double>(b.data<float>()[i]));
    size += std::abs(static_cast<double>(b.data<float>()[i]));
  }
  return difference / size;
}

// What a step cache sees of a model in bf16 is what it sees in float32 but for the weights' rounding: the same time
// embedding, whose layers are float32 in both, and a projection by rounded weights that moves as much from timestep to
// timestep, to a hundredth. With its operand or result rounded to bf16 it would be off by a multiple of that.
TEST(Transformer, TheTimeEmbeddingOfStepCachesIsFloat32) {
  std::map<DType, Tensor> embeddings, projections;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Model model(dtype);
    const Job job;
    const Inputs inputs(model, job);
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(model, job, inputs, context_of(model, job, inputs), rank,
                                [&](Transformer& transformer, IndexRange) {
                                  const std::vector<float> near{901.0f, 900.99f};
                                  const Transformer::TimeEmbedding shown = transformer.embed_time(near);
                                  ASSERT_EQ(shown.temb.dtype(), DType::kF32);
                                  ASSERT_EQ(shown.timestep_proj.dtype(), DType::kF32);
                                  ASSERT_EQ(shown.timestep_proj.shape(), Shape({2, 6 * model.config.inner_dim()}));
                                  embeddings[dtype] = golden::clone(shown.temb);
                                  projections[dtype] = golden::clone(shown.timestep_proj);
                                });
    });
  }
  EXPECT_TRUE(same_bytes(embeddings[DType::kF32], embeddings[DType::kBF16]));
  const auto moved = [&](DType dtype) {
    const TensorView proj = projections[dtype];
    return relative_l1(proj.select(0, 1), proj.select(0, 0));
  };
  EXPECT_NEAR(moved(DType::kBF16) / moved(DType::kF32), 1, 0.01);
}

// An index is a way of writing: of samples, of tokens, with values that nobody has.
TEST(Timesteps, OfTokensThatAreAllAlikeAreTheSamples) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Model model(dtype, "pipelines/wan22_ti2v");
    const Job job;
    const Inputs inputs(model, job);
    const Tensor plain = run(model, job, inputs);
    Job indexed = job;
    indexed.timesteps = {3.0f, 401.0f, 999.0f};
    indexed.time_index = {2, 1};
    EXPECT_TRUE(same_bytes(run(model, indexed, inputs), plain));
    indexed.time_index.assign(static_cast<size_t>(job.tokens(model)), 2);
    indexed.time_index.resize(static_cast<size_t>(2 * job.tokens(model)), 1);
    EXPECT_TRUE(same_bytes(run(model, indexed, inputs), plain));
  }
}

// A token's own timestep reaches its velocity directly, and that of the others through their keys.
TEST(Timesteps, ReachTheTokensThatHaveThem) {
  const Model model(DType::kF32, "pipelines/wan22_ti2v");
  Job job;
  job.clean_first_frame(model);
  const Tensor clean = run(model, job);
  Job all = job;
  std::fill(all.time_index.begin(), all.time_index.begin() + job.tokens(model), 0);
  const Tensor noisy = run(model, all);
  const auto frames = [&](const Tensor& from, int64_t sample, int64_t begin, int64_t end) {
    const int64_t frame = job.tokens(model) / 3;
    return golden::clone(from.view().select(0, sample).slice(0, begin * frame, end * frame));
  };
  const double first = golden::difference(frames(noisy, 0, 0, 1), frames(clean, 0, 0, 1)).rel_l2;
  const double others = golden::difference(frames(noisy, 0, 1, 3), frames(clean, 0, 1, 3)).rel_l2;
  EXPECT_GT(first, 1e-2);
  EXPECT_GT(others, 0);
  EXPECT_GT(first, 3 * others);
  EXPECT_EQ(golden::difference(frames(noisy, 1, 0, 3), frames(clean, 1, 0, 3)).max_abs, 0);
}

TEST(Control, ScalesAndFramesAreLookedAt) {
  const Model model(DType::kF32, "pipelines/wan21_vace");
  const Job job;
  Inputs inputs(model, job);
  const Tensor before = run(model, job, inputs);
  inputs.scales = {0, 0};
  const Tensor off = run(model, job, inputs);
  EXPECT_GT(golden::difference(off, before).rel_l2, 1e-2);
  // Without hints the control video is not seen, whatever it holds.
  inputs.control = testing::waves({2, model.config.vace_in_channels, 3, 6, 10}, 0.2f);
  EXPECT_EQ(golden::difference(run(model, job, inputs), off).max_abs, 0);
  // Frames that are missing are not frames of zeros: their tokens lack the convolution's bias.
  inputs.scales = {1, 1};
  inputs.control = Tensor(DType::kF32, {2, model.config.vace_in_channels, 3, 6, 10});
  const Tensor zeros = run(model, job, inputs);
  inputs.control = Tensor(DType::kF32, {2, model.config.vace_in_channels, 1, 6, 10});
  EXPECT_GT(golden::difference(run(model, job, inputs), zeros).rel_l2, 1e-4);
}

// The reference image is the first frame: no pose, and a face of zeros, so that every token of it gets the same.
TEST(Animate, EveryFrameHasItsOwnFaceAndTheFirstNone) {
  const Model model(DType::kF32, "pipelines/wan22_animate");
  Job job;
  job.batch = 1;
  job.timesteps = {500};
  Inputs inputs(model, job);
  const TokenGrid grid = token_grid(model.config, job.latent);
  const int64_t frame = grid.height * grid.width, d = model.config.inner_dim();
  const auto first_adapter = [&] {
    Tensor seen;
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(model, job, inputs, context_of(model, job, inputs), rank,
                                [&](Transformer& transformer, IndexRange mine) {
                                  const Tensor velocity = testing::velocity_for(model, job, mine);
                                  transformer.forward(inputs.latents, {job.timesteps, job.time_index}, velocity,
                                                      [&](std::string_view name, const TensorView& value) {
                                                        if (name == "face_adapter.0") seen = golden::clone(value);
                                                      });
                                });
    });
    return seen;
  };
  const Tensor before = first_adapter();
  for (int64_t token = 1; token < frame; ++token)
    EXPECT_TRUE(same_bytes(before.view().slice(1, token, token + 1), before.view().slice(1, 0, 1))) << token;
  // Of the face of frame 2 alone, tokens of other frames see nothing.
  const TensorView second = inputs.face.view().select(0, 0).select(0, 1);
  std::fill_n(second.data<float>(), second.size(), 0.25f);
  second.data<float>()[0] = 3;
  const Tensor after = first_adapter();
  for (int64_t f = 0; f < grid.frames; ++f) {
    const auto of = [&](const Tensor& all) { return all.view().slice(1, f * frame, (f + 1) * frame); };
    EXPECT_EQ(same_bytes(of(before), of(after)), f != 2) << f;
  }
  EXPECT_EQ(before.size(), grid.tokens() * d);
}

TEST(Animate, RefusesWhatDoesNotFit) {
  const Model animate(DType::kF32, "pipelines/wan22_animate"), text;
  Job job;
  job.batch = 1;
  job.timesteps = {500};
  const auto refused = [&](const Model& model, const Shape& pose, const Shape& face, const char* word) {
    const Inputs inputs(model, job);
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(model, job, inputs, context_of(model, job, inputs), rank,
                                [&](Transformer& transformer, IndexRange) {
                                  try {
                                    transformer.set_animation(Tensor(DType::kF32, pose), Tensor(DType::kF32, face));
                                    ADD_FAILURE() << word;
                                  } catch (const Error& error) {
                                    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
                                  }
                                });
    });
  };
  refused(text, {1, 16, 2, 6, 10}, {1, 2, 3, 32}, "no pose");
  refused(animate, {1, 16, 3, 6, 10}, {1, 2, 3, 32}, "pose latents");
  refused(animate, {1, 16, 2, 6, 10}, {1, 3, 3, 32}, "face tokens");
  refused(animate, {1, 16, 2, 6, 10}, {1, 2, 2, 32}, "face tokens");
}

TEST(Control, RefusesWhatDoesNotFit) {
  const Model vace(DType::kF32, "pipelines/wan21_vace"), text;
  Job job;
  job.batch = 1;
  job.timesteps = {500};
  const auto refused = [&](const Model& model, const Shape& shape, size_t scales, const char* word) {
    const Inputs inputs(model, job);
    const Tensor control(DType::kF32, shape);
    const std::vector<float> values(scales, 1.0f);
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(model, job, inputs, context_of(model, job, inputs), rank,
                                [&](Transformer& transformer, IndexRange) {
                                  try {
                                    transformer.set_control(control, values);
                                    ADD_FAILURE() << word;
                                  } catch (const Error& error) {
                                    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
                                  }
                                });
    });
  };
  refused(text, {1, 96, 3, 6, 10}, 0, "no control video");
  refused(vace, {1, 95, 3, 6, 10}, 2, "control latents");
  refused(vace, {1, 96, 4, 6, 10}, 2, "control latents");
  refused(vace, {1, 96, 3, 6, 8}, 2, "control latents");
  refused(vace, {1, 96, 3, 6, 10}, 3, "control scales");
}

}  // namespace
}  // namespace zoetrope::wan
