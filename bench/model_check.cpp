#include "bench/model_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "bench/forward_inputs.h"
#include "models/encoders/tensor_tables.h"
#include "models/reference/text_encoder.h"
#include "models/wan/reference/forward_stages.h"
#include "models/wan/reference/vae.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::bench {
namespace {

using reference::Parameters;
using reference::rounding_of;
using reference::Rows;
using reference::rows_of;
using wan::reference::Grid;

constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;

// Compares a model's stages with the reference's, each starting from the values that the model itself computed. The
// verdict is of the stage that is nearest to its bound, or farthest beyond.
class Comparison {
 public:
  explicit Comparison(double bound) { verdict_.tolerance = bound; }

  Probe probe() {
    return
        [this](std::string_view name, const TensorView& value) { values_.emplace(std::string(name), rows_of(value)); };
  }
  const Rows& value(const std::string& name) const {
    const auto found = values_.find(name);
    ZT_CHECK(found != values_.end(), "the model does not report '{}'", name);
    return found->second;
  }

  void stage(const Rows& result, const Rows& expected, double bound) {
    const double error = reference::relative_l2(result, expected);
    verdict_.finite = verdict_.finite && std::isfinite(error);
    if (!(error / bound > verdict_.relative_l2 / verdict_.tolerance)) return;
    verdict_.relative_l2 = error;
    verdict_.tolerance = bound;
  }
  void stage(const Rows& result, const Rows& expected) { stage(result, expected, verdict_.tolerance); }
  void stage(const std::string& name, const Rows& expected) { stage(value(name), expected); }

  const Verdict& verdict() const { return verdict_; }

 private:
  std::map<std::string, Rows> values_;
  Verdict verdict_;
};

// ---- the transformer ------------------------------------------------------------------------------------------------

constexpr int64_t kTextRows = 5, kImageRows = 3, kControlFrames = 1;
constexpr float kTimestep = 500;

// Those before and behind the blocks, and of the first and the last block, adapter and control block, and of the first
// block in int8.
bool is_checked(const wan::reference::Stage& stage, const wan::TransformerConfig& config) {
  using Kind = wan::reference::Stage::Kind;
  int64_t last = 0;
  switch (stage.kind) {
    case Kind::kSelfAttention:
    case Kind::kCrossAttention:
    case Kind::kFeedForward:
      if (!stage.control && !config.int8_blocks.empty() && stage.index == config.int8_blocks.front()) return true;
      last = (stage.control ? std::ssize(config.vace_layers) : config.num_layers) - 1;
      break;
    case Kind::kFace:
      last = config.face_adapters() - 1;
      break;
    case Kind::kHint:
      last = std::ssize(config.vace_layers) - 1;
      break;
    default:
      break;
  }
  return stage.index == 0 || stage.index == last;
}

}  // namespace

Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream,
                          const attention::Strategy& strategy) {
  const wan::TransformerConfig& config = weights->config;
  const Grid grid{2, 2, 3};
  const auto& patch = config.patch_size;
  const ForwardSize size{.latent = {grid.frames * patch[0], grid.height * patch[1], grid.width * patch[2]},
                         .text_rows = kTextRows,
                         .image_rows = kImageRows,
                         .control_frames = kControlFrames * patch[0]};
  const ForwardInputs inputs(config, size, weights->dtype);
  const int64_t tokens = wan::token_grid(config, size.latent).tokens();
  Comparison compare(wan::reference::stage_bound(wan::reference::longest_sum(config), weights->dtype));
  with_whole_sequence(config, 1, tokens, weights->dtype, strategy, stream, [&](attention::ContextAttention& attention) {
    wan::Transformer transformer(weights, stream);
    transformer.prepare(size.latent, 1, attention);
    inputs.give(transformer, compare.probe());
    const Tensor velocity(weights->dtype, {1, tokens, config.patch_output_dim()});
    transformer.forward(inputs.latents, std::vector<float>{kTimestep}, velocity, compare.probe());
  });

  const Parameters parameters(source, stream.team());
  wan::reference::StageInputs given;
  const auto of_sample = [](const Tensor& all) { return all ? all.view().select(0, 0) : TensorView(); };
  given.latents = of_sample(inputs.latents);
  given.grid = grid;
  given.timesteps = {kTimestep};
  given.text = rows_of(inputs.text);
  if (inputs.image) given.image = rows_of(inputs.image);
  given.control = of_sample(inputs.control);
  given.control_scales = inputs.scales;
  given.pose = of_sample(inputs.pose);
  if (inputs.face) given.face = rows_of(inputs.face);
  const wan::reference::ForwardStages stages(
      config, weights->dtype, parameters, given,
      [&](const std::string& name) -> const Rows& { return compare.value(name); });
  const bool int8 = strategy.attention_dtype == attention::AttentionDtype::kInt8;
  for (const wan::reference::Stage& stage : wan::reference::stages_of(config)) {
    if (!is_checked(stage, config)) continue;
    const IndexRange rows = wan::reference::tokens_of(stage, config, given);
    std::vector<int64_t> all(static_cast<size_t>(rows.size()));
    std::iota(all.begin(), all.end(), rows.begin);
    compare.stage(compare.value(stage.tensor()), stages.expected(stage, all),
                  wan::reference::stage_bound(stage, config, weights->dtype) +
                      (int8 ? wan::reference::int8_attention_rounding(stage) : 0));
  }
  return compare.verdict();
}

