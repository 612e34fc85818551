#include "models/wan/reference/forward_stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace zoetrope::wan::reference {
namespace {

constexpr double kFloatUnit = 0x1p-24, kBFloatUnit = 0x1p-9;
// The bound is some four times the error of independent roundings. Of a row or feature the error varies, and the
// largest of millions of single values is six times their mean.
constexpr double kOfPart = 2, kOfValue = 6;

std::vector<int64_t> counted_from(int64_t first, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

// `rows` behind those of x that they have not: of the tokens from some on.
void add_to_last(Rows& x, const Rows& rows) {
  for (int64_t f = 0; f < x.features; ++f)
    for (int64_t r = 0; r < rows.rows; ++r) x.feature(f)[x.rows - rows.rows + r] += rows.feature(f)[r];
}

Rows joined(const Rows& a, const Rows& b) {
  Rows all(a.features, a.rows + b.rows);
  for (int64_t f = 0; f < a.features; ++f) {
    std::copy_n(a.feature(f), a.rows, all.feature(f));
    std::copy_n(b.feature(f), b.rows, all.feature(f) + a.rows);
  }
  return all;
}

}  // namespace

std::string Stage::tensor() const {
  const std::string block = control ? fmt::format("vace.{}.control", index) : fmt::format("block.{}", index);
  switch (kind) {
    case Kind::kText:
      return "text_embedding";
    case Kind::kImage:
      return "image_embedding";
    case Kind::kPatches:
      return "patch_embedding";
    case Kind::kPose:
      return "pose_patch_embedding";
    case Kind::kTime:
      return "temb";
    case Kind::kTimeProjection:
      return "timestep_proj";
    case Kind::kControlPatches:
      return "vace_patch_embedding";
    case Kind::kSelfAttention:
      return block + ".self_attention";
    case Kind::kCrossAttention:
      return block + ".cross_attention";
    case Kind::kFeedForward:
      return block;
    case Kind::kFace:
      return fmt::format("face_adapter.{}", index);
    case Kind::kHint:
      return fmt::format("vace.{}.hint", index);
    case Kind::kHead:
      break;
  }
  return "proj_out";
}

bool Stage::by_token() const {
  return kind != Kind::kText && kind != Kind::kImage && kind != Kind::kTime && kind != Kind::kTimeProjection;
}

std::vector<Stage> stages_of(const TransformerConfig& config) {
  using Kind = Stage::Kind;
  std::vector<Stage> all;
  const auto add = [&](Kind kind, int64_t index = 0, bool control = false) { all.push_back({kind, index, control}); };
  const auto add_block = [&](int64_t index, bool control) {
    for (const Kind kind : {Kind::kSelfAttention, Kind::kCrossAttention, Kind::kFeedForward}) add(kind, index, control);
  };
  add(Kind::kText);
  if (config.image_dim) add(Kind::kImage);
  add(Kind::kPatches);
  if (config.animate()) add(Kind::kPose);
  add(Kind::kTime);
  add(Kind::kTimeProjection);
  if (config.vace()) add(Kind::kControlPatches);
  int64_t hint = 0;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    add_block(i, false);
    if (config.face && i % config.face->every == 0) add(Kind::kFace, i / config.face->every);
    if (hint == std::ssize(config.vace_layers) || config.vace_layers[static_cast<size_t>(hint)] != i) continue;
    add_block(hint, true);
    add(Kind::kHint, hint++);
  }
  add(Kind::kHead);
  return all;
}

IndexRange tokens_of(const Stage& stage, const TransformerConfig& config, const StageInputs& inputs) {
  const Grid& grid = inputs.grid;
  const int64_t frame = grid.height * grid.width;
  if (stage.kind == Stage::Kind::kPose) return {frame, grid.frames * frame};
  if (stage.kind == Stage::Kind::kControlPatches) return {0, inputs.control.extent(1) / config.patch_size[0] * frame};
  return {0, grid.frames * frame};
}

