#include "models/reference/text_encoder.h"

#include <cmath>

#include "base/error.h"

namespace zoetrope::reference {

Rows TextEncoder::layer(int64_t index, Rows x) const {
  const std::string attention = fmt::format("encoder.block.{}.layer.0.", index), self = attention + "SelfAttention.";
  const Rows n = norm(attention + "layer_norm.weight", x);
  const Rows q = linear(self + "q", n), k = linear(self + "k", n), v = linear(self + "v", n);
  const std::vector<float> table = parameters_.read(self + "relative_attention_bias.weight", rounding_);
  const auto bias = [&](int64_t head, int64_t query, int64_t key) {
    return static_cast<double>(table[static_cast<size_t>(bucket(key - query) * config_.num_heads + head)]);
  };
  add_to(x, linear(self + "o", attend({q, k, v, config_.num_heads, 1.0, bias}, parameters_.team())));

  const std::string feed_forward = fmt::format("encoder.block.{}.layer.1.", index);
  const std::string dense = feed_forward + "DenseReluDense.";
  const Rows m = norm(feed_forward + "layer_norm.weight", x);
  Rows hidden = linear(dense + "wi_0", m);
  const Rows up = linear(dense + "wi_1", m);
  for (size_t i = 0; i < hidden.values.size(); ++i) hidden.values[i] = gelu_tanh(hidden.values[i]) * up.values[i];
  add_to(x, linear(dense + "wo", hidden));
  return x;
}

// Half of the buckets for keys behind the query; of each half, half are exact distances and the rest grow as powers.
int64_t TextEncoder::bucket(int64_t distance) const {
  const int64_t half = config_.relative_attention_num_buckets / 2, exact = half / 2, a = std::abs(distance);
  const int64_t base = distance > 0 ? half : 0;
  if (a < exact) return base + a;
  const double ratio =
      std::log(static_cast<double>(a) / static_cast<double>(exact)) /
      std::log(static_cast<double>(config_.relative_attention_max_distance) / static_cast<double>(exact));
  return base + std::min(half - 1, exact + static_cast<int64_t>(ratio * static_cast<double>(half - exact)));
}

}  // namespace zoetrope::reference
