// check_text_encoder(): wan.md section 5.2 in float64, one layer at a time.
#include <cmath>
#include <map>

#include "base/error.h"
#include "bench/model_check.h"
#include "bench/reference_rows.h"
#include "models/wan/tensor_list.h"
#include "tensor/half.h"

namespace zoetrope::bench {
namespace {

// As in a transformer's block (transformer_check.cpp): the roundings on the longest way through a layer.
constexpr double kRoundings = 16;
constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;
constexpr int64_t kIds = 11;
constexpr int64_t kMostTableElements = int64_t{1} << 26;

class Reference {
 public:
  Reference(const wan::TextEncoderConfig& config, DType dtype, const ReferenceWeights& weights)
      : config_(config), rounding_(rounding_of(dtype)), weights_(weights) {}

  Rows layer(int64_t index, Rows x) const {
    const std::string self = fmt::format("encoder.block.{}.layer.0.", index);
    const Rows n = norm(self + "layer_norm.weight", x);
    const std::string name = self + "SelfAttention.";
    const Rows q = weights_.linear(name + "q", n, rounding_), k = weights_.linear(name + "k", n, rounding_);
    const Rows v = weights_.linear(name + "v", n, rounding_);
    const std::vector<float> table = weights_.read(name + "relative_attention_bias.weight", rounding_);
    const auto bias = [&](int64_t head, int64_t query, int64_t key) {
      return static_cast<double>(table[static_cast<size_t>(bucket(key - query) * config_.num_heads + head)]);
    };
    add_to(x, weights_.linear(name + "o", attend({q, k, v, config_.num_heads, 1.0, bias}), rounding_));

    const std::string feed_forward = fmt::format("encoder.block.{}.layer.1.", index);
    const Rows m = norm(feed_forward + "layer_norm.weight", x);
    Rows hidden = weights_.linear(feed_forward + "DenseReluDense.wi_0", m, rounding_);
    const Rows up = weights_.linear(feed_forward + "DenseReluDense.wi_1", m, rounding_);
    for (size_t i = 0; i < hidden.values.size(); ++i) hidden.values[i] = gelu_tanh(hidden.values[i]) * up.values[i];
    add_to(x, weights_.linear(feed_forward + "DenseReluDense.wo", hidden, rounding_));
    return x;
  }

  Rows norm(const std::string& name, const Rows& x) const {
    const std::vector<float> weight = weights_.read(name, rounding_);
    Rows out = x;
    for (int64_t r = 0; r < x.rows; ++r) {
      double square = 0;
      for (int64_t f = 0; f < x.features; ++f) square += x.feature(f)[r] * x.feature(f)[r];
      const double scale = 1 / std::sqrt(square / static_cast<double>(x.features) + config_.layer_norm_epsilon);
      for (int64_t f = 0; f < x.features; ++f) out.feature(f)[r] *= scale * weight[static_cast<size_t>(f)];
    }
    return out;
  }

 private:
  // Half of the buckets for keys behind the query; of each half, half are exact distances and the rest grow as powers.
  int64_t bucket(int64_t distance) const {
    const int64_t half = config_.relative_attention_num_buckets / 2, exact = half / 2, a = std::abs(distance);
    const int64_t base = distance > 0 ? half : 0;
    if (a < exact) return base + a;
    const double ratio =
        std::log(static_cast<double>(a) / static_cast<double>(exact)) /
        std::log(static_cast<double>(config_.relative_attention_max_distance) / static_cast<double>(exact));
    return base + std::min(half - 1, exact + static_cast<int64_t>(ratio * static_cast<double>(half - exact)));
  }

  const wan::TextEncoderConfig& config_;
  Rounding rounding_;
  const ReferenceWeights& weights_;
};

// The ids' rows of the embedding. A table of gigabytes that is nowhere to look into is not made for this: no rows then,
// and the first layer goes unchecked.
Rows embed(const io::WeightSource& source, const wan::TextEncoderConfig& config, const std::vector<int32_t>& ids,
           Rounding rounding) {
  const std::string name = wan::stored_name(source, wan::kEmbedding);
  TensorView table = source.mapped(name);
  Tensor made;
  if (!table || (table.dtype() != DType::kF32 && table.dtype() != DType::kBF16)) {
    if (config.vocab_size * config.d_model > kMostTableElements) return {};
    made = Tensor(DType::kF32, {config.vocab_size, config.d_model});
    source.read(name, made);
    table = made;
  }
  Rows out(config.d_model, static_cast<int64_t>(ids.size()));
  for (int64_t r = 0; r < out.rows; ++r) {
    const int64_t id = ids[static_cast<size_t>(r)];
    const Rows row = rows_of(table.slice(0, id, id + 1));
    for (int64_t f = 0; f < config.d_model; ++f) {
      const auto value = static_cast<float>(row.values[static_cast<size_t>(f)]);
      out.feature(f)[r] = rounding == Rounding::kBFloat16 ? to_float(to_bfloat16(value)) : value;
    }
  }
  return out;
}

}  // namespace

Verdict check_text_encoder(wan::TextEncoder& encoder, const std::shared_ptr<const io::WeightSource>& source,
                           DType dtype, Stream& stream) {
  const wan::TextEncoderConfig& config = encoder.config();
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kIds; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + 5) % config.vocab_size));
  ids.back() = static_cast<int32_t>(config.eos_token_id);
  std::map<std::string, Rows> values;
  const Tensor out(DType::kF32, {kIds, config.d_model});
  encoder.encode(ids, out, [&](std::string_view name, const TensorView& value) {
    values.emplace(std::string(name), rows_of(value));
  });

  const ReferenceWeights plain(source, stream.team());
  const Reference reference(config, dtype, plain);
  Verdict verdict;
  const auto terms = static_cast<double>(std::max({config.d_ff, config.d_model, config.attention_dim()}));
  verdict.tolerance = kRoundings * (std::sqrt(terms) * kFloatUnit + (dtype == DType::kBF16 ? kBFloatUnit : 0));
  const auto compare = [&](const Rows& value, const Rows& expected) {
    const double error = relative_l2(value, expected);
    verdict.finite = verdict.finite && std::isfinite(error);
    verdict.relative_l2 = std::max(verdict.relative_l2, error);
  };
  const auto block = [&](int64_t index) -> const Rows& { return values.at(fmt::format("block.{}", index)); };

  const Rows embedded = embed(*source, config, ids, rounding_of(dtype));
  if (embedded.rows > 0) compare(block(0), reference.layer(0, embedded));
  const int64_t last = config.num_layers - 1;
  if (last > 0) compare(block(last), reference.layer(last, block(last - 1)));
  compare(rows_of(out), reference.norm("encoder.final_layer_norm.weight", block(last)));
  return verdict;
}

}  // namespace zoetrope::bench