// ---- the VAE --------------------------------------------------------------------------------------------------------

namespace {

int64_t convolutions(const wan::CoderLayout& layout) {
  int64_t count = 2 + 2 * 2 + 2 + 1;  // both ends of the decoder, the middle
  for (const wan::StageLayout& stage : layout.stages) {
    count += 2 * static_cast<int64_t>(stage.resnets.size()) + (stage.resample ? 2 : 0);
  }
  return count;
}

}  // namespace

Verdict check_vae_decoder(const std::shared_ptr<const wan::VaeWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, DType dtype, Stream& stream) {
  constexpr int64_t kFrames = 2, kHeight = 1, kWidth = 2;  // latent cells
  constexpr double kRoundingsOfConvolution = 3;            // of its input, its output, and the norm after it
  const wan::VaeConfig& config = weights->config();
  const Tensor latents(DType::kF32, {config.z_dim, kFrames, kHeight, kWidth});
  fill_normal(latents, 3);
  const Parameters parameters(source, stream.team());
  const Tensor expected =
      wan::reference::decode<double>(config, parameters, latents, {.parameters = rounding_of(dtype)});

  // n independent roundings add up to √n times one; a random walk exceeds four times that once in ten thousand.
  const wan::CoderLayout layout = wan::decoder_layout(config);
  const double terms = 27.0 * static_cast<double>(layout.in.out);
  const double unit = dtype == DType::kBF16 ? kBFloatUnit : std::sqrt(terms) * kFloatUnit;
  Verdict verdict;
  verdict.tolerance = 4 * std::sqrt(kRoundingsOfConvolution * static_cast<double>(convolutions(layout))) * unit;
  const Tensor video(DType::kF32, expected.shape());
  int64_t seen = 0;
  wan::VaeDecoder(weights).decode(stream, latents, [&](int64_t first, const TensorView& frames) {
    ZT_CHECK(first == seen && frames.extent(1) == expected.extent(1) && frames.extent(2) == expected.extent(2));
    seen += frames.extent(0);
    copy(stream, video.view().slice(0, first, seen), frames);
  });
  ZT_CHECK(seen == expected.extent(0), "{} frames of {}", seen, expected.extent(0));
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < video.size(); ++i) {
    const double truth = expected.data<double>()[i], error = static_cast<double>(video.data<float>()[i]) - truth;
    difference += error * error;
    norm += truth * truth;
    verdict.finite = verdict.finite && std::isfinite(error);
  }
  verdict.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  return verdict;
}

// ---- the text encoder -----------------------------------------------------------------------------------------------

namespace {

// The ids' rows of the embedding; no rows where the table is gigabytes of random weights: it is not generated for this,
// and the first layer is not checked.
Rows embed(const io::WeightSource& source, const encoders::TextEncoderConfig& config, const std::vector<int32_t>& ids,
           DType dtype) {
  constexpr int64_t kMostTableElements = int64_t{1} << 26;
  const std::string name = io::stored_name(source, encoders::text_encoder_tensors(config).front());
  TensorView table = source.mapped(name);
  Tensor read;
  if (!table || (table.dtype() != DType::kF32 && table.dtype() != DType::kBF16)) {
    if (config.vocab_size * config.d_model > kMostTableElements) return {};
    read = Tensor(DType::kF32, {config.vocab_size, config.d_model});
    source.read(name, read);
    table = read;
  }
  Rows out(config.d_model, static_cast<int64_t>(ids.size()));
  for (int64_t r = 0; r < out.rows; ++r) {
    const int64_t id = ids[static_cast<size_t>(r)];
    const Rows row = rows_of(table.slice(0, id, id + 1));
    for (int64_t f = 0; f < config.d_model; ++f) {
      const auto value = static_cast<float>(row.values[static_cast<size_t>(f)]);
      out.feature(f)[r] = reference::rounded(value, rounding_of(dtype));
    }
  }
  return out;
}

}  // namespace

Verdict check_text_encoder(encoders::TextEncoder& encoder, const std::shared_ptr<const io::WeightSource>& source,
                           DType dtype, Stream& stream) {
  constexpr int64_t kIds = 11;
  const encoders::TextEncoderConfig& config = encoder.config();
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kIds; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + 5) % config.vocab_size));
  ids.back() = static_cast<int32_t>(config.eos_token_id);
  Comparison compare(
      wan::reference::stage_bound(std::max({config.d_ff, config.d_model, config.attention_dim()}), dtype));
  const Tensor out(DType::kF32, {kIds, config.d_model});
  encoder.encode(ids, out, compare.probe());

  const Parameters parameters(source, stream.team());
  const reference::TextEncoder reference(config, dtype, parameters);
  const Rows embedded = embed(*source, config, ids, dtype);
  if (embedded.rows > 0) compare.stage("block.0", reference.layer(0, embedded));
  const int64_t last = config.num_layers - 1;
  if (last > 0)
    compare.stage(compare.value(fmt::format("block.{}", last)),
                  reference.layer(last, compare.value(fmt::format("block.{}", last - 1))));
  compare.stage(rows_of(out),
                reference.norm("encoder.final_layer_norm.weight", compare.value(fmt::format("block.{}", last))));
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
  // Rounding alone leaves this much variance in equal values.
  if (!(variance > 1e-12 * square / count)) return "WRONG: all values are equal";
  return {};
}

}  // namespace zoetrope::bench
