#include "bench/forward_inputs.h"

#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "bench/attention_data.h"

namespace zoetrope::bench {
namespace {

// A clip of one segment: a frame fewer than the latents, which begin with the reference image.
void add_animation(const wan::TransformerConfig& config, const Shape& latent, DType dtype, Tensor& pose, Tensor& face) {
  const int64_t frames = latent[0] / config.patch_size[0] - 1;
  pose = Tensor(DType::kF32, {1, config.out_channels, latent[0] - 1, latent[1], latent[2]});
  fill_normal(pose, 5);
  face = Tensor(dtype, {1, frames, config.face->tokens(), config.inner_dim()});
  fill_normal(face, 6);
}

}  // namespace

int64_t image_rows(const wan::TransformerConfig& config, const ForwardSize& size) {
  return config.image_dim ? config.pos_embed_seq_len.value_or(size.image_rows) : 0;
}

ForwardInputs::ForwardInputs(const wan::TransformerConfig& config, const ForwardSize& size, DType dtype)
    : scales(config.vace_layers.size(), 1.0f) {
  const auto normal = [](DType type, const Shape& shape, uint64_t seed) {
    Tensor tensor(type, shape);
    fill_normal(tensor, seed);
    return tensor;
  };
  const Shape& latent = size.latent;
  latents = normal(DType::kF32, {1, config.in_channels, latent[0], latent[1], latent[2]}, 1);
  text = normal(dtype, {1, size.text_rows, config.text_dim}, 2);
  if (config.image_dim) image = normal(dtype, {1, image_rows(config, size), *config.image_dim}, 3);
  const int64_t frames = size.control_frames > 0 ? size.control_frames : latent[0];
  if (config.animate()) add_animation(config, latent, dtype, pose, face);
  if (config.vace()) control = normal(DType::kF32, {1, config.vace_in_channels, frames, latent[1], latent[2]}, 4);
}

void ForwardInputs::give(wan::Transformer& transformer, const Probe& probe) const {
  transformer.set_context(text, {}, probe, image ? image.view() : TensorView());
  if (control) transformer.set_control(control, scales);
  if (pose) transformer.set_animation(pose, face);
}

void with_whole_sequence(const wan::TransformerConfig& config, int64_t batch, int64_t tokens, DType dtype,
                         const attention::Strategy& strategy, Stream& stream,
                         const std::function<void(attention::ContextAttention& attention)>& body) {
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    attention::ContextAttention attention = attention::plan({.batch = batch,
                                                             .tokens = tokens,
                                                             .heads = config.num_attention_heads,
                                                             .head_dim = config.attention_head_dim,
                                                             .dtype = dtype,
                                                             .scale = 0},
                                                            strategy, rank, stream);
    body(attention);
  });
}

void with_forward(const std::shared_ptr<const wan::TransformerWeights>& weights, const ForwardSize& size,
                  const attention::Strategy& strategy, Stream& stream,
                  const std::function<void(const std::function<void()>& forward, const TensorView& velocity)>& body) {
  const wan::TransformerConfig& config = weights->config;
  const int64_t tokens = wan::token_grid(config, size.latent).tokens();
  with_whole_sequence(config, 1, tokens, weights->dtype, strategy, stream, [&](attention::ContextAttention& attention) {
    wan::Transformer transformer(weights, stream);
    transformer.prepare(size.latent, 1, attention);
    const ForwardInputs inputs(config, size, weights->dtype);
    const Tensor velocity(weights->dtype, {1, tokens, config.patch_output_dim()});
    inputs.give(transformer);
    const std::vector<float> timesteps{kRunTimestep};
    body([&] { transformer.forward(inputs.latents, timesteps, velocity); }, velocity);
  });
}

}  // namespace zoetrope::bench
