// VACE's second residual stream (wan.md section 3): it starts from control video and embedded latents and passes
// through blocks of its own, each of which gives a hint that is added to the model's stream. The streams alternate, so
// that one hint exists at a time: the one that the model's current block needs.
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/state.h"
#include "tensor/half.h"
#include "trace/trace.h"

namespace zoetrope::wan {

// c = x + proj_in(patches of the control video), zeros in place of patches where it has ended.
void Transformer::State::begin_control(IndexRange samples, const Probe& probe) {
  const trace::Span span(stream.lane(), "control: embedding");
  const Shape cells{control_latents.extent(2), control_latents.extent(3), control_latents.extent(4)};
  const int64_t given = std::clamp<int64_t>(token_grid(config, cells).tokens() - tokens.begin, 0, tokens_local);
  for_each_chunk(samples, [&](const Chunk& chunk) {
    Chunk part = chunk;
    part.end = std::clamp(given, chunk.begin, chunk.end);
    const TensorView c = rows(buffers.control, chunk);
    embed_cells(control_latents, weights->control.patch_embedding, part, c.slice(0, 0, part.rows()));
    const TensorView rest = c.slice(0, part.rows(), chunk.rows());
    if (rest.size() > 0) std::memset(rest.raw(), 0, rest.bytes());
  });
  observe(probe, "vace_patch_embedding", buffers.control.view().slice(1, 0, given));
  const TensorView x = stream_of(samples);
  for_each_chunk(samples, [&](const Chunk& chunk) {
    const TensorView c = rows(buffers.control, chunk), n = operand(chunk.rows(), weights->control.in.weight);
    kernels::convert(stream, c, n);  // what is read may not be what is written
    kernels::PackedGemm call;
    call.residual = rows(x, chunk);
    call.out = c;
    multiply("control: in", n, weights->control.in, call);
  });
}

void Transformer::State::run_control(IndexRange samples, size_t index, const Probe& probe) {
  const std::string label = fmt::format("control block {}", index);
  const trace::Span span(stream.lane(), label.c_str());
  const size_t block = static_cast<size_t>(config.num_layers) + index;
  run_block({weights->blocks[block], block, samples, buffers.control},
            probe ? fmt::format("vace.{}.control", index) : std::string(), probe);
}

// x += hint·scale, hint = proj_out(c); scale and product are rounded to W as the reference does.
void Transformer::State::add_hint(IndexRange samples, size_t index, const Probe& probe) {
  const float given = control_scales[index];
  const float scale = dtype == DType::kBF16 ? to_float(to_bfloat16(given)) : given;
  const TensorView factors = buffers.hint_factors.view().select(0, 0), zeros = buffers.hint_factors.view().select(0, 1);
  std::fill_n(factors.data<float>(), factors.size(), scale);
  std::fill_n(zeros.data<float>(), zeros.size(), 0.0f);
  const TensorView x = stream_of(samples);
  for_each_chunk(samples, [&](const Chunk& chunk) {
    const TensorView c = rows(buffers.control, chunk), hint = rows(buffers.o, chunk), to = rows(x, chunk);
    const LinearWeights& layer = weights->control.hints[index];
    kernels::PackedGemm call;
    call.out = hint;
    multiply("control: hint", as_operand(stream, c, layer.weight, operand(chunk.rows(), layer.weight)), layer, call);
    TensorView added = hint;
    if (scale != 1) {
      added = wide_part(0, chunk.rows(), c.extent(1));
      kernels::affine_channels(stream, hint, factors, zeros, added);
    }
    kernels::gated_add(stream, one_sample(to), one_sample(added), {}, one_sample(to));
  });
  if (probe) observe(probe, "vace." + std::to_string(index) + ".hint", buffers.o);
}

}  // namespace zoetrope::wan
