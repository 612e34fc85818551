// Before and after the blocks: latents to tokens, timesteps to modulations, tokens to velocity
// (wan.md sections 2.1, 2.3 and 2.5).
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/state.h"
#include "models/wan/transformer/timestep.h"
#include "tensor/half.h"
#include "trace/trace.h"

namespace zoetrope::wan {

// The chunk's patches of these latents through a convolution, into rows [M, d]; `chunk` counts the rank's tokens.
void Transformer::State::embed_cells(const TensorView& latents, const LinearWeights& layer, const Chunk& chunk,
                                     const TensorView& out) const {
  if (chunk.rows() == 0) return;
  const IndexRange positions{tokens.begin + chunk.begin, tokens.begin + chunk.end};
  const TensorView cells = wide_part(0, chunk.rows(), layer.weight.k);
  patchify(stream, latents.slice(0, chunk.sample, chunk.sample + 1), config.patch_size, positions, one_sample(cells));
  kernels::PackedGemm call;
  call.out = out;
  const TensorView n = as_operand(stream, cells, layer.weight, operand(chunk.rows(), layer.weight));
  multiply("patch embedding: product", n, layer, call);
}

void Transformer::State::embed_tokens(const TensorView& latents, const Probe& probe) {
  const trace::Span span(stream.lane(), "patch embedding");
  for_each_chunk({0, batch}, [&](const Chunk& chunk) {
    embed_cells(latents, weights->patch_embedding, chunk, rows(buffers.x, chunk));
  });
  observe(probe, "patch_embedding", buffers.x);
}

void Transformer::State::embed_time(const Timesteps& of, const Probe& probe) {
  const trace::Span span(stream.lane(), "time embedding");
  timesteps = static_cast<int64_t>(of.values.size());
  const auto used = [&](const Tensor& booked) { return booked.view().slice(0, 0, timesteps); };
  const TensorView sinusoid = used(buffers.sinusoid), hidden = used(buffers.time_hidden),
                   wide = used(buffers.time_float), temb = used(buffers.temb), act = used(buffers.time_act),
                   proj = used(buffers.time_proj);
  timestep_sinusoid(of.values, sinusoid);
  linear(stream, sinusoid, weights->time_in, hidden, kernels::Activation::kSilu);
  linear(stream, hidden, weights->time_out, wide);
  kernels::convert(stream, wide, temb);
  observe(probe, "temb", temb);
  kernels::convert(stream, temb, wide);
  kernels::activate(stream, kernels::Activation::kSilu, temb, act);
  linear(stream, act, weights->time_proj, proj);
  observe(probe, "timestep_proj", proj);
}

// As above, without roundings. Weights of W can only be multiplied by operands of W, so the rounding error of the
// operand is multiplied, too.
Transformer::TimeEmbedding Transformer::State::embed_time_in_float(const Timesteps& of) {
  const trace::Span span(stream.lane(), "time embedding");
  timesteps = static_cast<int64_t>(of.values.size());
  const auto used = [&](const Tensor& booked) { return booked.view().slice(0, 0, timesteps); };
  const TensorView sinusoid = used(buffers.sinusoid), hidden = used(buffers.time_hidden),
                   temb = used(buffers.time_float), act = used(buffers.time_act), rest = used(buffers.time_proj);
  const TensorView proj = used(buffers.proj_float).reshape(rest.shape());
  timestep_sinusoid(of.values, sinusoid);
  linear(stream, sinusoid, weights->time_in, hidden, kernels::Activation::kSilu);
  linear(stream, hidden, weights->time_out, temb);
  kernels::activate(stream, kernels::Activation::kSilu, temb, hidden);
  kernels::convert(stream, hidden, act);
  linear(stream, act, weights->time_proj, proj);
  if (act.dtype() == DType::kBF16) {
    auto* const rounded = act.data<BFloat16>();
    for (int64_t i = 0; i < act.size(); ++i) rounded[i] = to_bfloat16(hidden.data<float>()[i] - to_float(rounded[i]));
    linear(stream, act, {weights->time_proj.weight, {}}, rest);
    kernels::gated_add(stream, one_sample(proj), one_sample(rest), {}, one_sample(proj));
  }
  return {temb, proj};
}

// Shifts, scales and gates of all blocks and the head: their tables plus the time embedding, for every timestep.
void Transformer::State::modulate() {
  const trace::Span span(stream.lane(), "modulation");
  const auto add = [&](const TensorView& table, const TensorView& added, const TensorView& out) {  // all [R, d] F32
    kernels::gated_add(stream, one_sample(table), one_sample(added), {}, one_sample(out));
  };
  const TensorView proj = buffers.time_proj.view().slice(0, 0, timesteps);
  kernels::convert(stream, proj, buffers.proj_float.view().slice(0, 0, timesteps).reshape(proj.shape()));
  for (int64_t set = 0; set < timesteps; ++set) {
    const TensorView time = buffers.proj_float.view().select(0, set);
    for (size_t i = 0; i < weights->blocks.size(); ++i)
      add(weights->blocks[i].modulation, time, modulation(i).select(0, set));
    const TensorView head = buffers.head_rows.view().select(0, set);
    for (int64_t row = 0; row < kHeadRows; ++row)  // both rows are moved by the same time embedding
      add(weights->head_modulation.slice(0, row, row + 1), buffers.time_float.view().slice(0, set, set + 1),
          head.slice(0, row, row + 1));
  }
}

void Transformer::State::project_out(const TensorView& velocity_tokens, const Probe& probe) {
  for_each_chunk({0, batch}, [&](const Chunk& chunk) {
    const TensorView n = modulated("head: norm", rows(buffers.x, chunk), chunk, buffers.head_rows, kHeadScale,
                                   kHeadShift, weights->proj_out.weight);
    kernels::PackedGemm call;
    call.out = rows(velocity_tokens, chunk);
    multiply("head", n, weights->proj_out, call);
  });
  observe(probe, "proj_out", velocity_tokens);
}

}  // namespace zoetrope::wan
