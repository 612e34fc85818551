#include "pipeline/checks/forward_checks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "device/thread_team.h"
#include "models/sampling/solver.h"
#include "pipeline/ranks/halo_ranks.h"
#include "pipeline/settings/segments.h"

namespace zoetrope::pipeline {
namespace {

using wan::reference::Rows;
using wan::reference::rows_of;
using wan::reference::Stage;
using wan::reference::stage_error;
using Kind = Stage::Kind;

// What every rank has alike is kept of rank 0; but latents are compared.
bool is_shared(std::string_view name) {
  for (const char* one :
       {"image", "control", "control_scales", "pose", "given_frames", "shard_weights", "input", "velocity"})
    if (name == one) return true;
  return false;
}

Rows features_of(const Rows& x, int64_t first, int64_t count) {
  Rows part(count, x.rows);
  std::copy_n(x.feature(first), part.values.size(), part.values.begin());
  return part;
}

// Row number `row` of those along the last axis; null behind the last.
std::byte* row_of(const TensorView& value, int64_t row) {
  if (value.rank() == 1) return row == 0 ? value.data<std::byte>() : nullptr;
  const int64_t each = value.size() / value.extent(-1) / value.extent(0);
  return row / each >= value.extent(0) ? nullptr : row_of(value.select(0, row / each), row % each);
}

// `rows` of these, spread evenly; all where there are no more or `rows` is 0.
void add_spread(IndexRange from, int64_t rows, std::vector<int64_t>& to) {
  const int64_t count = rows == 0 ? from.size() : std::min(rows, from.size());
  for (int64_t i = 0; i < count; ++i) to.push_back(from.begin + (count == 1 ? 0 : i * (from.size() - 1) / (count - 1)));
}

}  // namespace

ForwardChecks::ForwardChecks(const Setup& setup, int ranks)
    : setup_(setup),
      stages_(wan::reference::stages_of(setup.model.experts.front().config)),
      ranks_(static_cast<size_t>(ranks)) {
  const auto solver = sampling::Solver::create(setup.plan.solver);
  timesteps_.assign(solver->timesteps().begin(), solver->timesteps().end());
}

int ForwardChecks::expert_of(int64_t step) const {
  return step < 0 ? static_cast<int>(-1 - step) : setup_.plan.expert_at(timesteps_[static_cast<size_t>(step)]);
}

Observer ForwardChecks::of_rank(int rank) {
  return [this, rank](int64_t step, std::string_view name, const TensorView& value) {
    if (rank == 0 || !is_shared(name)) ranks_[static_cast<size_t>(rank)].add(step, name, value);
  };
}

void ForwardChecks::gather(comm::Communicator& world, const parallel::ParallelLayout& layout) {
  std::vector<ForwardRecord> all = ForwardRecord::gather(world, std::move(ranks_[static_cast<size_t>(world.rank())]));
  if (world.rank() != 0) return;  // ranks of a process share this object
  layout_ = layout;
  ranks_ = std::move(all);
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step) compare_shared(step);
}

// Latents are the same on every rank, to the bit; so is what ranks of one tensor group have of a token.
void ForwardChecks::compare_shared(int64_t step) {
  const auto compare = [&](const std::string& name, size_t place, int rank, int like) {
    const ForwardRecord::Value* value = ranks_[static_cast<size_t>(rank)].find(step, name);
    const ForwardRecord::Value* wanted = ranks_[static_cast<size_t>(like)].find(step, name);
    if (wanted == nullptr) return;
    CheckedValue checked{name, step, 0, rank, place, Against::kOtherRanks};
    if (value == nullptr || value->bytes != wanted->bytes) checked.of_bound = INFINITY;
    if (checked.of_bound > 0 && value != nullptr && value->bytes.size() == wanted->bytes.size())
      checked.relative_l2 = relative_l2(rows_of(view_of(*value)), rows_of(view_of(*wanted)));
    note(checked);
    if (value != nullptr) ranks_[static_cast<size_t>(rank)].erase(step, name);
  };
  for (int rank = 1; rank < std::ssize(ranks_); ++rank) {
    compare("latents", stages_.size() + 1, rank, 0);
    const int like = rank - layout_.tensor_index(rank);
    if (like == rank) continue;
    for (size_t place = 0; place < stages_.size(); ++place) {
      const Stage& stage = stages_[place];
      if (stage.by_token() && stage.kind != Kind::kSelfAttention) compare(stage.tensor(), place, rank, like);
    }
  }
}

