// Small transformers of every class of the family, inputs for them, and a forward on any number of ranks. For tests
// only.
#pragma once

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "base/project_folders.h"
#include "io/weights/formula_testing.h"
#include "io/weights/weights.h"
#include "kernels/pointwise/pointwise.h"
#include "models/testing/golden.h"
#include "models/wan/transformer/transformer.h"

namespace zoetrope::wan::testing {

// Same sums in another order: a few roundings per operation, here against the norm of the result. The reference's own
// float32 error on models of this size is below 4e-7 (tests/golden/README.md); ranks and batches differ less than that.
constexpr double kReordered = 2e-6;

inline std::shared_ptr<const io::WeightSource> open_source(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "weights.json")) return io::procedural_source(folder / "weights.json");
  return io::checkpoint_source(io::Checkpoint::open(folder, "diffusion_pytorch_model"));
}
inline std::shared_ptr<const io::Weights> open_weights(const std::filesystem::path& folder) {
  return std::make_shared<io::Weights>(open_source(folder));
}

// One of the recorded models. Without a name text to video that exists as a formula only: 5 heads of 12, two blocks.
// Of I8 all blocks multiply in int8.
struct Model {
  std::filesystem::path folder;
  TransformerConfig config;
  std::shared_ptr<const TransformerWeights> weights;

  explicit Model(DType dtype = DType::kF32, const std::string& name = "transformer_odd", TensorPart part = {})
      : folder(std::filesystem::path(kGoldenFolder) / name / "transformer"),
        config(config_for(dtype, folder)),
        weights(TransformerWeights::load(
            config, std::make_shared<io::Weights>(TransformerWeights::source_of(open_source(folder), config, part)),
            dtype == DType::kI8 ? DType::kBF16 : dtype, {}, 0, part)) {}

  static TransformerConfig config_for(DType dtype, const std::filesystem::path& folder) {
    const auto whole = TransformerConfig::load(folder / "config.json");
    return dtype == DType::kI8 ? whole.with_int8("all") : whole;
  }
};

// Every class: text to video, images by channels, by keys, with positions, a clean first frame, a control stream, a
// pose and a face.
struct ModelClass {
  const char* name;
  const char* model;
  bool clean_first_frame = false;
};
inline constexpr ModelClass kModelClasses[] = {
    {"t2v", "transformer_odd"},
    {"i2v_channels", "pipelines/wan22_i2v"},
    {"i2v_keys", "pipelines/wan21_i2v"},
    {"flf2v", "pipelines/wan21_flf2v"},
    {"ti2v", "pipelines/wan22_ti2v", true},
    {"vace", "pipelines/wan21_vace"},
    {"animate", "pipelines/wan22_animate"},
};

inline Tensor waves(const Shape& shape, float frequency) {
  Tensor tensor = Tensor::uninitialized(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.data<float>()[i] = std::sin(frequency * static_cast<float>(i % 1009) + 0.1f);
  }
  return tensor;
}

struct Job {
  Shape latent{3, 6, 10};  // 45 tokens
  int64_t batch = 2;
  int64_t group = 0;  // samples that attention takes together; 0: all
  int64_t text_rows = 7;
  std::vector<float> timesteps{999.0f, 401.0f};
  std::vector<int32_t> time_index;
  std::vector<int64_t> key_lengths;
  std::vector<Blocks> blocks;
  attention::Strategy strategy;

  Job() { strategy.layout.ulysses = strategy.layout.ring = 1; }
  int ranks() const { return *strategy.layout.ulysses * *strategy.layout.ring; }
  int64_t tokens(const Model& model) const { return token_grid(model.config, latent).tokens(); }
  // TI2V's image mode: tokens of the first frame have 0, all others the sample's value.
  void clean_first_frame(const Model& model) {
    const int64_t all = tokens(model), first = all / token_grid(model.config, latent).frames;
    timesteps.push_back(0.0f);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t n = 0; n < all; ++n) time_index.push_back(static_cast<int32_t>(n < first ? batch : b));
  }
};

struct Inputs {
  Tensor latents, text, image, control, pose, face;
  std::vector<float> scales;

