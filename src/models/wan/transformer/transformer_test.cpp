// The transformer against itself: many ranks against one, one batch against its samples, a kept context against a fresh
// one. Recorded values are in golden_test.cpp.
#include "models/wan/transformer/transformer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <tuple>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "base/test_folder.h"
#include "kernels/rope/rope.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/transformer_testing.h"
#include "models/wan/transformer/workspace.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

using testing::Inputs;
using testing::Job;
using testing::kReordered;
using testing::Model;
using testing::ModelClass;
using testing::run;

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data<char>(), b.data<char>(), a.view().bytes()) == 0;
}

class ManyRanks : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ManyRanks, GiveTheVelocityOfOne) {
  const Model model;
  Job job;
  const Tensor one = run(model, job);
  std::tie(job.strategy.layout.ulysses, job.strategy.layout.ring) = GetParam();
  EXPECT_LE(golden::difference(run(model, job), one).rel_l2, kReordered);
}

INSTANTIATE_TEST_SUITE_P(Degrees, ManyRanks,
                         ::testing::Values(std::pair(2, 1), std::pair(1, 2), std::pair(2, 2), std::pair(3, 1),
                                           std::pair(1, 7)),
                         [](const auto& test) { return fmt::format("U{}R{}", test.param.first, test.param.second); });

TEST(Transformer, RanksWithoutTokensTakePart) {
  const Model model;
  Job job;
  job.latent = {1, 2, 4};  // two tokens on three ranks
  const Tensor one = run(model, job);
  job.strategy.layout.ring = 3;
  EXPECT_LE(golden::difference(run(model, job), one).rel_l2, kReordered);
}

// 3311 tokens pass in three chunks of which the last is shorter; on two ranks they are 1655 and 1656, two chunks each,
// on three one chunk each. Every boundary falls elsewhere.
TEST(Transformer, ChunksGiveWhatOneChunkGives) {
  const Model model;
  Job job;
  job.latent = {1, 2 * 43, 2 * 77};
  job.key_lengths = {7, 4};
  const int64_t tokens = token_grid(model.config, job.latent).tokens();
  ASSERT_EQ(chunk_rows(tokens), 1104);
  ASSERT_NE(tokens % chunk_rows(tokens), 0);
  ASSERT_EQ(chunk_rows(ceil_div(tokens, int64_t{3})), ceil_div(tokens, int64_t{3}));
  const Tensor chunks = run(model, job);
  for (const int ring : {2, 3}) {
    job.strategy.layout.ring = ring;
    EXPECT_LE(golden::difference(run(model, job), chunks).rel_l2, kReordered) << ring;
  }
}

// What prepare() books is what the memory model is told, and forward() takes nothing beyond but what attention's
// kernels use of the stream's scratch memory.
TEST(Transformer, TheWorkspaceIsWhatItSays) {
  for (const char* name : {"transformer_odd", "pipelines/wan21_vace"}) {
    for (const DType of : {DType::kF32, DType::kBF16, DType::kI8}) {
      const TransformerConfig config = Model::config_for(of, Model(DType::kF32, name).folder);
      const DType dtype = of == DType::kI8 ? DType::kBF16 : of;
      for (const int64_t tokens : {int64_t{0}, int64_t{1}, kMostChunkRows, kMostChunkRows + 1}) {
        const TransformerSize size{
            .tokens = tokens, .batch = 2, .group = 1, .timesteps = 3, .keeps_residual = tokens != 1, .dtype = dtype};
        TransformerBuffers b;
        b.book(config, size);
        EXPECT_EQ(static_cast<bool>(b.control), config.vace());
        EXPECT_EQ(static_cast<bool>(b.residual), size.keeps_residual);
        size_t bytes = static_cast<size_t>(transformer_scratch_bytes(config, tokens, dtype, 3));
        for (const Tensor* t : {&b.x, &b.o, &b.control, &b.residual, &b.minus_one, &b.operand, &b.wide, &b.sinusoid,
                                &b.time_hidden, &b.time_float, &b.temb, &b.time_act, &b.time_proj, &b.proj_float,
                                &b.modulation, &b.head_rows, &b.hint_factors})
          if (*t) bytes += t->view().bytes();
        const kernels::RopeTable rope =
            kernels::make_rope_table(config.attention_head_dim, 1, 1, kMostChunkRows + 1, {0, tokens});
        bytes += rope.cos.view().bytes() + rope.sin.view().bytes();
        EXPECT_EQ(transformer_workspace_bytes(config, size, 3), static_cast<int64_t>(bytes));
      }
    }
  }
}

