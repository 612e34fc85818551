// check_transformer(): wan.md section 2 in float64, one block at a time.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "bench/forward_inputs.h"
#include "bench/model_check.h"
#include "bench/reference_rows.h"
#include "bench/whole_sequence.h"
#include "models/wan/tensor_list.h"
#include "models/wan/transformer/transformer.h"
#include "tensor/half.h"

namespace zoetrope::bench {
namespace {

using wan::TransformerConfig;

// Rounding points on the longest way through a block: norm, projection, head norm, rotation, scores, probabilities,
// attention, projection, gate and sum, some of them twice in the three branches. Each is off by at most u relative to
// its own norm, and norms of branches add up to no more than that of the sum times a small factor.
constexpr double kRoundings = 16;
constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;
constexpr int64_t kTextRows = 5, kImageRows = 3, kControlFrames = 1;
constexpr float kTimestep = 500;

// Sums of K terms in float32 are off by √K·u where roundings are independent.
double stage_tolerance(const TransformerConfig& config, DType dtype) {
  const auto terms = static_cast<double>(std::max({config.ffn_dim, config.inner_dim(), config.text_dim}));
  return kRoundings * (std::sqrt(terms) * kFloatUnit + (dtype == DType::kBF16 ? kBFloatUnit : 0));
}

struct Grid {
  int64_t frames, height, width;
};

class Reference {
 public:
  Reference(const TransformerConfig& config, DType dtype, const ReferenceWeights& weights)
      : config_(config), rounding_(rounding_of(dtype)), weights_(weights), d_(config.inner_dim()) {}

  Rows text(const Rows& rows) const {
    Rows hidden = weights_.linear("condition_embedder.text_embedder.linear_1", rows, rounding_);
    for (double& x : hidden.values) x = gelu_tanh(x);
    return weights_.linear("condition_embedder.text_embedder.linear_2", hidden, rounding_);
  }

  Rows patch_embedding(const Rows& cells) const { return weights_.linear("patch_embedding", cells, rounding_); }

  Rows temb(double timestep) const {
    const int64_t half = config_.freq_dim / 2;
    Rows sinusoid(config_.freq_dim, 1);
    for (int64_t k = 0; k < half; ++k) {
      // Frequencies and angles are float32 by definition: exact ones are another function (timestep.h).
      const float exponent = static_cast<float>(-std::log(10000.0)) * static_cast<float>(k) / static_cast<float>(half);
      const double angle = static_cast<float>(timestep) * std::exp(exponent);
      sinusoid.values[static_cast<size_t>(k)] = std::cos(angle);
      sinusoid.values[static_cast<size_t>(half + k)] = std::sin(angle);
    }
    // These two are float32 whatever the model's dtype.
    Rows hidden = weights_.linear("condition_embedder.time_embedder.linear_1", sinusoid, Rounding::kFloat32);
    for (double& x : hidden.values) x = silu(x);
    return weights_.linear("condition_embedder.time_embedder.linear_2", hidden, Rounding::kFloat32);
  }

  Rows time_projection(Rows temb) const {
    for (double& x : temb.values) x = silu(x);
    return weights_.linear("condition_embedder.time_proj", temb, rounding_);
  }

  // Rows of an image [S, image_dim] as context rows.
  Rows image(Rows x) const {
    const std::string name = "condition_embedder.image_embedder.";
    if (config_.pos_embed_seq_len) {
      const std::vector<float> positions = weights_.read(name + "pos_embed", rounding_);  // [S, image_dim]
      for (int64_t f = 0; f < x.features; ++f)
        for (int64_t r = 0; r < x.rows; ++r) x.feature(f)[r] += positions[static_cast<size_t>(r * x.features + f)];
    }
    constexpr double kImageEps = 1e-5;
    Rows hidden = weights_.linear(name + "ff.net.0.proj", affine_norm(name + "norm1", x, kImageEps), rounding_);
    for (double& value : hidden.values) value *= 0.5 * std::erfc(-value / std::sqrt(2.0));
    return affine_norm(name + "norm2", weights_.linear(name + "ff.net.2", hidden, rounding_), kImageEps);
  }

  Rows control_patches(const Rows& cells) const { return weights_.linear("vace_patch_embedding", cells, rounding_); }
  Rows control_in(const Rows& patches, const Rows& x) const {
    Rows c = weights_.linear("vace_blocks.0.proj_in", patches, rounding_);
    add_to(c, x);
    return c;
  }
  Rows hint(size_t index, const Rows& control) const {
    return weights_.linear(fmt::format("vace_blocks.{}.proj_out", index), control, rounding_);
  }