  Inputs(const Model& model, const Job& job) {
    const TransformerConfig& config = model.config;
    const auto video = [&](int64_t channels, int64_t frames, float frequency) {
      return waves({job.batch, channels, frames, job.latent[1], job.latent[2]}, frequency);
    };
    latents = video(config.in_channels, job.latent[0], 0.37f);
    text = waves({job.batch, job.text_rows, config.text_dim}, 0.73f);
    constexpr int64_t kImageRows = 11;
    if (config.image_dim)
      image = waves({job.batch, config.pos_embed_seq_len.value_or(kImageRows), *config.image_dim}, 0.53f);
    // A frame less than the latents, so that the last tokens have none.
    if (config.vace()) control = video(config.vace_in_channels, std::max<int64_t>(1, job.latent[0] - 1), 0.29f);
    if (config.animate()) {
      const int64_t frames = token_grid(config, job.latent).frames - 1;
      pose = video(config.out_channels, job.latent[0] - 1, 0.31f);
      const Tensor tokens = waves({job.batch, frames, config.face->tokens(), config.inner_dim()}, 0.43f);
      face = Tensor::uninitialized(model.weights->dtype, tokens.shape());
      Stream stream(1);
      kernels::convert(stream, tokens, face);
    }
    for (size_t j = 0; j < config.vace_layers.size(); ++j) scales.push_back(0.7f + 0.6f * static_cast<float>(j));
  }
};

inline attention::ContextAttention plan_attention(const Model& model, const Job& job, comm::Communicator& rank,
                                                  Stream& stream) {
  return attention::plan({.batch = job.group > 0 ? job.group : job.batch,
                          .tokens = job.tokens(model),
                          .heads = model.weights->heads(),
                          .head_dim = model.config.attention_head_dim,
                          .dtype = model.weights->dtype,
                          .scale = 0},
                         job.strategy, rank, stream);
}

// body(a transformer that is ready for forward(), this rank's tokens) on this rank. `sum` as Transformer takes it.
inline void with_transformer(const Model& model, const Job& job, const Inputs& inputs,
                             const std::shared_ptr<TextContext>& context, comm::Communicator& rank,
                             const std::function<void(Transformer&, IndexRange)>& body,
                             encoders::PartialSum* sum = nullptr) {
  Stream stream(1);
  attention::ContextAttention attention = plan_attention(model, job, rank, stream);
  Transformer transformer(model.weights, stream, sum);
  transformer.prepare(job.latent, job.batch, attention,
                      {.timesteps = static_cast<int64_t>(job.timesteps.size()), .keeps_residual = true});
  transformer.set_context(context);
  if (model.config.vace()) transformer.set_control(inputs.control, inputs.scales);
  if (model.config.animate()) transformer.set_animation(inputs.pose, inputs.face);
  body(transformer, attention.tokens());
}

inline std::shared_ptr<TextContext> context_of(const Model& model, const Job& job, const Inputs& inputs) {
  return std::make_shared<TextContext>(model.weights, inputs.text, job.key_lengths, inputs.image);
}

inline Tensor velocity_for(const Model& model, const Job& job, IndexRange tokens) {
  return {model.weights->dtype, {job.batch, tokens.size(), model.config.patch_output_dim()}};
}

// The velocity tokens [B, N, out] of all ranks, which are threads, in token order, after `steps` calls of forward().
inline Tensor run(const Model& model, const Job& job, const Inputs& inputs, int steps = 1) {
  Tensor all(model.weights->dtype, {job.batch, job.tokens(model), model.config.patch_output_dim()});
  const auto context = context_of(model, job, inputs);
  comm::run_ranks(job.ranks(), [&](comm::Communicator& rank) {
    with_transformer(model, job, inputs, context, rank, [&](Transformer& transformer, IndexRange mine) {
      const Tensor velocity = velocity_for(model, job, mine);
      for (int step = 0; step < steps; ++step)
        transformer.forward(inputs.latents, {job.timesteps, job.time_index}, velocity, {}, job.blocks);
      Stream stream(1);
      if (!mine.empty()) copy(stream, all.view().slice(1, mine.begin, mine.end), velocity);
    });
  });
  return all;
}

inline Tensor run(const Model& model, const Job& job) { return run(model, job, Inputs(model, job)); }

}  // namespace zoetrope::wan::testing
