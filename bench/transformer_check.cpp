// check_transformer(): wan.md section 2 in float64, one block at a time.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
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
constexpr int64_t kTextRows = 5;
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
      const double angle = timestep * std::exp(-std::log(10000.0) * static_cast<double>(k) / static_cast<double>(half));
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

  Rows block(int64_t index, Rows x, const Rows& time, const Rows& text, const Grid& grid) const {
    const std::string name = fmt::format("blocks.{}.", index);
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
    add_gated(attention(name + "attn1.", modulated(0), nullptr, &grid), 2);
    Rows n = x;
    if (config_.cross_attn_norm) {
      const std::vector<float> weight = weights_.read(name + "norm2.weight", Rounding::kFloat32);
      const std::vector<float> bias = weights_.read(name + "norm2.bias", Rounding::kFloat32);
      n = layer_norm(x);
      for (int64_t f = 0; f < d_; ++f) {
        const auto at = static_cast<size_t>(f);
        for (int64_t r = 0; r < n.rows; ++r) n.feature(f)[r] = n.feature(f)[r] * weight[at] + bias[at];
      }
    }
    add_to(x, attention(name + "attn2.", n, &text, nullptr));
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
  Rows layer_norm(const Rows& x) const {
    Rows out(x.features, x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      double mean = 0, square = 0;
      for (int64_t f = 0; f < x.features; ++f) mean += x.feature(f)[r];
      mean /= static_cast<double>(x.features);
      for (int64_t f = 0; f < x.features; ++f) square += std::pow(x.feature(f)[r] - mean, 2);
      const double scale = 1 / std::sqrt(square / static_cast<double>(x.features) + config_.eps);
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

  Rows attention(const std::string& name, const Rows& n, const Rows* text, const Grid* grid) const {
    const Rows& keys_of = text != nullptr ? *text : n;
    Rows q = weights_.linear(name + "to_q", n, rounding_), k = weights_.linear(name + "to_k", keys_of, rounding_);
    const Rows v = weights_.linear(name + "to_v", keys_of, rounding_);
    rms_norm(name + "norm_q.weight", q);
    rms_norm(name + "norm_k.weight", k);
    if (grid != nullptr) {
      rotate(q, *grid);
      rotate(k, *grid);
    }
    const double scale = 1 / std::sqrt(static_cast<double>(config_.attention_head_dim));
    return weights_.linear(name + "to_out.0", attend({q, k, v, config_.num_attention_heads, scale, {}}), rounding_);
  }

  const TransformerConfig& config_;
  Rounding rounding_;
  const ReferenceWeights& weights_;
  int64_t d_;
};

using Values = std::map<std::string, Rows>;

// What the model makes of a small latent, by the names of its probe.
Values run_small(const std::shared_ptr<const wan::TransformerWeights>& weights, const Tensor& latents,
                 const Tensor& text, Stream& stream) {
  const TransformerConfig& config = weights->config;
  const Shape latent{latents.shape()[2], latents.shape()[3], latents.shape()[4]};
  const int64_t tokens = wan::token_grid(config, latent).tokens();
  Values values;
  const wan::Probe keep = [&](std::string_view name, const TensorView& value) {
    values.emplace(std::string(name), rows_of(value));
  };
  with_whole_sequence(config, tokens, weights->dtype, stream, [&](attention::ContextAttention& attention) {
    wan::Transformer transformer(weights, stream);
    transformer.prepare(latent, 1, attention);
    transformer.set_context(text, {}, keep);
    const Tensor velocity(weights->dtype, {1, tokens, config.patch_output_dim()});
    transformer.forward(latents, std::vector<float>{kTimestep}, velocity, keep);
  });
  return values;
}

// [C·pt·ph·pw, tokens] as the model reads them, rounded to its dtype.
Rows cells_of(const TransformerConfig& config, const Tensor& latents, const Grid& grid, Rounding rounding) {
  const auto [pt, ph, pw] = config.patch_size;
  Rows cells(config.patch_input_dim(), grid.frames * grid.height * grid.width);
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

Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream) {
  const TransformerConfig& config = weights->config;
  const Grid grid{2, 2, 3};
  const Tensor latents(DType::kF32, {1, config.in_channels, grid.frames * config.patch_size[0],
                                     grid.height * config.patch_size[1], grid.width * config.patch_size[2]});
  const Tensor text(weights->dtype, {1, kTextRows, config.text_dim});
  fill_normal(latents, 1);
  fill_normal(text, 2);
  const Values values = run_small(weights, latents, text, stream);
  const ReferenceWeights plain(source, stream.team());
  const Reference reference(config, weights->dtype, plain);

  Verdict verdict;
  verdict.tolerance = stage_tolerance(config, weights->dtype);
  const auto value = [&](const std::string& name) -> const Rows& {
    const auto found = values.find(name);
    ZT_CHECK(found != values.end(), "the transformer does not show '{}'", name);
    return found->second;
  };
  const auto compare = [&](const std::string& name, const Rows& expected) {
    const double error = relative_l2(value(name), expected);
    verdict.finite = verdict.finite && std::isfinite(error);
    verdict.relative_l2 = std::max(verdict.relative_l2, error);
  };
  compare("patch_embedding", reference.patch_embedding(cells_of(config, latents, grid, rounding_of(weights->dtype))));
  compare("text_embedding", reference.text(rows_of(text)));
  compare("temb", reference.temb(kTimestep));
  Rows temb(config.inner_dim(), 1);
  temb.values = value("temb").values;
  compare("timestep_proj", reference.time_projection(temb));
  const int64_t last = config.num_layers - 1;
  const auto block = [&](int64_t index) {
    const std::string before = index == 0 ? "patch_embedding" : fmt::format("block.{}", index - 1);
    compare(fmt::format("block.{}", index),
            reference.block(index, value(before), value("timestep_proj"), value("text_embedding"), grid));
  };
  block(0);
  if (last > 0) block(last);
  compare("proj_out", reference.head(value(fmt::format("block.{}", last)), temb));
  return verdict;
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