void ForwardChecks::note(const CheckedValue& value) {
  const auto against = static_cast<size_t>(value.against);
  ++checked_[against];
  const auto [entry, added] = worst_.try_emplace({against, value.tensor}, value);
  if (!added && value.of_bound > entry->second.of_bound) entry->second = value;
  if (value.of_bound <= 1) return;
  ++outside_;
  // What is made of a prompt comes before the steps of its expert.
  const auto order = [&](const CheckedValue& one) {
    int64_t step = one.step;
    if (step < 0)
      for (step = 0; step + 1 < std::ssize(timesteps_) && expert_of(step) != expert_of(one.step);) ++step;
    return std::tuple(step, one.place, one.rank);
  };
  if (!first_outside_ || order(value) < order(*first_outside_)) first_outside_ = value;
}

std::vector<CheckedValue> ForwardChecks::worst() const {
  std::vector<CheckedValue> all;
  for (const auto& [key, value] : worst_) all.push_back(value);
  std::sort(all.begin(), all.end(), [](const CheckedValue& a, const CheckedValue& b) {
    return std::tuple(a.against, a.place) < std::tuple(b.against, b.place);
  });
  return all;
}

// The first step's input without the conditions' channels.
std::vector<Tensor> ForwardChecks::latents() const {
  std::vector<Tensor> all;
  const auto add = [&](const TensorView& values) {
    all.push_back(Tensor::uninitialized(DType::kF32, {values.size()}));
    std::memcpy(all.back().view().raw(), values.raw(), values.bytes());
  };
  const Shape& latent = setup_.plan.latent;
  const TensorView input =
      shared(0, "input", {setup_.plan.videos, config().in_channels, latent[0], latent[1], latent[2]});
  add(input.select(0, 0).slice(0, 0, setup_.plan.channels));
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step) add(shared(step, "latents", {}));
  return all;
}

bool ForwardChecks::uses_expert(int expert) const {
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step)
    if (expert_of(step) == expert) return true;
  return false;
}

std::string ForwardChecks::place_text(const CheckedValue& value) const {
  if (value.against == Against::kWeights) return fmt::format("the files of {}", expert_name(expert_of(value.step)));
  const std::string expert =
      setup_.model.experts.size() > 1 ? fmt::format("{}, ", expert_name(expert_of(value.step))) : "";
  std::string sample;
  if (value.place < stages_.size() && setup_.plan.guided)
    sample = value.sample < setup_.plan.videos ? "conditional, " : "unconditional, ";
  if (setup_.plan.videos > 1 && value.place < stages_.size())
    sample = fmt::format("video {}, {}", value.sample % setup_.plan.videos + 1, sample);
  const std::string step =
      value.step < 0 ? "the prompt" : fmt::format("step {} of {}", value.step + 1, timesteps_.size());
  return fmt::format("{}, {}{}rank {}", step, expert, sample, value.rank);
}

double ForwardChecks::kept_bytes(const ModelFolder& model, const RunPlan& plan) {
  const wan::TransformerConfig& config = model.experts.front().config;
  constexpr double kStages = 3;
  const double step = static_cast<double>(plan.tokens * plan.samples() * config.inner_dim()) *
                      static_cast<double>(dtype_size(plan.dtype)) *
                      (kStages * static_cast<double>(config.block_count()) + 2);
  return step * (2 * static_cast<double>(plan.steps()) + 1);
}

RankValues ForwardChecks::values() const {
  std::vector<const ForwardRecord*> records;
  for (const ForwardRecord& rank : ranks_) records.push_back(&rank);
  return {setup_.plan, layout_, std::move(records)};
}