std::string ForwardStages::parameters_of(const Stage& block) const {
  return fmt::format("{}.{}.", block.control ? "vace_blocks" : "blocks", block.index);
}

Transformer::Context ForwardStages::context() const {
  const Rows& text = value_("text_embedding");
  // Rows of a text may be padding that nobody attends.
  const Rows valid = rows_at(text, counted_from(0, std::min(text.rows, inputs_.text.rows)));
  if (inputs_.image.rows == 0) return {valid, {}};
  const Rows& image = value_("image_embedding");
  if (config_.added_kv_proj_dim) return {valid, image};
  return {joined(image, valid), {}};
}

Rows ForwardStages::time_of(const Rows& values, const std::vector<int64_t>& of) const {
  if (inputs_.timestep_of.empty()) return rows_at(values, {0});
  std::vector<int64_t> sets;
  for (const int64_t token : of) sets.push_back(inputs_.timestep_of[static_cast<size_t>(token)]);
  return rows_at(values, sets);
}

// Padded with rows of zeros behind the end of the control video.
Rows ForwardStages::padded_control() const {
  const Rows &patches = value_("vace_patch_embedding"), &x = value_("patch_embedding");
  Rows padded(patches.features, x.rows);
  for (int64_t f = 0; f < patches.features; ++f) std::copy_n(patches.feature(f), patches.rows, padded.feature(f));
  return padded;
}

// The stream before a block: the result of the one before with what was added to it, of all tokens.
Rows ForwardStages::stream_into(const Stage& block) const {
  const int64_t before = block.index - 1;
  if (block.control) {
    if (block.index > 0) return value_(fmt::format("vace.{}.control", before));
    return reference_.control_in(padded_control(), value_("patch_embedding"));
  }
  if (before < 0) {
    Rows x = value_("patch_embedding");
    if (config_.animate()) add_to_last(x, value_("pose_patch_embedding"));
    return x;
  }
  Rows x = value_(fmt::format("block.{}", before));
  if (config_.face && before % config_.face->every == 0)
    add_to(x, value_(fmt::format("face_adapter.{}", before / config_.face->every)));
  const auto& layers = config_.vace_layers;
  const auto found = std::find(layers.begin(), layers.end(), before);
  if (found == layers.end()) return x;
  const auto hint = static_cast<size_t>(found - layers.begin());
  Rows added = value_(fmt::format("vace.{}.hint", hint));
  const double scale = static_cast<double>(rounded(inputs_.control_scales[hint], rounding_of(dtype_)));
  for (double& value : added.values) value *= scale;
  add_to(x, added);
  return x;
}

Rows ForwardStages::stream_before(const Stage& stage, const std::vector<int64_t>& of) const {
  if (stage.kind == Stage::Kind::kCrossAttention) return rows_at(stream_into(stage), of);
  if (stage.kind == Stage::Kind::kFeedForward) {
    return rows_at(value_(Stage{Stage::Kind::kCrossAttention, stage.index, stage.control}.tensor()), of);
  }
  return {};
}

