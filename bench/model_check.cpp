#include "bench/model_check.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "bench/forward_inputs.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/reference/text_encoder.h"
#include "models/wan/reference/transformer.h"
#include "models/wan/reference/vae.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::bench {
namespace {

using wan::reference::add_to;
using wan::reference::Grid;
using wan::reference::Parameters;
using wan::reference::rounding_of;
using wan::reference::Rows;
using wan::reference::rows_of;

constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;

// Of a block or layer whose longest sum has `terms` terms. Roundings on the longest path through one: norm, projection,
// head norm, rotation, scores, probabilities, attention, projection, gate and sum, some of them twice in the three
// branches. Each has an error of at most u relative to its own norm, and norms of branches add up to no more than that
// of the sum times a small factor. Sums of K terms in float32 have an error of √K·u where roundings are independent.
double stage_tolerance(int64_t terms, DType dtype) {
  constexpr double kRoundings = 16;
  return kRoundings * (std::sqrt(static_cast<double>(terms)) * kFloatUnit + (dtype == DType::kBF16 ? kBFloatUnit : 0));
}

// Compares a model's stages with the reference's, each starting from the values that the model itself computed.
class Comparison {
 public:
  Comparison(int64_t terms, DType dtype) { verdict_.tolerance = stage_tolerance(terms, dtype); }

  Probe probe() {
    return
        [this](std::string_view name, const TensorView& value) { values_.emplace(std::string(name), rows_of(value)); };
  }
  const Rows& value(const std::string& name) const {
    const auto found = values_.find(name);
    ZT_CHECK(found != values_.end(), "the model does not report '{}'", name);
    return found->second;
  }
  const Rows& block(int64_t index) const { return value(fmt::format("block.{}", index)); }

  void stage(const Rows& result, const Rows& expected) {
    const double error = wan::reference::relative_l2(result, expected);
    verdict_.finite = verdict_.finite && std::isfinite(error);
    verdict_.relative_l2 = std::max(verdict_.relative_l2, error);
  }
  void stage(const std::string& name, const Rows& expected) { stage(value(name), expected); }

  const Verdict& verdict() const { return verdict_; }

