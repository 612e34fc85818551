#include "models/wan/reference/transformer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace zoetrope::wan::reference {
namespace {

Rows layer_norm(const Rows& x, double eps) {
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

// Vector `which` of each token's modulation: the table's plus that of the time embedding, which has one column for all
// tokens or one for each.
class Modulation {
 public:
  Modulation(std::vector<float> table, const Rows& time, int64_t features)
      : table_(std::move(table)), time_(time), features_(features) {}
  // Where all vectors are moved by the same `time`.
  double shared(int64_t which, int64_t f, int64_t row) const { return value(which, f, f, row); }
  double own(int64_t which, int64_t f, int64_t row) const { return value(which, f, which * features_ + f, row); }

 private:
  double value(int64_t which, int64_t f, int64_t from, int64_t row) const {
    return static_cast<double>(table_[static_cast<size_t>(which * features_ + f)]) +
           time_.feature(from)[time_.rows == 1 ? 0 : row];
  }

  std::vector<float> table_;
  const Rows& time_;
  int64_t features_;
};

enum : int64_t { kShift1, kScale1, kGate1, kShift2, kScale2, kGate2 };

// LN(x)·(1 + scale) + shift
Rows modulated_norm(const Rows& x, double eps, const Modulation& by, int64_t scale, int64_t shift) {
  Rows n = layer_norm(x, eps);
  for (int64_t f = 0; f < n.features; ++f)
    for (int64_t r = 0; r < n.rows; ++r)
      n.feature(f)[r] = n.feature(f)[r] * (1 + by.own(scale, f, r)) + by.own(shift, f, r);
  return n;
}

void add_gated(Rows& x, const Rows& branch, const Modulation& by, int64_t gate) {
  for (int64_t f = 0; f < x.features; ++f)
    for (int64_t r = 0; r < x.rows; ++r) x.feature(f)[r] += branch.feature(f)[r] * by.own(gate, f, r);
}

std::vector<int64_t> all_rows(const Rows& x) {
  std::vector<int64_t> all(static_cast<size_t>(x.rows));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

}  // namespace

// A block, from top to bottom. Every branch is added to the stream x; the first and the last are modulated and gated
// by the timestep.
Rows Transformer::self_attention(const std::string& name, const Rows& x, const Rows& time, const Grid& grid,
                                 const std::vector<int64_t>& of) const {
  const Modulation by(parameters_.read(name + "scale_shift_table", Rounding::kFloat32), time, x.features);
  const Rows n = modulated_norm(x, config_.eps, by, kScale1, kShift1);
  Rows q = normed(name + "attn1.to_q", name + "attn1.norm_q", rows_at(n, of));
  Rows k = normed(name + "attn1.to_k", name + "attn1.norm_k", n);
  rotate(q, grid, of);
  rotate(k, grid, all_rows(k));
  return attended(q, k, linear(name + "attn1.to_v", n));
}

Rows Transformer::after_cross_attention(const std::string& name, Rows x, const Rows& attended, const Rows& time,
                                        const Context& context) const {
  const Modulation by(parameters_.read(name + "scale_shift_table", Rounding::kFloat32), time, x.features);
  add_gated(x, linear(name + "attn1.to_out.0", attended), by, kGate1);
  add_to(x, cross_attention(name + "attn2.", config_.cross_attn_norm ? affine_norm(name + "norm2", x, config_.eps) : x,
                            context));
  return x;
}

Rows Transformer::after_feed_forward(const std::string& name, Rows x, const Rows& time) const {
  const Modulation by(parameters_.read(name + "scale_shift_table", Rounding::kFloat32), time, x.features);
  add_gated(x, feed_forward(name + "ffn.", modulated_norm(x, config_.eps, by, kScale2, kShift2)), by, kGate2);
  return x;
}

// The image's keys have a softmax of their own.
Rows Transformer::cross_attention(const std::string& name, const Rows& x, const Context& context) const {
  const Rows q = normed(name + "to_q", name + "norm_q", x);
  Rows sum = attended(q, normed(name + "to_k", name + "norm_k", context.text), linear(name + "to_v", context.text));
  if (context.image.rows > 0)
    add_to(sum, attended(q, normed(name + "add_k_proj", name + "norm_added_k", context.image),
                         linear(name + "add_v_proj", context.image)));
  return linear(name + "to_out.0", sum);
}

Rows Transformer::feed_forward(const std::string& name, const Rows& x) const {
  Rows hidden = linear(name + "net.0.proj", x);
  for (double& value : hidden.values) value = gelu_tanh(value);
  return linear(name + "net.2", hidden);
}

// The norm is over all heads together.
Rows Transformer::normed(const std::string& projection, const std::string& norm, const Rows& x) const {
  return rms_norm(linear(projection, x), parameters_.read(norm + ".weight", rounding_), config_.eps);
}

Rows Transformer::attended(const Rows& q, const Rows& k, const Rows& v) const {
  const double scale = 1 / std::sqrt(static_cast<double>(config_.attention_head_dim));
  return attend({q, k, v, config_.num_attention_heads, scale, {}}, parameters_.team());
}

// Pairs of neighbours are rotated by the token's position along one axis: width and height take 2·⌊D/6⌋ values each,
// time the rest.
void Transformer::rotate(Rows& x, const Grid& grid, const std::vector<int64_t>& tokens) const {
  const int64_t head_dim = config_.attention_head_dim, side = 2 * (head_dim / 6), time = head_dim - 2 * side;
  for (int64_t r = 0; r < x.rows; ++r) {
    const int64_t token = tokens[static_cast<size_t>(r)];
    const int64_t position[] = {token / (grid.height * grid.width), token / grid.width % grid.height,
                                token % grid.width};
    for (int64_t pair = 0; pair < x.features / 2; ++pair) {
      const int64_t f = 2 * pair % head_dim;
      const int axis = f < time ? 0 : f < time + side ? 1 : 2;
      const int64_t within = f - (axis == 0 ? 0 : axis == 1 ? time : time + side);
      const auto extent = static_cast<double>(axis == 0 ? time : side);
      const double angle =
          static_cast<double>(position[axis]) * std::pow(10000.0, -static_cast<double>(within) / extent);
      double &a = x.feature(2 * pair)[r], &b = x.feature(2 * pair + 1)[r];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = rotated;
    }
  }
}

Rows Transformer::affine_norm(const std::string& name, const Rows& x, double eps) const {
  const std::vector<float> weight = parameters_.read(name + ".weight", Rounding::kFloat32);
  const std::vector<float> bias = parameters_.read(name + ".bias", Rounding::kFloat32);
  Rows n = layer_norm(x, eps);
  for (int64_t f = 0; f < x.features; ++f) {
    const auto at = static_cast<size_t>(f);
    for (int64_t r = 0; r < n.rows; ++r) n.feature(f)[r] = n.feature(f)[r] * weight[at] + bias[at];
  }
  return n;
}

Rows Transformer::cells(const TensorView& latents, const Grid& grid) const {
  const auto [pt, ph, pw] = config_.patch_size;
  Rows cells(latents.size() / (grid.frames * grid.height * grid.width), grid.frames * grid.height * grid.width);
  for (int64_t r = 0; r < cells.rows; ++r) {
    const int64_t t = r / (grid.height * grid.width), y = r / grid.width % grid.height, x = r % grid.width;
    for (int64_t f = 0; f < cells.features; ++f) {
      const int64_t c = f / (pt * ph * pw), dt = f / (ph * pw) % pt, dy = f / pw % ph, dx = f % pw;
      const int64_t at =
          ((c * grid.frames * pt + t * pt + dt) * grid.height * ph + y * ph + dy) * grid.width * pw + x * pw + dx;
      cells.feature(f)[r] = rounded(latents.data<float>()[at], rounding_);
    }
  }
  return cells;
}

Rows Transformer::patch_embedding(const Rows& cells) const { return linear("patch_embedding", cells); }

Rows Transformer::text_embedding(const Rows& text) const {
  Rows hidden = linear("condition_embedder.text_embedder.linear_1", text);
  for (double& x : hidden.values) x = gelu_tanh(x);
  return linear("condition_embedder.text_embedder.linear_2", hidden);
}

Rows Transformer::image_embedding(Rows x) const {
  const std::string name = "condition_embedder.image_embedder.";
  if (config_.pos_embed_seq_len) {
    const std::vector<float> positions = parameters_.read(name + "pos_embed", rounding_);  // [S, image_dim]
    for (int64_t f = 0; f < x.features; ++f)
      for (int64_t r = 0; r < x.rows; ++r) x.feature(f)[r] += positions[static_cast<size_t>(r * x.features + f)];
  }
  constexpr double kImageEps = 1e-5;
  Rows hidden = linear(name + "ff.net.0.proj", affine_norm(name + "norm1", x, kImageEps));
  for (double& value : hidden.values) value *= 0.5 * std::erfc(-value / std::sqrt(2.0));
  return affine_norm(name + "norm2", linear(name + "ff.net.2", hidden), kImageEps);
}

Rows Transformer::time_embedding(double timestep) const {
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
  Rows hidden = parameters_.linear("condition_embedder.time_embedder.linear_1", sinusoid, Rounding::kFloat32);
  for (double& x : hidden.values) x = silu(x);
  return parameters_.linear("condition_embedder.time_embedder.linear_2", hidden, Rounding::kFloat32);
}

Rows Transformer::time_projection(Rows time_embedding) const {
  for (double& x : time_embedding.values) x = silu(x);
  return linear("condition_embedder.time_proj", time_embedding);
}

Rows Transformer::head(const Rows& x, const Rows& time_embedding) const {
  enum : int64_t { kShift, kScale };
  const Modulation by(parameters_.read("scale_shift_table", Rounding::kFloat32), time_embedding, x.features);
  Rows n = layer_norm(x, config_.eps);
  for (int64_t f = 0; f < n.features; ++f)
    for (int64_t r = 0; r < n.rows; ++r)
      n.feature(f)[r] = n.feature(f)[r] * (1 + by.shared(kScale, f, r)) + by.shared(kShift, f, r);
  return linear("proj_out", n);
}

Rows Transformer::control_patches(const Rows& cells) const { return linear("vace_patch_embedding", cells); }

Rows Transformer::control_in(const Rows& patches, const Rows& x) const {
  Rows control = linear("vace_blocks.0.proj_in", patches);
  add_to(control, x);
  return control;
}

Rows Transformer::hint(size_t index, const Rows& control) const {
  return linear(fmt::format("vace_blocks.{}.proj_out", index), control);
}

Rows Transformer::pose_patches(const Rows& cells) const { return linear("pose_patch_embedding", cells); }

// The norm is over a head, with the same weights for each.
Rows Transformer::normed_by_head(const std::string& projection, const std::string& norm, const Rows& x) const {
  Rows y = linear(projection, x);
  const std::vector<float> weight = parameters_.read(norm + ".weight", rounding_);
  const int64_t head_dim = config_.attention_head_dim;
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    Rows part(head_dim, y.rows);
    std::copy_n(y.feature(head * head_dim), part.values.size(), part.values.begin());
    part = rms_norm(part, weight, config_.eps);
    std::copy(part.values.begin(), part.values.end(), y.feature(head * head_dim));
  }
  return y;
}

// Every token attends to the face of its own frame.
Rows Transformer::face_adapter(size_t index, const Rows& x, const Rows& face) const {
  const std::string name = fmt::format("face_adapter.{}.", index);
  const Rows n = layer_norm(x, config_.eps), m = layer_norm(face, config_.eps);
  const Rows q = normed_by_head(name + "to_q", name + "norm_q", n);
  const Rows k = normed_by_head(name + "to_k", name + "norm_k", m), v = linear(name + "to_v", m);
  const int64_t frames = face.rows / config_.face->tokens(), tokens = x.rows / frames;
  const auto rows_of_frame = [](const Rows& all, int64_t frame, int64_t count) {
    Rows some(all.features, count);
    for (int64_t f = 0; f < all.features; ++f) std::copy_n(all.feature(f) + frame * count, count, some.feature(f));
    return some;
  };
  Rows o(q.features, q.rows);
  for (int64_t frame = 0; frame < frames; ++frame) {
    const int64_t keys = config_.face->tokens();
    const Rows part =
        attended(rows_of_frame(q, frame, tokens), rows_of_frame(k, frame, keys), rows_of_frame(v, frame, keys));
    for (int64_t f = 0; f < o.features; ++f) std::copy_n(part.feature(f), tokens, o.feature(f) + frame * tokens);
  }
  return linear(name + "to_out", o);
}

}  // namespace zoetrope::wan::reference