// An image is of all samples; timesteps are of a sample each, or the two of a sample with clean tokens.
RankValues::Recorded ForwardChecks::recorded(const Stage& stage) const {
  using Spread = RankValues::Spread;
  if (stage.by_token())
    return {stage.tensor(), stage.kind == Kind::kSelfAttention ? Spread::kTokensOfHeads : Spread::kTokens};
  const bool whole = stage.kind == Kind::kImage || (stage.kind != Kind::kText && has_clean_tokens());
  return {stage.tensor(), whole ? Spread::kWhole : Spread::kSamples};
}

bool ForwardChecks::has_clean_tokens() const {
  for (int expert = 0; expert < std::ssize(setup_.model.experts); ++expert)
    if (first().find(prompt_of(expert), "given_frames") != nullptr) return true;
  return false;
}

// What all ranks have alike: as its rows, or with `shape`, whose extents of −1 follow from the size. Null where there
// is none.
TensorView ForwardChecks::shared(int64_t step, const char* name, const Shape& shape) const {
  const ForwardRecord::Value* value = first().find(step, name);
  if (value == nullptr) return {};
  const TensorView rows = view_of(*value);
  if (shape.rank() == 0) return rows;
  int64_t known = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) known *= shape[axis] < 0 ? 1 : shape[axis];
  Shape full = shape;
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (full[axis] < 0) full[axis] = rows.size() / known;
  return {rows.raw(), rows.dtype(), full};
}

wan::reference::StageInputs ForwardChecks::inputs(int64_t step, int64_t sample) const {
  const Shape& latent = setup_.plan.latent;
  const auto& patch = config().patch_size;
  const int64_t prompt = prompt_of(expert_of(step)), local = setup_.plan.samples() / layout_.data, at = sample % local;
  const auto data = static_cast<int>(sample / local);
  const RankValues ranks = values();
  const auto rows_of_sample = [&](const char* name) {
    const ForwardRecord::Value* value = ranks.any(prompt, name, data);
    if (value == nullptr) return Rows();
    const int64_t each = value->rows / local;
    return rows_of(view_of(*value).slice(0, at * each, (at + 1) * each));
  };
  wan::reference::StageInputs given;
  given.grid = {latent[0] / patch[0], latent[1] / patch[1], latent[2] / patch[2]};
  given.text = rows_of_sample("text");
  if (const ForwardRecord::Value* lengths = ranks.any(prompt, "lengths", data)) {
    std::vector<int64_t> valid(static_cast<size_t>(view_of(*lengths).data<int64_t>()[at]));
    std::iota(valid.begin(), valid.end(), int64_t{0});
    given.text = rows_at(given.text, valid);
  }
  if (const TensorView image = shared(prompt, "image", {})) given.image = rows_of(image);
  given.control = shared(prompt, "control", {config().vace_in_channels, -1, latent[1], latent[2]});
  if (const TensorView scales = shared(prompt, "control_scales", {}))
    given.control_scales = {scales.data<float>(), static_cast<size_t>(scales.size())};
  given.pose = shared(prompt, "pose", {config().out_channels, -1, latent[1], latent[2]});
  given.face = rows_of_sample("face");
  if (step < 0) return given;
  given.latents = shared(step, "input", {setup_.plan.videos, config().in_channels, latent[0], latent[1], latent[2]})
                      .select(0, sample % setup_.plan.videos);
  given.timesteps = {static_cast<double>(timesteps_[static_cast<size_t>(step)])};
  if (const TensorView frames = shared(prompt, "given_frames", {setup_.plan.channels, -1, latent[1], latent[2]})) {
    given.timesteps.push_back(0);
    given.timestep_of.assign(static_cast<size_t>(setup_.plan.tokens), 0);
    std::fill_n(given.timestep_of.begin(), setup_.plan.tokens / latent[0] * frames.extent(1), 1);
  }
  return given;
}

IndexRange ForwardChecks::tokens_of(const Stage& stage, int64_t step) const {
  if (!stage.by_token()) return {0, 0};
  wan::reference::StageInputs sizes;
  const Shape& latent = setup_.plan.latent;
  const auto& patch = config().patch_size;
  sizes.grid = {latent[0] / patch[0], latent[1] / patch[1], latent[2] / patch[2]};
  sizes.control = shared(prompt_of(expert_of(step)), "control", {config().vace_in_channels, -1, latent[1], latent[2]});
  return wan::reference::tokens_of(stage, config(), sizes);
}

