#include "models/wan/model_flops.h"

#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

double dense(const ConvLayout& conv, double positions) {
  return 2 * positions * real(conv.in * conv.out * conv.kernel[0] * conv.kernel[1] * conv.kernel[2]);
}

double dense(const ResidualLayout& block, double positions) {
  double sum = dense(block.conv1, positions) + dense(block.conv2, positions);
  if (block.shortcut) sum += dense(*block.shortcut, positions);
  return sum;
}

}  // namespace

ForwardFlop forward_flop(const TransformerConfig& config, int64_t tokens, int64_t text_rows, int64_t image_rows) {
  const double n = real(tokens), d = real(config.inner_dim());
  const double rows = real(text_rows + (config.image_dim ? image_rows : 0));
  ForwardFlop flop;
  flop.linear = 2 * n * (6 * d * d + 2 * d * real(config.ffn_dim));
  flop.feed_forward = 2 * n * 2 * d * real(config.ffn_dim);
  flop.self_attention = 4 * n * n * d;
  flop.cross_attention = 4 * n * rows * d;
  flop.ends = 2 * n * d * real(config.patch_input_dim() + config.patch_output_dim());
  if (config.vace()) {
    const auto hints = static_cast<int64_t>(config.vace_layers.size());
    flop.ends += 2 * n * d * real(config.control_input_dim() + (1 + hints) * config.inner_dim());
  }
  if (config.face) {
    const double adapters = real(config.face_adapters());
    flop.ends += 2 * n * d * (real(config.pose_input_dim()) + adapters * 2 * (d + real(config.face->tokens())));
  }
  flop.embedding = 2 * (real(config.freq_dim) * d + 7 * d * d);
  flop.layers = config.block_count();
  return flop;
}

double vae_decoder_dense_flop(const VaeConfig& config, int64_t frames, int64_t height, int64_t width) {
  const CoderLayout layout = decoder_layout(config);
  double area = real(height * width), time = real(frames), positions = time * area;
  double sum = dense(layout.quant, positions) + dense(layout.in, positions) + dense(layout.middle_first, positions) +
               dense(layout.middle_last, positions) + dense(layout.middle_attention.to_qkv, positions) +
               dense(layout.middle_attention.proj, positions) +
               4 * positions * area * real(layout.middle_attention.proj.in);
  for (const StageLayout& stage : layout.stages) {
    for (const ResidualLayout& block : stage.resnets) sum += dense(block, positions);
    if (!stage.resample) continue;
    if (stage.resample->time) {
      sum += dense(*stage.resample->time, (time - 1) * area);
      time = 2 * time - 1;
    }
    area *= 4;
    positions = time * area;
    sum += dense(stage.resample->spatial, positions);
  }
  return sum + dense(layout.out, positions);
}

}  // namespace zoetrope::wan