  struct Context {
    Rows text, image;  // the second without rows where the model looks at none
  };
  // `name` ends in a dot.
  Rows block(const std::string& name, Rows x, const Rows& time, const Context& context, const Grid& grid) const {
    std::vector<float> table = weights_.read(name + "scale_shift_table", Rounding::kFloat32);
    const auto row = [&](int64_t which, int64_t f) {  // shift1, scale1, gate1, shift2, scale2, gate2
      return static_cast<double>(table[static_cast<size_t>(which * d_ + f)]) +
             time.values[static_cast<size_t>(which * d_ + f)];
    };
    const auto add_gated = [&](const Rows& branch, int64_t gate) {
      for (int64_t f = 0; f < d_; ++f) {
        for (int64_t r = 0; r < x.rows; ++r) x.feature(f)[r] += branch.feature(f)[r] * row(gate, f);
      }
    };
    const auto modulated = [&](int64_t shift) {
      Rows n = layer_norm(x);
      for (int64_t f = 0; f < d_; ++f) {
        for (int64_t r = 0; r < n.rows; ++r)
          n.feature(f)[r] = n.feature(f)[r] * (1 + row(shift + 1, f)) + row(shift, f);
      }
      return n;
    };
    add_gated(self_attention(name + "attn1.", modulated(0), grid), 2);
    const Rows n = config_.cross_attn_norm ? affine_norm(name + "norm2", x, config_.eps) : x;
    add_to(x, cross_attention(name + "attn2.", n, context));
    Rows hidden = weights_.linear(name + "ffn.net.0.proj", modulated(3), rounding_);
    for (double& value : hidden.values) value = gelu_tanh(value);
    add_gated(weights_.linear(name + "ffn.net.2", hidden, rounding_), 5);
    return x;
  }

  Rows head(const Rows& x, const Rows& temb) const {
    const std::vector<float> table = weights_.read("scale_shift_table", Rounding::kFloat32);
    Rows n = layer_norm(x);
    for (int64_t f = 0; f < d_; ++f) {
      const double shift = table[static_cast<size_t>(f)] + temb.values[static_cast<size_t>(f)];
      const double scale = table[static_cast<size_t>(d_ + f)] + temb.values[static_cast<size_t>(f)];
      for (int64_t r = 0; r < n.rows; ++r) n.feature(f)[r] = n.feature(f)[r] * (1 + scale) + shift;
    }
    return weights_.linear("proj_out", n, rounding_);
  }

 private:
  Rows affine_norm(const std::string& name, const Rows& x, double eps) const {
    const std::vector<float> weight = weights_.read(name + ".weight", Rounding::kFloat32);
    const std::vector<float> bias = weights_.read(name + ".bias", Rounding::kFloat32);
    Rows n = layer_norm(x, eps);
    for (int64_t f = 0; f < x.features; ++f) {
      const auto at = static_cast<size_t>(f);
      for (int64_t r = 0; r < n.rows; ++r) n.feature(f)[r] = n.feature(f)[r] * weight[at] + bias[at];
    }
    return n;
  }

  Rows layer_norm(const Rows& x) const { return layer_norm(x, config_.eps); }
  static Rows layer_norm(const Rows& x, double eps) {
    Rows out(x.features, x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      double mean = 0, square = 0;
      for (int64_t f = 0; f < x.features; ++f) mean += x.feature(f)[r];
      mean /= static_cast<double>(x.features);
      for (int64_t f = 0; f < x.features; ++f) square += std::pow(x.feature(f)[r] - mean, 2);
      const double scale = 1 / std::sqrt(square / static_cast<double>(x.features) + eps);
      for (int64_t f = 0; f < x.features; ++f) out.feature(f)[r] = (x.feature(f)[r] - mean) * scale;
    }
    return out;
  }

  // Over all heads together.
  void rms_norm(const std::string& name, Rows& x) const {
    const std::vector<float> weight = weights_.read(name, rounding_);
    for (int64_t r = 0; r < x.rows; ++r) {
      double square = 0;
      for (int64_t f = 0; f < x.features; ++f) square += x.feature(f)[r] * x.feature(f)[r];
      const double scale = 1 / std::sqrt(square / static_cast<double>(x.features) + config_.eps);
      for (int64_t f = 0; f < x.features; ++f) x.feature(f)[r] *= scale * weight[static_cast<size_t>(f)];
    }
  }