sampling::StepWork ForwardChecks::work_of(int64_t step) const {
  const ForwardRecord::Value* work = first().find(step, "work");
  return work == nullptr ? sampling::StepWork::kFull
                         : static_cast<sampling::StepWork>(view_of(*work).data<int32_t>()[0]);
}

// What a step has to compute of a sample, by what a step cache decided.
bool ForwardChecks::is_expected(int64_t step, const Stage& stage, int64_t sample) const {
  const bool of_prompt = stage.kind == Kind::kText || stage.kind == Kind::kImage;
  if (of_prompt != (step < 0)) return false;
  if (of_prompt) return true;
  const bool before_blocks = stage.kind == Kind::kPatches || stage.kind == Kind::kPose || stage.kind == Kind::kTime ||
                             stage.kind == Kind::kTimeProjection;
  switch (work_of(step)) {
    case sampling::StepWork::kFull:
      return true;
    case sampling::StepWork::kReuseResidual:
      return before_blocks;
    case sampling::StepWork::kReuseVelocity:
      return false;
    case sampling::StepWork::kConditionalOnly:
      return before_blocks || sample < setup_.plan.videos;
  }
  ZT_CHECK(false);
}

// ---- against one rank -----------------------------------------------------------------------------------------------

// The values of the ranks in place of those of one: `value` holds rows of all samples, from `row` on.
void ForwardChecks::put_back(int64_t step, std::string_view name, int64_t row, const TensorView& value) const {
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const Stage& s) { return s.tensor() == name; });
  if (stage == stages_.end() || value.size() == 0) return;
  if (!stage->by_token() && stage->kind != Kind::kText) return;  // the same wherever it is computed
  const RankValues ranks = values();
  const RankValues::Recorded named = recorded(*stage);
  const IndexRange tokens = tokens_of(*stage, step);
  const int64_t each = stage->by_token() ? tokens.size() : value.size() / value.extent(-1) / setup_.plan.samples();
  const size_t size = dtype_size(value.dtype());
  for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
    if (!is_expected(step, *stage, sample)) continue;
    for (const RankValues::Piece& piece : ranks.pieces(step, named, sample, tokens)) {
      if (piece.value == nullptr || piece.value->dtype != value.dtype()) continue;
      const TensorView from = view_of(*piece.value);
      const int64_t begin = sample * each + piece.first - row;  // its place in `value`
      for (int64_t r = std::max<int64_t>(0, -begin); r < piece.rows; ++r) {
        std::byte* const to = row_of(value, begin + r);
        if (to == nullptr) break;
        std::memcpy(to + static_cast<size_t>(piece.feature) * size, from.select(0, piece.row + r).raw(),
                    static_cast<size_t>(piece.value->features) * size);
      }
    }
  }
}

Observer ForwardChecks::of_one_rank() {
  return [this](int64_t step, std::string_view name, const TensorView& value) {
    const ForwardRecord::Value* before = one_rank_.find(step, std::string(name));
    const int64_t row = before == nullptr ? 0 : before->rows;
    one_rank_.add(step, name, value);
    put_back(step, name, row, value);
    if (name != "latents") return;
    compare_step(step);
    // The next step begins where that of the ranks did.
    std::memcpy(value.raw(), first().find(step, "latents")->bytes.data(), value.bytes());
  };
}

// A value that a rank should have and has not.
void ForwardChecks::note_missing(int64_t step, int64_t sample, size_t place,
                                 const std::vector<RankValues::Piece>& pieces) {
  CheckedValue value{stages_[place].tensor(), step, sample, 0, place, Against::kOneRank};
  for (const RankValues::Piece& piece : pieces)
    if (piece.value == nullptr) value.rank = piece.rank;
  value.relative_l2 = value.max_abs = value.of_bound = INFINITY;
  note(value);
}