TEST(Transformer, RecordsEveryOperationOnce) {
  const Model model(DType::kBF16);
  const Job job;
  trace::Trace trace;
  const TestFolder folder;
  const Inputs inputs(model, job);
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    Stream stream(1, {&trace, 0});
    attention::ContextAttention attention = testing::plan_attention(model, job, rank, stream);
    Transformer transformer(model.weights, stream);
    transformer.prepare(job.latent, job.batch, attention);
    transformer.set_context(inputs.text);
    transformer.forward(inputs.latents, job.timesteps, testing::velocity_for(model, job, attention.tokens()));
  });
  trace.write(folder / "t.json");
  const std::string text = file_bytes(folder / "t.json");
  const auto count = [&](const std::string& name) {
    size_t found = 0;
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) ++found;
    return found;
  };
  const auto blocks = model.weights->blocks.size() * static_cast<size_t>(job.batch);
  for (const char* name : {"norm", "qkv", "norm, rope", "out", "cross: norm", "cross: q", "cross: norm of q",
                           "cross: attention", "cross: out", "ffn: norm", "ffn: in", "ffn: out"})
    EXPECT_EQ(count(fmt::format("\"name\":\"{}\"", name)), blocks) << name;
  EXPECT_EQ(count("\"attention block\""), model.weights->blocks.size());
  // Products, attention and cross-attention say their operations; here the first of them all.
  const double flop = 2.0 * 45 * static_cast<double>(model.config.patch_input_dim() * model.config.inner_dim());
  EXPECT_NE(text.find(fmt::format("\"gflop\":{:.6g},", flop * 1e-9)), std::string::npos) << text.substr(0, 2000);
}

TEST(Transformer, SaysHowLongItWaitedForStreamedWeights) {
  Model model;
  const Job job;
  const Inputs inputs(model, job);
  const auto waited = [&] {
    double seconds = -1;
    comm::run_ranks(1, [&](comm::Communicator& rank) {
      testing::with_transformer(model, job, inputs, testing::context_of(model, job, inputs), rank,
                                [&](Transformer& transformer, IndexRange mine) {
                                  transformer.forward(inputs.latents, job.timesteps,
                                                      testing::velocity_for(model, job, mine));
                                  seconds = transformer.weights_wait_seconds();
                                });
    });
    return seconds;
  };
  EXPECT_EQ(waited(), 0);
  const auto streamed = std::make_shared<io::Weights>(testing::open_source(model.folder),
                                                      io::Weights::Loading{{}, {}, io::Weights::kFewestParts});
  model.weights = TransformerWeights::load(model.config, streamed, DType::kF32);
  EXPECT_GT(waited(), 0);
}

TEST(Transformer, KeyLengthsHideTheRowsBeyond) {
  const Model model;
  Job job;
  job.key_lengths = {7, 4};
  const Inputs inputs(model, job);
  Inputs changed(model, job);
  for (int64_t i = (7 + 4) * model.config.text_dim; i < changed.text.size(); ++i) changed.text.data<float>()[i] = 1e3f;
  EXPECT_TRUE(same_bytes(run(model, job, inputs), run(model, job, changed)));
  const Tensor masked = run(model, job, inputs);
  job.key_lengths.clear();
  EXPECT_GT(golden::difference(run(model, job, inputs), masked).rel_l2, 1e-4);  // the mask is looked at
}

TEST(Transformer, TimestepsAreTheSamplesOwn) {
  const Model model;
  Job job;
  const Tensor before = run(model, job);
  job.timesteps[1] = 7.0f;
  const Tensor after = run(model, job);
  const auto sample = [](const Tensor& all, int64_t b) { return all.view().slice(0, b, b + 1); };
  EXPECT_EQ(golden::difference(sample(after, 0), sample(before, 0)).max_abs, 0);
  EXPECT_GT(golden::difference(sample(after, 1), sample(before, 1)).rel_l2, 1e-3);
}

TEST(TokenGrid, RefusesWhatPatchesDoNotCover) {
  const TransformerConfig config;
  EXPECT_EQ(token_grid(config, {21, 60, 104}).tokens(), 32760);
  EXPECT_EQ(token_grid(config, {21, 90, 160}).tokens(), 75600);
  EXPECT_THROW(token_grid(config, {21, 61, 104}), Error);
  EXPECT_THROW(token_grid(config, {21, 60, 103}), Error);
  EXPECT_THROW(token_grid(config, {0, 60, 104}), Error);
  EXPECT_THROW(token_grid(config, {21, 60, 2 * 1025}), Error);  // positions end at 1024
}

TEST(TransformerWeights, RefuseTensorsThatDoNotFitTheConfig) {
  Model model;
  model.config.ffn_dim += 1;
  const auto load = [&] {
    return TransformerWeights::load(
        model.config, std::make_shared<io::Weights>(io::procedural_source(model.folder / "weights.json")), DType::kF32);
  };
  try {
    load();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.0.ffn.net.0.proj.weight"), std::string::npos) << error.what();
  }
  model.config.ffn_dim -= 1;
  model.config.num_layers += 1;
  EXPECT_THROW(load(), Error);
  model.config.num_layers -= 1;
  model.config.image_dim = 20;
  EXPECT_THROW(load(), Error);
}