  // Pairs of neighbours turn by the token's place along one axis: width and height take 2·⌊D/6⌋ values each, time the
  // rest.
  void rotate(Rows& x, const Grid& grid) const {
    const int64_t head_dim = config_.attention_head_dim, side = 2 * (head_dim / 6), time = head_dim - 2 * side;
    for (int64_t r = 0; r < x.rows; ++r) {
      const int64_t place[] = {r / (grid.height * grid.width), r / grid.width % grid.height, r % grid.width};
      for (int64_t pair = 0; pair < x.features / 2; ++pair) {
        const int64_t f = 2 * pair % head_dim;
        const int axis = f < time ? 0 : f < time + side ? 1 : 2;
        const int64_t within = f - (axis == 0 ? 0 : axis == 1 ? time : time + side);
        const auto extent = static_cast<double>(axis == 0 ? time : side);
        const double angle =
            static_cast<double>(place[axis]) * std::pow(10000.0, -static_cast<double>(within) / extent);
        double &a = x.feature(2 * pair)[r], &b = x.feature(2 * pair + 1)[r];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  Rows normed(const std::string& name, const char* product, const char* norm, const Rows& from) const {
    Rows rows = weights_.linear(name + product, from, rounding_);
    rms_norm(name + norm + ".weight", rows);
    return rows;
  }
  Rows attended(const Rows& q, const Rows& k, const Rows& v) const {
    const double scale = 1 / std::sqrt(static_cast<double>(config_.attention_head_dim));
    return attend({q, k, v, config_.num_attention_heads, scale, {}});
  }

  Rows self_attention(const std::string& name, const Rows& n, const Grid& grid) const {
    Rows q = normed(name, "to_q", "norm_q", n), k = normed(name, "to_k", "norm_k", n);
    rotate(q, grid);
    rotate(k, grid);
    return weights_.linear(name + "to_out.0", attended(q, k, weights_.linear(name + "to_v", n, rounding_)), rounding_);
  }

  // The image's keys have a softmax of their own.
  Rows cross_attention(const std::string& name, const Rows& n, const Context& context) const {
    const Rows q = normed(name, "to_q", "norm_q", n);
    Rows sum = attended(q, normed(name, "to_k", "norm_k", context.text),
                        weights_.linear(name + "to_v", context.text, rounding_));
    if (context.image.rows > 0)
      add_to(sum, attended(q, normed(name, "add_k_proj", "norm_added_k", context.image),
                           weights_.linear(name + "add_v_proj", context.image, rounding_)));
    return weights_.linear(name + "to_out.0", sum, rounding_);
  }

  const TransformerConfig& config_;
  Rounding rounding_;
  const ReferenceWeights& weights_;
  int64_t d_;
};

using Values = std::map<std::string, Rows>;

// What the model makes of small inputs, by the names of its probe.
Values run_small(const std::shared_ptr<const wan::TransformerWeights>& weights, const ForwardInputs& inputs,
                 const Shape& latent, Stream& stream) {
  const TransformerConfig& config = weights->config;
  const int64_t tokens = wan::token_grid(config, latent).tokens();
  Values values;
  const wan::Probe keep = [&](std::string_view name, const TensorView& value) {
    values.emplace(std::string(name), rows_of(value));
  };
  with_whole_sequence(config, tokens, weights->dtype, stream, [&](attention::ContextAttention& attention) {
    wan::Transformer transformer(weights, stream);
    transformer.prepare(latent, 1, attention);
    inputs.give(transformer, keep);
    const Tensor velocity(weights->dtype, {1, tokens, config.patch_output_dim()});
    transformer.forward(inputs.latents, std::vector<float>{kTimestep}, velocity, keep);
  });
  return values;
}

// [C·pt·ph·pw, tokens] as the model reads them, rounded to its dtype.
Rows cells_of(const TransformerConfig& config, const Tensor& latents, const Grid& grid, Rounding rounding) {
  const auto [pt, ph, pw] = config.patch_size;
  Rows cells(latents.shape()[1] * config.patch_volume(), grid.frames * grid.height * grid.width);
  for (int64_t r = 0; r < cells.rows; ++r) {
    const int64_t t = r / (grid.height * grid.width), y = r / grid.width % grid.height, x = r % grid.width;
    for (int64_t f = 0; f < cells.features; ++f) {
      const int64_t c = f / (pt * ph * pw), dt = f / (ph * pw) % pt, dy = f / pw % ph, dx = f % pw;
      const int64_t at =
          ((c * grid.frames * pt + t * pt + dt) * grid.height * ph + y * ph + dy) * grid.width * pw + x * pw + dx;
      const float value = latents.data<float>()[at];
      cells.feature(f)[r] = rounding == Rounding::kBFloat16 ? to_float(to_bfloat16(value)) : value;
    }
  }
  return cells;
}

}  // namespace

namespace {

// A model's stages beside the reference's, each from what the model itself made before it.
class Comparison {
 public:
  Comparison(const Values& values, double tolerance) : values_(values) { verdict_.tolerance = tolerance; }

  const Rows& value(const std::string& name) const {
    const auto found = values_.find(name);
    ZT_CHECK(found != values_.end(), "the transformer does not show '{}'", name);
    return found->second;
  }
  void stage(const std::string& name, const Rows& expected) {
    const double error = relative_l2(value(name), expected);
    verdict_.finite = verdict_.finite && std::isfinite(error);
    verdict_.relative_l2 = std::max(verdict_.relative_l2, error);
  }
  // What a block of the model's stream hands on: its own result, and the hint that follows it.
  Rows after(const TransformerConfig& config, int64_t block) const {
    if (block < 0) return value("patch_embedding");
    Rows x = value(fmt::format("block.{}", block));
    const auto& layers = config.vace_layers;
    const auto found = std::find(layers.begin(), layers.end(), block);
    if (found != layers.end()) add_to(x, value(fmt::format("vace.{}.hint", found - layers.begin())));
    return x;
  }
  const Verdict& verdict() const { return verdict_; }

 private:
  const Values& values_;
  Verdict verdict_;
};

// The control stream's beginning, its first and last block and their hints.
void compare_control(Comparison& compare, const Reference& reference, const TransformerConfig& config,
                     const ForwardInputs& inputs, const Reference::Context& context, const Grid& grid,
                     Rounding rounding) {
  const Rows& x = compare.value("patch_embedding");
  const Rows cells = cells_of(config, inputs.control, {kControlFrames, grid.height, grid.width}, rounding);
  compare.stage("vace_patch_embedding", reference.control_patches(cells));
  // Where the control video has ended, rows of zero.
  const Rows& patches = compare.value("vace_patch_embedding");
  Rows padded(patches.features, x.rows);
  for (int64_t f = 0; f < patches.features; ++f) std::copy_n(patches.feature(f), patches.rows, padded.feature(f));
  const size_t last = config.vace_layers.size() - 1;
  for (size_t j = 0; j <= last; j += std::max<size_t>(1, last)) {
    const Rows c = j == 0 ? reference.control_in(padded, x) : compare.value(fmt::format("vace.{}.control", j - 1));
    const std::string name = fmt::format("vace.{}.", j);
    compare.stage(name + "control",
                  reference.block(fmt::format("vace_blocks.{}.", j), c, compare.value("timestep_proj"), context, grid));
    compare.stage(name + "hint", reference.hint(j, compare.value(name + "control")));
  }
}

}  // namespace

Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream) {
  const TransformerConfig& config = weights->config;
  const Grid grid{2, 2, 3};
  const auto& patch = config.patch_size;
  const ForwardSize size{.latent = {grid.frames * patch[0], grid.height * patch[1], grid.width * patch[2]},
                         .text_rows = kTextRows,
                         .image_rows = kImageRows,
                         .control_frames = kControlFrames * patch[0]};
  const ForwardInputs inputs(config, size, weights->dtype);
  const Values values = run_small(weights, inputs, size.latent, stream);
  const ReferenceWeights plain(source, stream.team());
  const Reference reference(config, weights->dtype, plain);
  const Rounding rounding = rounding_of(weights->dtype);

  Comparison compare(values, stage_tolerance(config, weights->dtype));
  compare.stage("patch_embedding", reference.patch_embedding(cells_of(config, inputs.latents, grid, rounding)));
  compare.stage("text_embedding", reference.text(rows_of(inputs.text)));
  Reference::Context context{compare.value("text_embedding"), {}};
  if (inputs.image) {
    compare.stage("image_embedding", reference.image(rows_of(inputs.image)));
    context.image = compare.value("image_embedding");
  }
  compare.stage("temb", reference.temb(kTimestep));
  Rows temb(config.inner_dim(), 1);
  temb.values = compare.value("temb").values;
  compare.stage("timestep_proj", reference.time_projection(temb));
  if (config.vace()) compare_control(compare, reference, config, inputs, context, grid, rounding);
  const int64_t last = config.num_layers - 1;
  const auto block = [&](int64_t index) {
    compare.stage(fmt::format("block.{}", index),
                  reference.block(fmt::format("blocks.{}.", index), compare.after(config, index - 1),
                                  compare.value("timestep_proj"), context, grid));
  };
  block(0);
  if (last > 0) block(last);
  compare.stage("proj_out", reference.head(compare.after(config, last), temb));
  return compare.verdict();
}

std::string degenerate(const TensorView& result) {
  const Rows rows = rows_of(result);
  double sum = 0, square = 0;
  for (const double x : rows.values) {
    if (!std::isfinite(x)) return "WRONG: not finite";
    sum += x;
    square += x * x;
  }
  const auto count = static_cast<double>(rows.values.size());
  const double variance = square / count - sum / count * (sum / count);
  // Rounding alone leaves that much of values that are all alike.
  if (!(variance > 1e-12 * square / count)) return "WRONG: all values are alike";
  return {};
}

}  // namespace zoetrope::bench