void ForwardChecks::compare_stages(int64_t step) {
  const parallel::ParallelLayout alone;
  const RankValues ranks = values(), one(setup_.plan, alone, {&one_rank_});
  for (size_t place = 0; place < stages_.size(); ++place) {
    const Stage& stage = stages_[place];
    const double allowed = bound_of_one_rank(stage, step);
    const RankValues::Recorded named = recorded(stage);
    const IndexRange tokens = tokens_of(stage, step);
    for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
      if (!is_expected(step, stage, sample)) continue;
      const std::vector<RankValues::Piece> of_ranks = ranks.pieces(step, named, sample, tokens);
      const std::vector<RankValues::Piece> of_one = one.pieces(step, named, sample, tokens);
      ZT_CHECK(RankValues::is_complete(of_one), "{} of one rank", stage.tensor());
      if (!RankValues::is_complete(of_ranks)) {
        note_missing(step, sample, place, of_ranks);
        continue;
      }
      const Rows expected = RankValues::joined(of_one);
      // The stream that the stage adds to, without what hints and faces have added since.
      Rows before;
      if (stage.kind == Kind::kFeedForward || (stage.kind == Kind::kCrossAttention && stage.index > 0)) {
        const Stage from = stage.kind == Kind::kFeedForward ? Stage{Kind::kCrossAttention, stage.index, stage.control}
                                                            : Stage{Kind::kFeedForward, stage.index - 1, stage.control};
        const std::vector<RankValues::Piece> pieces = one.pieces(step, recorded(from), sample, tokens);
        if (RankValues::is_complete(pieces)) before = RankValues::joined(pieces);
      }
      for (const RankValues::Piece& piece : of_ranks) {
        if (piece.rows == 0) continue;
        const auto part = [&](const Rows& all) { return RankValues::part_of(all, piece); };
        const wan::reference::StageError error =
            stage_error(RankValues::rows_of_piece(piece), part(expected), part(before), allowed, setup_.plan.dtype);
        note({stage.tensor(), step, sample, piece.rank, place, Against::kOneRank, error.relative_l2, error.max_abs,
              allowed, error.of_bound});
      }
    }
  }
}

void ForwardChecks::compare_step(int64_t step) {
  const int64_t prompt = prompt_of(expert_of(step));
  if (one_rank_.find(prompt, "text") != nullptr) compare_stages(prompt);
  compare_stages(step);
  // From what the heads gave to the ranks everything is the same arithmetic.
  constexpr double kSame = 1e-6;
  const auto compare = [&](const char* name, size_t place) {
    const Rows of_ranks = rows_of(view_of(*first().find(step, name))),
               of_one = rows_of(view_of(*one_rank_.find(step, name)));
    CheckedValue value{name, step, 0, 0, place, Against::kOneRank, relative_l2(of_ranks, of_one)};
    value.bound = kSame;
    value.of_bound = value.relative_l2 / kSame;
    return value;
  };
  const bool reused = work_of(step) != sampling::StepWork::kFull;
  has_reused_ = has_reused_ || reused;
  const CheckedValue velocity = compare("velocity", stages_.size());
  if (reused) {
    reused_.push_back({step, velocity.relative_l2});
  } else {
    note(velocity);
  }
  // A solver remembers steps: behind a reused one it is not that of whole forwards.
  if (!has_reused_) note(compare("latents", stages_.size() + 1));
  one_rank_.clear(step);
  one_rank_.clear(prompt);
}