Rows ForwardStages::expected(const Stage& stage, const std::vector<int64_t>& of) const {
  using Kind = Stage::Kind;
  const Grid& grid = inputs_.grid;
  const auto frames_of = [&](const TensorView& latents) {
    return Grid{latents.extent(1) / config_.patch_size[0], grid.height, grid.width};
  };
  const auto time = [&] { return time_of(value_("timestep_proj"), of); };
  switch (stage.kind) {
    case Kind::kText:
      return reference_.text_embedding(inputs_.text);
    case Kind::kImage:
      return reference_.image_embedding(inputs_.image);
    case Kind::kPatches:
      return reference_.patch_embedding(rows_at(reference_.cells(inputs_.latents, grid), of));
    case Kind::kPose: {
      std::vector<int64_t> rows = of;
      for (int64_t& row : rows) row -= tokens_of(stage, config_, inputs_).begin;
      return reference_.pose_patches(rows_at(reference_.cells(inputs_.pose, frames_of(inputs_.pose)), rows));
    }
    case Kind::kTime: {
      Rows all(value_("temb").features, std::ssize(inputs_.timesteps));
      for (int64_t r = 0; r < all.rows; ++r) {
        const Rows one = reference_.time_embedding(inputs_.timesteps[static_cast<size_t>(r)]);
        for (int64_t f = 0; f < all.features; ++f) all.feature(f)[r] = one.feature(f)[0];
      }
      return all;
    }
    case Kind::kTimeProjection:
      return reference_.time_projection(value_("temb"));
    case Kind::kControlPatches:
      return reference_.control_patches(rows_at(reference_.cells(inputs_.control, frames_of(inputs_.control)), of));
    case Kind::kSelfAttention: {
      const Rows x = stream_into(stage);
      return reference_.self_attention(parameters_of(stage), x,
                                       time_of(value_("timestep_proj"), counted_from(0, x.rows)), grid, of);
    }
    case Kind::kCrossAttention: {
      const Rows& attended = value_(Stage{Kind::kSelfAttention, stage.index, stage.control}.tensor());
      return reference_.after_cross_attention(parameters_of(stage), stream_before(stage, of), rows_at(attended, of),
                                              time(), context());
    }
    case Kind::kFeedForward:
      return reference_.after_feed_forward(parameters_of(stage), stream_before(stage, of), time());
    case Kind::kFace: {
      const Rows& given = inputs_.face;
      Rows face(given.features, given.rows + config_.face->tokens());
      add_to_last(face, given);
      return rows_at(reference_.face_adapter(static_cast<size_t>(stage.index),
                                             value_(fmt::format("block.{}", stage.index * config_.face->every)), face),
                     of);
    }
    case Kind::kHint:
      return reference_.hint(static_cast<size_t>(stage.index),
                             rows_at(value_(fmt::format("vace.{}.control", stage.index)), of));
    case Kind::kHead: {
      const Rows x = stream_into({Kind::kSelfAttention, config_.num_layers, false});
      return reference_.head(rows_at(x, of), time_of(value_("temb"), of));
    }
  }
  ZT_CHECK(false);
}

// Roundings on the longest path through a block: norm, projection, head norm, rotation, scores, probabilities,
// attention, projection, gate and sum, some of them twice in the three branches. Each has an error of at most u
// relative to its own norm, and norms of branches add up to no more than that of the sum times a small factor. Sums of
// K terms in float32 have an error of √K·u where roundings are independent.
double stage_bound(int64_t terms, DType dtype) {
  constexpr double kRoundings = 16;
  return kRoundings * (std::sqrt(static_cast<double>(terms)) * kFloatUnit + (dtype == DType::kBF16 ? kBFloatUnit : 0));
}

// A block that is multiplied in int8 rounds x and the weights of each product to steps of the largest of a group or a
// row, which is some 3.5 of their size: by 3.5 / (127·√12) = 2^−7 of each. Up to three products follow one another in a
// stage: √6 of these. Three times that is the room that scores need, which multiply an error of queries and keys.
double int8_rounding(const Stage& stage, const TransformerConfig& config) {
  constexpr double kRoundings = 8;
  using Kind = Stage::Kind;
  if (stage.kind != Kind::kSelfAttention && stage.kind != Kind::kCrossAttention && stage.kind != Kind::kFeedForward)
    return 0;
  const int64_t block = stage.index + (stage.control ? config.num_layers : 0);
  const bool int8 = std::binary_search(config.int8_blocks.begin(), config.int8_blocks.end(), block);
  return int8 ? kRoundings * 0x1p-7 : 0;
}