 private:
  std::map<std::string, Rows> values_;
  Verdict verdict_;
};

// ---- the transformer ------------------------------------------------------------------------------------------------

constexpr int64_t kTextRows = 5, kImageRows = 3, kControlFrames = 1;
constexpr float kTimestep = 500;

// `rows` behind those of x that they have not: of the tokens from some frame on.
void add_to_last(Rows& x, const Rows& rows) {
  for (int64_t f = 0; f < x.features; ++f)
    for (int64_t r = 0; r < rows.rows; ++r) x.feature(f)[x.rows - rows.rows + r] += rows.feature(f)[r];
}

// The stream after a block of the model: its result plus the hint, or what a face adapter adds, that follows it.
Rows stream_after(const Comparison& compare, const wan::TransformerConfig& config, int64_t block) {
  if (block < 0) {
    Rows x = compare.value("patch_embedding");
    if (config.animate()) add_to_last(x, compare.value("pose_patch_embedding"));
    return x;
  }
  Rows x = compare.block(block);
  if (config.face && block % config.face->every == 0)
    add_to(x, compare.value(fmt::format("face_adapter.{}", block / config.face->every)));
  const auto& layers = config.vace_layers;
  const auto found = std::find(layers.begin(), layers.end(), block);
  if (found != layers.end()) add_to(x, compare.value(fmt::format("vace.{}.hint", found - layers.begin())));
  return x;
}

// The control stream: its start, its first and last block, and their hints.
void compare_control(Comparison& compare, const wan::reference::Transformer& reference,
                     const wan::TransformerConfig& config, const ForwardInputs& inputs,
                     const wan::reference::Transformer::Context& context, const Grid& grid) {
  const Rows& x = compare.value("patch_embedding");
  const Rows cells = reference.cells(inputs.control, {kControlFrames, grid.height, grid.width});
  compare.stage("vace_patch_embedding", reference.control_patches(cells));
  // Padded with rows of zeros beyond the end of the control video.
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

// The pose, and the first and last face adapter.
void compare_animation(Comparison& compare, const wan::reference::Transformer& reference,
                       const wan::TransformerConfig& config, const ForwardInputs& inputs, const Grid& grid) {
  compare.stage("pose_patch_embedding",
                reference.pose_patches(reference.cells(inputs.pose, {grid.frames - 1, grid.height, grid.width})));
  const Rows given = rows_of(inputs.face);
  Rows face(given.features, given.rows + config.face->tokens());
  add_to_last(face, given);
  const int64_t last = config.face_adapters() - 1;
  for (int64_t j = 0; j <= last; j += std::max<int64_t>(1, last)) {
    compare.stage(fmt::format("face_adapter.{}", j),
                  reference.face_adapter(static_cast<size_t>(j), compare.block(j * config.face->every), face));
  }
}

}  // namespace

Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream) {
  const wan::TransformerConfig& config = weights->config;
  const Grid grid{2, 2, 3};
  const auto& patch = config.patch_size;
  const ForwardSize size{.latent = {grid.frames * patch[0], grid.height * patch[1], grid.width * patch[2]},
                         .text_rows = kTextRows,
                         .image_rows = kImageRows,
                         .control_frames = kControlFrames * patch[0]};
  const ForwardInputs inputs(config, size, weights->dtype);
  const int64_t tokens = wan::token_grid(config, size.latent).tokens();
  Comparison compare(std::max({config.ffn_dim, config.inner_dim(), config.text_dim}), weights->dtype);
  with_whole_sequence(config, tokens, weights->dtype, stream, [&](attention::ContextAttention& attention) {
    wan::Transformer transformer(weights, stream);
    transformer.prepare(size.latent, 1, attention);
    inputs.give(transformer, compare.probe());
    const Tensor velocity(weights->dtype, {1, tokens, config.patch_output_dim()});
    transformer.forward(inputs.latents, std::vector<float>{kTimestep}, velocity, compare.probe());
  });

  const Parameters parameters(source, stream.team());
  const wan::reference::Transformer reference(config, weights->dtype, parameters);
  compare.stage("patch_embedding", reference.patch_embedding(reference.cells(inputs.latents, grid)));
  compare.stage("text_embedding", reference.text_embedding(rows_of(inputs.text)));
  wan::reference::Transformer::Context context{compare.value("text_embedding"), {}};
  if (inputs.image) {
    compare.stage("image_embedding", reference.image_embedding(rows_of(inputs.image)));
    context.image = compare.value("image_embedding");
  }
  compare.stage("temb", reference.time_embedding(kTimestep));
  const Rows& time = compare.value("temb");
  compare.stage("timestep_proj", reference.time_projection(time));
  if (config.vace()) compare_control(compare, reference, config, inputs, context, grid);
  if (config.animate()) compare_animation(compare, reference, config, inputs, grid);
  const int64_t last = config.num_layers - 1;
  const auto block = [&](int64_t index) {
    compare.stage(fmt::format("block.{}", index),
                  reference.block(fmt::format("blocks.{}.", index), stream_after(compare, config, index - 1),
                                  compare.value("timestep_proj"), context, grid));
  };
  block(0);
  if (last > 0) block(last);
  compare.stage("proj_out", reference.head(stream_after(compare, config, last), time));
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
      out.feature(f)[r] = wan::reference::rounded(value, rounding_of(dtype));
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
  Comparison compare(std::max({config.d_ff, config.d_model, config.attention_dim()}), dtype);
  const Tensor out(DType::kF32, {kIds, config.d_model});
  encoder.encode(ids, out, compare.probe());

  const Parameters parameters(source, stream.team());
  const wan::reference::TextEncoder reference(config, dtype, parameters);
  const Rows embedded = embed(*source, config, ids, dtype);
  if (embedded.rows > 0) compare.stage("block.0", reference.layer(0, embedded));
  const int64_t last = config.num_layers - 1;
  if (last > 0) compare.stage(compare.block(last), reference.layer(last, compare.block(last - 1)));
  compare.stage(rows_of(out), reference.norm("encoder.final_layer_norm.weight", compare.block(last)));
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