// Ranks share the rows of a frame. The same sums, so float32 may round a value to the level beside; bf16 rounds after
// every convolution, of which there are some forty with three roundings each.
void ForwardChecks::compare_frames(const TensorView& of_ranks, const TensorView& of_one) {
  constexpr double kConvolutions = 40, kRoundings = 3, kBFloatUnit = 0x1p-9, kOne = 127.5;
  // Later segments begin with frames of the ones before, which were decoded from other latents here.
  const Segments& segments = setup_.plan.segments;
  const int64_t count = segments.count == 1 ? of_ranks.extent(0) : segments.frames, height = of_ranks.extent(1);
  const int parts = layout_.vae_ranks;
  for (int part = 0; part < parts; ++part) {
    const IndexRange cells = rows_of_part(setup_.plan.latent[1], parts, part);
    const int64_t rows = height / setup_.plan.latent[1];
    CheckedValue value{"frames", std::ssize(timesteps_) - 1, 0, part, stages_.size() + 2, Against::kOneRank};
    value.bound = 4 * std::sqrt(kConvolutions * kRoundings) * kBFloatUnit;
    for (int64_t frame = 0; frame < count; ++frame) {
      const TensorView a = of_ranks.select(0, frame).slice(0, cells.begin * rows, cells.end * rows),
                       b = of_one.select(0, frame).slice(0, cells.begin * rows, cells.end * rows);
      double squares = 0;
      for (int64_t i = 0; i < a.size(); ++i) {
        const double levels = std::abs(a.data<uint8_t>()[i] - b.data<uint8_t>()[i]);
        squares += levels * levels;
        value.max_abs = std::max(value.max_abs, levels);
      }
      // Of a frame, where 1 is half of the levels.
      value.relative_l2 = std::max(value.relative_l2, std::sqrt(squares / static_cast<double>(a.size())) / kOne);
    }
    value.of_bound =
        setup_.vae_dtype == DType::kBF16 ? value.relative_l2 / value.bound : value.max_abs;  // of one level
    note(value);
  }
}

// ---- against the float64 model --------------------------------------------------------------------------------------

std::vector<ForwardChecks::Item> ForwardChecks::items() const {
  std::vector<Item> all;
  const RankValues ranks = values();
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step) {
    const int64_t prompt = prompt_of(expert_of(step));
    if (std::find(steps.begin(), steps.end(), prompt) == steps.end()) steps.push_back(prompt);
    steps.push_back(step);
  }
  // A stage is checked from the values of those before it.
  for (const int64_t step : steps) {
    for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
      bool complete = true;
      for (size_t place = 0; place < stages_.size(); ++place) {
        const Stage& stage = stages_[place];
        if (!is_expected(step, stage, sample)) continue;
        complete =
            complete && RankValues::is_complete(ranks.pieces(step, recorded(stage), sample, tokens_of(stage, step)));
        if (complete) all.push_back({step, sample, place});
      }
    }
  }
  const auto order = [&](const Item& item) {
    const Kind kind = stages_[item.place].kind;
    const bool of_block = kind == Kind::kSelfAttention || kind == Kind::kCrossAttention || kind == Kind::kFeedForward;
    const auto number =
        (static_cast<uint64_t>(item.step + 2) * 1024 + item.place) * 64 + static_cast<uint64_t>(item.sample);
    return std::tuple(of_block, split_mix(number * kSplitMixStep));
  };
  std::sort(all.begin(), all.end(), [&](const Item& a, const Item& b) { return order(a) < order(b); });
  std::vector<Item> in_order, rest;
  std::set<Kind> seen;
  for (const Item& item : all) (seen.insert(stages_[item.place].kind).second ? in_order : rest).push_back(item);
  in_order.insert(in_order.end(), rest.begin(), rest.end());
  return in_order;
}

