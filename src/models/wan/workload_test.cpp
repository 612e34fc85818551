#include "models/wan/workload.h"

#include <gtest/gtest.h>

#include <array>

#include "io/weights/packing_threads.h"
#include "io/weights/random_weights.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae.h"
#include "planner/memory_model.h"

namespace zoetrope::wan {
namespace {

// The published sizes (wan.md section 10).
ModelConfigs model_1_3b() {
  ModelConfigs configs;
  TransformerConfig transformer;
  transformer.num_attention_heads = 12;
  transformer.ffn_dim = 8960;
  transformer.num_layers = 30;
  configs.experts = {transformer};
  return configs;
}

RunSize small_video() {
  RunSize size;
  size.height = 480;
  size.width = 832;
  size.frames = 5;
  return size;
}

TEST(Workload, CountsThePublishedParameters) {
  const planner::Workload w = workload(model_1_3b(), small_video(), {});
  EXPECT_EQ(w.experts.at(0).weights.parameters, 1'418'996'800);
  EXPECT_EQ(w.experts[0].weights.stored.count(), 5'675'987'200);
  EXPECT_EQ(w.vae.weights.parameters, 126'892'531);
  EXPECT_NEAR(static_cast<double>(w.text.weights.parameters), 5.68e9, 0.01e9);
  // bf16 but for what stays float32: time embedder, modulation tables, the norm before cross-attention.
  EXPECT_GT(w.experts[0].weights.resident.count(), 2 * w.experts[0].weights.parameters);
  EXPECT_LT(w.experts[0].weights.resident.count(), 2 * w.experts[0].weights.parameters + 20'000'000);
}

// TI2V-5B (wan.md section 8): a frame is of pixels, not of patches, and decoding does not know how long a clip is.
TEST(Workload, CountsTheResidualVae) {
  ModelConfigs model = model_1_3b();
  model.vae.base_dim = 160;
  model.vae.decoder_base_dim = 256;
  model.vae.z_dim = 48;
  model.vae.is_residual = true;
  model.vae.in_channels = model.vae.out_channels = 12;
  model.vae.patch_size = 2;
  RunSize size;
  size.height = 704;
  size.width = 1280;
  size.frames = 121;
  size.frames_waiting = 6;
  const planner::Workload w = workload(model, size, {});
  EXPECT_EQ(w.attention.tokens, 27'280);
  EXPECT_EQ(w.vae.weights.parameters, 704'688'668);
  EXPECT_EQ(w.vae.output.count(), int64_t{704} * 1280 * 3 * 4 * 6);
  size.frames = 5;
  EXPECT_EQ(workload(model, size, {}).vae.workspace.count(), w.vae.workspace.count());
  size.vae_tiling = true;
  EXPECT_LT(workload(model, size, {}).vae.workspace.count(), w.vae.workspace.count() / 8);
  // Six waiting, the clip, one on its way; rows of 32 patches above each tile of a row, in seven columns of which the
  // last is 64 wide; the left neighbour's columns; and a frame of a tile.
  constexpr int64_t kSeams = 4 * 12 * (5 * 32 * (6 * 128 + 64) + 5 * 128 * 32 + 128 * 128);
  EXPECT_EQ(workload(model, size, {}).vae.output.count(), int64_t{704} * 1280 * 3 * 4 * (6 + 5 + 1) + kSeams);
}

// What the VAE holds while it runs: frames, and what its attention packs, here more than all other scratch together.
TEST(Workload, CoversWhatTheVaeHolds) {
  ModelConfigs model = model_1_3b();
  model.vae.base_dim = model.vae.decoder_base_dim = 16;
  model.vae.dim_mult = {1, 8};
  model.vae.num_res_blocks = 1;
  model.vae.temporal_downsample = {true};
  model.vae.scale_factor_spatial = 2;
  model.experts[0].in_channels = 36;  // a condition of all frames is encoded
  RunSize size;
  size.height = size.width = 192;
  size.frames = 5;
  const auto formulas = io::random_weights(vae_tensors(model.vae), "vae", 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    size.vae = dtype;
    const planner::Workload planned = workload(model, size, {});
    const auto weights = std::make_shared<const VaeWeights>(model.vae, formulas, VaeUse{VaeParts::kBoth, dtype});
    const auto expect_covered = [&](planner::Bytes plan, size_t workspace, Stream& stream) {
      const auto allocated = static_cast<int64_t>(workspace + stream.scratch().reserved());
      EXPECT_GE(plan.count(), allocated) << dtype_name(dtype);
      EXPECT_LE(plan.count(), allocated + allocated / 3) << dtype_name(dtype);
    };
    {
      VaeDecoder decoder(weights);
      Stream stream(1);
      const Tensor latents(DType::kF32, {model.vae.z_dim, 2, 96, 96});
      decoder.decode(stream, latents, [](int64_t, const TensorView&) {});
      expect_covered(planned.vae.workspace, decoder.workspace_bytes(), stream);
    }
    VaeEncoder encoder(weights);
    Stream stream(1);
    const Tensor video(DType::kF32, {5, 192, 192, 3});
    encoder.encode(stream, video, Tensor(DType::kF32, encoder.moments_shape(video.shape())));
    expect_covered(planned.conditions.workspace, encoder.workspace_bytes(), stream);
  }
}

// Where products are float32, each convolution widens its bf16 weights: those of the widest are planned, once.
TEST(Workload, CoversWeightsOfRisingWidth) {
  ModelConfigs model = model_1_3b();
  model.vae.base_dim = model.vae.decoder_base_dim = 64;
  model.vae.dim_mult = {1, 2, 4, 4};
  model.vae.num_res_blocks = 1;
  model.vae.temporal_downsample = {true, true, false};
  model.vae.scale_factor_spatial = 8;
  model.experts[0].in_channels = 36;
  const auto formulas = io::random_weights(vae_tensors(model.vae), "vae", 1);
  for (const auto algorithm : {kernels::ConvAlgorithm::kDirect, kernels::ConvAlgorithm::kAuto}) {
    for (const int threads : {1, 4}) {
      RunSize size;
      size.height = size.width = 64;
      size.frames = 5;
      size.vae = DType::kBF16;
      size.vae_convolution = algorithm;
      size.threads = threads;
      const planner::Workload planned = workload(model, size, {});
      VaeEncoder encoder(
          std::make_shared<const VaeWeights>(model.vae, formulas, VaeUse{VaeParts::kBoth, size.vae, algorithm}));
      Stream stream(threads);
      const Tensor video(DType::kF32, {size.frames, size.height, size.width, 3});
      encoder.encode(stream, video, Tensor(DType::kF32, encoder.moments_shape(video.shape())));
      EXPECT_GE(planned.conditions.workspace.count(),
                static_cast<int64_t>(encoder.workspace_bytes() + stream.scratch().reserved()))
          << (algorithm == kernels::ConvAlgorithm::kDirect ? "direct, " : "auto, ") << threads << " threads";
    }
  }
}

size_t weight_bytes(const CoderWeights& coder) {
  size_t bytes = coder.in.op->weight_bytes() + coder.out.op->weight_bytes();
  const auto add = [&](const ResidualWeights& block) {
    bytes += block.conv1.op->weight_bytes() + block.conv2.op->weight_bytes();
  };
  add(coder.middle_first);
  add(coder.middle_last);
  for (const StageWeights& stage : coder.stages)
    for (const ResidualWeights& block : stage.resnets) add(block);
  return bytes;
}

// Where weights are stored as Winograd's points they take 16 values for 9: as much more as is planned.
TEST(Workload, CountsWinogradsWeights) {
  ModelConfigs model = model_1_3b();
  model.vae.base_dim = model.vae.decoder_base_dim = 32;  // vectors are whole, and some convolutions wide enough
  model.vae.z_dim = 32;                                  // so is the encoder's last, which auto leaves direct
  model.vae.latents_mean.assign(32, 0);
  model.vae.latents_std.assign(32, 1);
  model.vae.dim_mult = {1, 2};
  model.vae.num_res_blocks = 1;
  model.vae.temporal_downsample = {true};
  model.vae.scale_factor_spatial = 2;
  model.experts[0].in_channels = 36;
  const auto formulas = io::random_weights(vae_tensors(model.vae), "vae", 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto planned_and_taken = [&](kernels::ConvAlgorithm algorithm) {
      RunSize size;
      size.height = size.width = 192;
      size.frames = 5;
      size.vae = dtype;
      size.vae_convolution = algorithm;
      const planner::Workload planned = workload(model, size, {});
      const VaeWeights weights(model.vae, formulas, VaeUse{VaeParts::kBoth, dtype, algorithm});
      return std::array{planned.vae.weights.resident.count(), planned.conditions.weights.resident.count(),
                        static_cast<int64_t>(weight_bytes(weights.decoder())),
                        static_cast<int64_t>(weight_bytes(weights.encoder()))};
    };
    const auto direct = planned_and_taken(kernels::ConvAlgorithm::kDirect);
    kernels::FrameConvProblem wide;
    wide.in_channels = wide.out_channels = 64;
    wide.kernel = {3, 3};
    wide.dtype = dtype;
    wide.bf16_weights = dtype == DType::kBF16;
    const bool some = kernels::algorithm_of(wide) == kernels::ConvAlgorithm::kWinograd &&
                      kernels::winograd_weight_bytes(wide) > 9 * 64 * 64 * static_cast<int64_t>(dtype_size(dtype));
    for (const auto algorithm : {kernels::ConvAlgorithm::kAuto, kernels::ConvAlgorithm::kWinograd}) {
      const auto winograd = planned_and_taken(algorithm);
      EXPECT_EQ(winograd[2] > direct[2] && winograd[3] > direct[3], some) << dtype_name(dtype);
      // The three channels of a picture are a vector in either layout, of which plans count three directly.
      const bool ends = algorithm == kernels::ConvAlgorithm::kWinograd;
      const int64_t slack = ends ? winograd[2] / 20 : 0;
      EXPECT_NEAR(winograd[0] - direct[0], winograd[2] - direct[2], slack) << dtype_name(dtype);
      EXPECT_NEAR(winograd[1] - direct[1], winograd[3] - direct[3], slack) << dtype_name(dtype);
    }
  }
}

TEST(Workload, ProcessesOfAHostKeepOneVae) {
  ModelConfigs model = model_1_3b();
  model.experts[0].in_channels = 36;
  RunSize size = small_video();
  const auto vae = [&](int sharers, int ranks) {
    size.sharers = sharers;
    const planner::Workload w = workload(model, size, {.context = {}, .vae_ranks = ranks});
    return std::array{w.vae.weights.resident.count(), w.conditions.weights.resident.count()};
  };
  const auto alone = vae(1, 4), shared = vae(4, 4);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(shared[i], alone[i] / 4);
  EXPECT_EQ(vae(8, 2)[0], alone[0] / 2);  // the others have none
  EXPECT_EQ(vae(2, 8)[0], alone[0] / 2);  // of each host
  size.previews = size.keeps_vae = true;
  EXPECT_EQ(vae(4, 4), shared);
}

// What is being packed grows with the threads by rows, and not by tensors.
TEST(Workload, ThreadsThatPackTheVaeShareItsTensors) {
  ModelConfigs model = model_1_3b();
  RunSize size = small_video();
  for (const bool mapped : {true, false}) {
    model.mapped = mapped;
    const auto packing = [&](int threads) {
      size.threads = threads;
      return workload(model, size, {}).vae.weights.in_flight.count();
    };
    EXPECT_GT(packing(64), packing(1));
    EXPECT_LT(packing(64), 64 * packing(1) / 4);
  }
}

// So does what is being packed of the transformer, also where a LoRA is merged: then a weight is one piece.
TEST(Workload, ThreadsThatPackTheTransformerShareItsTensors) {
  ModelConfigs model = model_1_3b();
  RunSize size = small_video();
  const auto packing = [&](int threads) {
    size.threads = threads;
    return workload(model, size, {}).experts[0].weights.in_flight.count();
  };
  EXPECT_GT(packing(2), packing(1));
  EXPECT_EQ(packing(192) - packing(64), 128 * io::kPieceElements * static_cast<int64_t>(sizeof(float)));
  EXPECT_LT(packing(192), 300'000'000);
  model.merge_scratch = 1'000'000;
  const int64_t merged = packing(192);
  EXPECT_GT(merged, io::kMostBuffered);
  EXPECT_LT(merged, 3 * io::kMostBuffered);
}

TEST(Workload, MoreOfEverythingNeedsMore) {
  const ModelConfigs model = model_1_3b();
  const auto peak = [&](const RunSize& size, const parallel::ParallelLayout& layout, int here = 1) {
    return planner::memory_model(workload(model, size, layout, here)).peak().total();
  };
  const RunSize size = small_video();
  RunSize longer = size, larger = size, guided = size, exact = size;
  longer.frames = 81;
  larger.height = 720;
  larger.width = 1280;
  guided.prompts = 2;
  exact.transformer = DType::kF32;
  for (const RunSize& more : {longer, larger, guided, exact}) EXPECT_GT(peak(more, {}), peak(size, {}));
  const parallel::ParallelLayout four{.context = {4, 1}, .vae_ranks = 4};
  // Where activations make the peak.
  EXPECT_LT(peak(longer, four), peak(longer, {}));
  EXPECT_LT(peak(longer, four, 4), peak(longer, {}) + peak(longer, {}) / 4);
}

// Ranks that share every layer have a part of its matrices each, and all of what is not in blocks.
TEST(Workload, TensorRanksHaveAPartOfEveryLayer) {
  const ModelConfigs model = model_1_3b();
  RunSize size = small_video();
  const auto expert = [&](int tensor, int ranks_here) {
    return workload(model, size, {.context = {}, .tensor = tensor}, ranks_here).experts.at(0);
  };
  const auto resident = [&](int tensor, int ranks_here) { return expert(tensor, ranks_here).weights.resident.count(); };
  const int64_t whole = resident(1, 1), quarter = resident(4, 1);
  const auto rest = [&](const io::TensorTable& table) {
    io::TensorTable undivided = table;
    std::erase_if(undivided, [](const io::TensorSpec& spec) { return spec.shard_axis.has_value(); });
    return transformer_weight_bytes(undivided, size.transformer);
  };
  const int64_t undivided = rest(transformer_tensors(model.experts[0]));
  EXPECT_LT(undivided, whole / 10);
  EXPECT_EQ(quarter, (whole - undivided) / 4 + undivided);
  // Threads: one copy of what is divided, and the rest of each.
  EXPECT_EQ(resident(4, 4), whole + 3 * undivided);
  EXPECT_EQ(resident(4, 2), 2 * quarter);
  // Processes of a host with the same part keep it once.
  size.sharers = 8;
  EXPECT_EQ(resident(4, 1), quarter / 2);
  size.sharers = 2;
  EXPECT_EQ(resident(4, 1), quarter);
  size.sharers = 1;
  EXPECT_EQ(workload(model, size, {.context = {}, .tensor = 4}).attention.heads, 3);
  // Keys and values of three heads; the rows of the prompt are each rank's.
  const int64_t rows = 512 * 4096 * 4;
  EXPECT_EQ(expert(4, 1).context.count() - rows, (expert(1, 1).context.count() - rows) / 4);
  // Of a chunk the hidden rows are a fourth, and the sums are added up in a buffer.
  EXPECT_NE(expert(4, 1).workspace, expert(1, 1).workspace);
  size.weight_memory = 1'000'000'000;
  EXPECT_EQ(resident(4, 1), quarter);
  EXPECT_EQ(resident(1, 1), 1'000'000'000);
  size.weight_memory = 300'000'000;
  EXPECT_EQ(resident(4, 4), 4 * 300'000'000);
  size.weight_memory = 0;
  EXPECT_EQ(
      workload(model, size, {.context = {.ring = 2}, .weight_shards = 2, .tensor = 4}).experts[0].weights.resident,
      planner::Bytes(std::min(quarter, sharded_weight_bytes(model.experts[0], size.transformer, 2, 4))));
}

// What the classes of the family hold beyond text to video, by hand: 14B, bf16, one branch.
TEST(Workload, CountsWhatEveryClassHolds) {
  ModelConfigs text, image, positions, vace;
  text.experts = {TransformerConfig()};
  image = text;
  image.experts[0].in_channels = 36;
  image.experts[0].image_dim = 1280;
  image.experts[0].added_kv_proj_dim = 5120;
  positions = image;
  positions.experts[0].pos_embed_seq_len = 514;
  vace = text;
  for (int64_t layer = 0; layer < 40; layer += 5) vace.experts[0].vace_layers.push_back(layer);
  const auto expert = [](const ModelConfigs& model, const RunSize& size = small_video()) {
    return workload(model, size, {}).experts.at(0);
  };
  EXPECT_EQ(expert(image).weights.parameters, 16'394'878'784);
  EXPECT_EQ(expert(positions).weights.parameters, 16'395'536'704);
  EXPECT_EQ(expert(vace).weights.parameters, 17'337'592'896);
  // Keys and values of 257 or 514 rows, and the rows themselves.
  const planner::Bytes plain = expert(text).context;
  EXPECT_EQ((expert(image).context - plain).count(), 40 * 2 * 257 * 5120 * 2 + 257 * 1280 * 4);
  EXPECT_EQ((expert(positions).context - plain).count(), 40 * 2 * 514 * 5120 * 2 + 514 * 1280 * 4);
  EXPECT_EQ((expert(vace).context - plain).count(), 8 * 2 * 512 * 5120 * 2);
  // The second residual stream, its eight blocks' modulation and two rows of factors; wider patches fit where q, k and
  // v of a chunk do.
  constexpr int64_t kTokens = 2 * 30 * 52;
  EXPECT_EQ((expert(vace).workspace - expert(text).workspace).count(),
            kTokens * 5120 * 2 + 8 * 6 * 5120 * 4 + 2 * 5120 * 4);
  // A kept residual is as large; a second timestep is a second set of everything that is made of one.
  RunSize size = small_video();
  size.keeps_residual = true;
  EXPECT_EQ((expert(text, size).workspace - expert(text).workspace).count(), kTokens * 5120 * 2 + 5120 * 4);
  size = small_video();
  size.timesteps = 2;
  EXPECT_EQ((expert(text, size).workspace - expert(text).workspace).count(),
            4 * (256 + 2 * 5120 + 6 * 5120 + 40 * 6 * 5120 + 2 * 5120) + 2 * (2 * 5120 + 6 * 5120));
  // In addition to the latents: mask and image, and the model's input; the control video.
  const auto per_rank = [](const ModelConfigs& model) { return workload(model, small_video(), {}).per_rank.count(); };
  EXPECT_EQ(per_rank(image) - per_rank(text), int64_t{4} * kTokens * 4 * (20 + 36));
  EXPECT_EQ(per_rank(vace) - per_rank(text), int64_t{4} * kTokens * 4 * 96);
}

// What step caches keep: the blocks' residual of every token and branch, a copy of the latents; and what is saved where
// the branches go through the blocks one after another: one result of attention.
TEST(Workload, StepCachesKeepWhatTheyReuse) {
  RunSize size = small_video();
  size.prompts = 2;
  const auto of = [&](const auto& change) {
    RunSize changed = size;
    change(changed);
    return workload(model_1_3b(), changed, {});
  };
  const planner::Workload plain = workload(model_1_3b(), size, {});
  const int64_t tokens = 2 * 30 * 52, width = 1536, bf16 = 2, f32 = 4;
  const auto workspace = [](const planner::Workload& w) { return w.experts[0].workspace.count(); };
  EXPECT_EQ(workspace(of([](RunSize& s) { s.keeps_residual = true; })) - workspace(plain),
            2 * tokens * width * bf16 + width * f32);
  EXPECT_EQ(of([](RunSize& s) { s.kept_latents = 2; }).per_rank.count() - plain.per_rank.count(),
            2 * 16 * 2 * 60 * 104 * f32);
  const planner::Workload apart = of([](RunSize& s) { s.branches_apart = true; });
  EXPECT_EQ(workspace(plain) - workspace(apart), tokens * width * bf16);
  EXPECT_EQ(plain.attention.batch, 2);
  EXPECT_EQ(apart.attention.batch, 1);
}

// The longest video at the largest size that options allow, on the largest model that a config allows.
TEST(Workload, AbsurdSizesDoNotWrapRound) {
  ModelConfigs model;
  TransformerConfig transformer;
  transformer.num_attention_heads = 1024;
  transformer.attention_head_dim = 1024;
  transformer.ffn_dim = transformer.text_dim = int64_t{1} << 20;
  transformer.num_layers = 1000;
  model.experts = {transformer};
  model.text_encoder.d_model = model.text_encoder.d_ff = int64_t{1} << 20;
  RunSize size;
  size.height = size.width = 16384;
  size.frames = 4093;
  size.prompts = 2;
  size.transformer = DType::kF32;
  const planner::MemoryPlan plan = planner::memory_model(workload(model, size, {}));
  for (const planner::MemoryPhase& phase : plan.phases) EXPECT_GT(phase.total().gigabytes(), 1) << phase.name;
  EXPECT_GT(plan.peak().total().gigabytes(), 1e6);
}

}  // namespace
}  // namespace zoetrope::wan