// The time embedding is float32 whatever the dtype is, and rounded behind it: a quarter of the roundings. A sinusoid's
// angle is a timestep times a frequency of at most 1, in float32: it is off by the last bit of a thousand.
double stage_bound(const Stage& stage, const TransformerConfig& config, DType dtype) {
  constexpr double kLargestTimestep = 1000;
  if (stage.kind != Stage::Kind::kTime)
    return stage_bound(longest_sum(config), dtype) + (dtype == DType::kBF16 ? int8_rounding(stage, config) : 0);
  return stage_bound(longest_sum(config), DType::kF32) + kLargestTimestep * kFloatUnit +
         (dtype == DType::kBF16 ? 4 * kBFloatUnit : 0);
}

// Queries, keys and values are rounded once, by half a step of the largest of a row of a head or of a channel of a
// tile, which is at most 3.5 of its size: by 3.5 / (127·√12) = 2^−7 of each. Sixteen times that is the room that scores
// need, which multiply an error of either, and what bytes do to weights is small beside it.
double int8_attention_rounding(const Stage& stage) {
  constexpr double kRoundings = 16;
  return stage.kind == Stage::Kind::kSelfAttention ? kRoundings * 0x1p-7 : 0;
}

StageError stage_error(const Rows& result, const Rows& expected, const Rows& before, double bound, DType dtype) {
  ZT_CHECK(result.features == expected.features && result.rows == expected.rows);
  ZT_CHECK(before.rows == 0 || before.values.size() == expected.values.size());
  const auto features = static_cast<size_t>(expected.features), rows = static_cast<size_t>(expected.rows);
  // Sums of squares: of the errors, of what is added, and of the stream that it is added to.
  struct Sums {
    double error = 0, added = 0, stream = 0;
    void add(const Sums& more) {
      error += more.error;
      added += more.added;
      stream += more.stream;
    }
  };
  Sums all;
  std::vector<Sums> by_feature(features), by_row(rows);
  StageError found;
  const double values = static_cast<double>(features * rows);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double stream = before.rows > 0 ? before.values[i] : 0, added = expected.values[i] - stream;
    const double error = result.values[i] - expected.values[i];
    const Sums one{error * error, added * added, stream * stream};
    by_feature[i / rows].add(one);
    by_row[i % rows].add(one);
    all.add(one);
    found.max_abs = std::isfinite(error) ? std::max(found.max_abs, std::abs(error)) : INFINITY;
  }
  found.relative_l2 = all.error == 0 ? 0 : std::sqrt(all.error / (all.added > 0 ? all.added : all.stream));
  // The stream is rounded behind every sum: twice in a stage at most.
  const double unit = 2 * (dtype == DType::kBF16 ? kBFloatUnit : kFloatUnit);
  // A part with less than its share of the norm still has its share of the errors.
  const auto look = [&](const Sums& part, double share, double factor) {
    const double added = std::max(part.added, all.added * share), stream = std::max(part.stream, all.stream * share);
    const double allowed = factor * (bound * std::sqrt(added) + unit * std::sqrt(stream));
    const double of_bound = part.error == 0 ? 0 : std::sqrt(part.error) / allowed;
    found.of_bound = std::isfinite(of_bound) ? std::max(found.of_bound, of_bound) : INFINITY;
  };
  look(all, 1, 1);
  for (const Sums& one : by_feature) look(one, 1 / static_cast<double>(features), kOfPart);
  for (const Sums& one : by_row) look(one, 1 / static_cast<double>(rows), kOfPart);
  // A small value of a large row or feature has errors of the others' size.
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const Sums &row = by_row[i % rows], &feature = by_feature[i / rows];
    const double stream = before.rows > 0 ? before.values[i] : 0, added = expected.values[i] - stream;
    const double error = result.values[i] - expected.values[i];
    const auto share = [&](double own, double of_row, double of_feature) {
      return std::max({own * own, of_row / static_cast<double>(features), of_feature / static_cast<double>(rows)});
    };
    look({error * error, share(added, row.added, feature.added), share(stream, row.stream, feature.stream)}, 1 / values,
         kOfValue);
  }
  return found;
}

int64_t longest_sum(const TransformerConfig& config) {
  return std::max({config.ffn_dim, config.inner_dim(), config.text_dim});
}

}  // namespace zoetrope::wan::reference