void ForwardChecks::check_item(ReferenceWeights& weights, const Item& item, int64_t rows) {
  const Stage& stage = stages_[item.place];
  const wan::reference::StageInputs given = inputs(item.step, item.sample);
  const RankValues ranks = values();
  std::map<std::string, Rows> read;
  const auto value = [&](const std::string& name) -> const Rows& {
    const auto found = read.find(name);
    if (found != read.end()) return found->second;
    const auto other =
        std::find_if(stages_.begin(), stages_.end(), [&](const Stage& one) { return one.tensor() == name; });
    ZT_CHECK(other != stages_.end(), "{}", name);
    const bool of_prompt = other->kind == Kind::kText || other->kind == Kind::kImage;
    const int64_t step = of_prompt ? prompt_of(expert_of(item.step)) : item.step;
    return read[name] = RankValues::joined(ranks.pieces(step, recorded(*other), item.sample, tokens_of(*other, step)));
  };
  const wan::reference::ForwardStages reference(config_of(item.step), setup_.plan.dtype, weights.parameters(), given,
                                                value);
  const std::vector<RankValues::Piece> pieces =
      ranks.pieces(item.step, recorded(stage), item.sample, tokens_of(stage, item.step));
  const int64_t first_token = tokens_of(stage, item.step).begin;
  // The tokens that are computed, those of a rank side by side; ranks that share its heads have the same.
  std::vector<int64_t> of;
  std::vector<IndexRange> rows_of_pieces;
  for (const RankValues::Piece& piece : pieces) {
    if (stage.by_token() && piece.feature == 0) {
      const int64_t begin = std::ssize(of), each = rows == 0 ? 0 : std::max<int64_t>(2, rows / std::ssize(pieces));
      add_spread({first_token + piece.first, first_token + piece.first + piece.rows}, each, of);
      rows_of_pieces.push_back({begin, std::ssize(of)});
    } else if (stage.by_token()) {
      rows_of_pieces.push_back(rows_of_pieces.back());
    } else {
      rows_of_pieces.push_back({0, piece.rows});
    }
  }
  weights.begin_stage();
  const Rows expected = reference.expected(stage, of), before = reference.stream_before(stage, of);
  const Rows result = stage.by_token() ? RankValues::rows_at_tokens(pieces, of, first_token) : Rows();
  const double allowed = bound(stage, item.step) + weights.budget();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const RankValues::Piece& piece = pieces[i];
    // Rows of a text behind its end are nobody's.
    std::vector<int64_t> mine(static_cast<size_t>(std::min(rows_of_pieces[i].size(), expected.rows)));
    std::iota(mine.begin(), mine.end(), rows_of_pieces[i].begin);
    const auto part = [&](const Rows& all) {
      return all.rows == 0 ? Rows() : features_of(rows_at(all, mine), piece.feature, piece.value->features);
    };
    const Rows own = stage.by_token() ? part(result) : rows_at(RankValues::rows_of_piece(piece), mine);
    const wan::reference::StageError error = stage_error(own, part(expected), part(before), allowed, setup_.plan.dtype);
    note({stage.tensor(), item.step, item.sample, piece.rank, item.place, Against::kFloat64, error.relative_l2,
          error.max_abs, allowed, error.of_bound});
  }
}

void ForwardChecks::check_in_float64(const ModelFolder* reference, const Effort& effort,
                                     const std::function<void(int64_t done, int64_t total)>& progress,
                                     const std::function<bool()>& cancelled) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Item> all = items();
  stages_in_float64_ = std::ssize(all);
  ThreadTeam team(setup_.threads);
  std::map<size_t, ReferenceWeights> weights;
  std::map<Kind, double> longest;  // seconds of a stage
  const auto begin = Clock::now();
  const auto seconds_since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto stop_if_cancelled = [&] {
    if (cancelled && cancelled()) fail("interrupted while checking against float64");
  };
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    if (progress) progress(i, std::ssize(all));
    const Item& item = all[static_cast<size_t>(i)];
    const auto known = longest.find(stages_[item.place].kind);
    if (known != longest.end() && seconds_since(begin) + known->second > effort.seconds) continue;
    const auto expert = static_cast<size_t>(expert_of(item.step));
    const Expert& own = setup_.model.experts[expert];
    const Expert& files = reference == nullptr ? own : reference->experts[expert];
    const auto of = weights.try_emplace(expert, own, files, setup_.plan.dtype, team, stop_if_cancelled);
    const auto from = Clock::now();
    check_item(of.first->second, item, effort.rows);
    double& most = longest[stages_[item.place].kind];
    most = std::max(most, seconds_since(from));
    ++items_in_float64_;
  }
  for (const auto& [expert, of] : weights) {
    for (const ReferenceWeights::Damaged& tensor : of.damaged()) {
      note({tensor.tensor, prompt_of(static_cast<int>(expert)), 0, 0, 0, Against::kWeights, tensor.relative_l2, 0,
            tensor.bound, tensor.relative_l2 / tensor.bound});
    }
  }
  if (progress) progress(std::ssize(all), std::ssize(all));
}

}  // namespace zoetrope::pipeline