// Reading goes on for minutes: who waits is asked after every tensor, and can give up at any.
TEST(TransformerWeights, TickAfterEveryTensor) {
  for (const ModelClass& which : testing::kModelClasses) {
    const Model model(DType::kF32, which.model);
    const auto load = [&](const std::function<void()>& tick) {
      return TransformerWeights::load(model.config, testing::open_weights(model.folder), DType::kF32, tick);
    };
    size_t ticks = 0;
    load([&] { ++ticks; });
    // q, k and v of a block's self-attention are read as one, weights and biases.
    const auto joined = static_cast<size_t>(4 * model.config.block_count());
    EXPECT_EQ(ticks, transformer_tensors(model.config).size() - joined) << which.name;
    size_t left = 3;
    EXPECT_THROW(load([&] {
                   if (--left == 0) fail("enough");
                 }),
                 Error);
    EXPECT_EQ(left, 0u);
  }
}

// What the planner counts is what the loader makes.
TEST(TransformerWeights, HoldWhatTheMemoryModelCounts) {
  for (const ModelClass& which : testing::kModelClasses) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      const Model model(dtype, which.model);
      const TransformerWeights& w = *model.weights;
      int64_t bytes = 0;
      const auto vector = [&](const TensorView& v) { bytes += v ? static_cast<int64_t>(v.bytes()) : 0; };
      const auto linear = [&](const LinearWeights& layer) {
        if (!layer.weight) return;
        bytes += static_cast<int64_t>(kernels::packed_bytes(layer.weight));
        vector(layer.bias);
      };
      for (const LinearWeights* layer :
           {&w.patch_embedding, &w.time_in, &w.time_out, &w.time_proj, &w.text_in, &w.text_out, &w.image.hidden,
            &w.image.out, &w.proj_out, &w.control.patch_embedding, &w.control.in, &w.face.pose_patch_embedding,
            &w.face.motion_in, &w.face.motion_out, &w.face.conv1_local, &w.face.conv2, &w.face.conv3, &w.face.out})
        linear(*layer);
      for (const LinearWeights& layer : w.face.motion_network) linear(layer);
      for (const MotionBlockWeights& block : w.face.motion_blocks)
        for (const LinearWeights* layer : {&block.conv1, &block.conv2, &block.skip}) linear(*layer);
      for (const FaceAdapterWeights& adapter : w.face.adapters) {
        for (const LinearWeights* layer : {&adapter.q, &adapter.k, &adapter.v, &adapter.out}) linear(*layer);
        vector(adapter.norm_q);
        vector(adapter.norm_k);
      }
      if (w.face.motion_basis) vector(w.face.motion_basis);
      for (const TensorView* v : {&w.head_modulation, &w.image.positions, &w.image.in_norm, &w.image.in_norm_bias,
                                  &w.image.out_norm, &w.image.out_norm_bias, &w.face.padding})
        vector(*v);
      for (const LinearWeights& hint : w.control.hints) linear(hint);
      for (const TransformerBlockWeights& block : w.blocks) {
        for (const LinearWeights* layer :
             {&block.self_qkv, &block.self_out, &block.cross_q, &block.cross_out, &block.ffn_in, &block.ffn_out})
          linear(*layer);
        for (const TensorView* v : {&block.modulation, &block.self_norm_q, &block.self_norm_k, &block.cross_norm_weight,
                                    &block.cross_norm_bias, &block.cross_norm_q})
          vector(*v);
        for (const KeyWeights& keys : block.keys) {
          linear(keys.k);
          linear(keys.v);
          vector(keys.norm);
        }
      }
      // q, k and v side by side leave no panel half empty three times; widths here are no multiples of a panel.
      const int64_t counted = transformer_weight_bytes(transformer_tensors(model.config), w.dtype);
      const int64_t d = model.config.inner_dim();
      const auto packed = [&](int64_t n) {
        return static_cast<int64_t>(kernels::packed_bytes({nullptr, n, d, dtype, kernels::packed_layout(dtype)}));
      };
      EXPECT_EQ(counted - model.config.block_count() * (3 * packed(d) - packed(3 * d)), bytes) << which.name;
    }
  }
}

TEST(TransformerWeights, KeepsSomeTensorsInFloat32) {
  const Model model(DType::kBF16);
  const auto& block = model.weights->blocks.at(0);
  for (const TensorView& kept : {block.modulation, block.cross_norm_weight, block.cross_norm_bias,
                                 model.weights->time_out.bias, model.weights->head_modulation}) {
    EXPECT_EQ(kept.dtype(), DType::kF32);
  }
  EXPECT_EQ(model.weights->time_in.weight.dtype, DType::kF32);
  for (const TensorView& narrow : {block.self_norm_q, block.ffn_in.bias, model.weights->patch_embedding.bias}) {
    EXPECT_EQ(narrow.dtype(), DType::kBF16);
  }
  for (const LinearWeights* narrow : {&block.self_qkv, &model.weights->time_proj, &model.weights->patch_embedding}) {
    EXPECT_EQ(narrow->weight.dtype, DType::kBF16);
  }
}

}  // namespace
}  // namespace zoetrope::wan
