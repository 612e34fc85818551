#include "pipeline/forward_checks.h"

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
#include "pipeline/halo_ranks.h"

namespace zoetrope::pipeline {
namespace {

using wan::reference::Rows;
using wan::reference::rows_of;
using wan::reference::Stage;
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
  layout_ = layout;
  std::vector<ForwardRecord> all = ForwardRecord::gather(world, std::move(ranks_[static_cast<size_t>(world.rank())]));
  if (world.rank() != 0) return;
  ranks_ = std::move(all);
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step) compare_shared(step);
}

// Latents are the same on every rank, to the bit; so is what ranks of one tensor group have of a token.
void ForwardChecks::compare_shared(int64_t step) {
  const auto compare = [&](const std::string& name, size_t place, int rank, int like) {
    const ForwardRecord::Value* value = ranks_[static_cast<size_t>(rank)].find(step, name);
    const ForwardRecord::Value* wanted = ranks_[static_cast<size_t>(like)].find(step, name);
    if (wanted == nullptr) return;
    CheckedValue checked{name, step, 0, rank, place};
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

std::vector<TensorView> ForwardChecks::latents() const {
  std::vector<TensorView> all;
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step) {
    const TensorView rows = shared(step, "latents", {});
    all.emplace_back(rows.raw(), DType::kF32, Shape{rows.size()});
  }
  return all;
}

std::string ForwardChecks::place_text(const CheckedValue& value) const {
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

double ForwardChecks::bound(const Stage& stage) const { return stage_bound(stage, config(), setup_.plan.dtype); }

RankValues ForwardChecks::values() const {
  std::vector<const ForwardRecord*> records;
  for (const ForwardRecord& rank : ranks_) records.push_back(&rank);
  return {setup_.plan, layout_, std::move(records), has_clean_tokens()};
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

// ---- against one rank -----------------------------------------------------------------------------------------------

// The values of the ranks in place of those of one: `value` holds rows of all samples, from `row` on.
void ForwardChecks::put_back(int64_t step, std::string_view name, int64_t row, const TensorView& value) const {
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const Stage& s) { return s.tensor() == name; });
  if (stage == stages_.end() || value.size() == 0) return;
  if (!stage->by_token() && stage->kind != Kind::kText) return;  // the same wherever it is computed
  const RankValues ranks = values();
  const IndexRange tokens = tokens_of(*stage, step);
  const int64_t each = stage->by_token() ? tokens.size() : value.size() / value.extent(-1) / setup_.plan.samples();
  const size_t size = dtype_size(value.dtype());
  for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
    for (const RankValues::Piece& piece : ranks.pieces(step, *stage, sample, tokens)) {
      ZT_CHECK(piece.value->dtype == value.dtype());
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

// Whether the ranks have a value, and the one that it was made from: without blocks, a head is that of another step.
bool ForwardChecks::is_computed(const RankValues& ranks, const Item& item) const {
  const auto has = [&](const Stage& stage) {
    return !ranks.pieces(item.step, stage, item.sample, tokens_of(stage, item.step)).empty();
  };
  return has(stages_[item.place]) && (stages_[item.place].kind != Kind::kHead || has(stages_[item.place - 1]));
}

void ForwardChecks::compare_stages(int64_t step) {
  // Both have rounded alike but for the order of sums: of scores, probabilities, their sum and what is folded, or of
  // what ranks that share a layer have of a product. Four roundings of the sixteen.
  constexpr double kOfStage = 0.25;
  const parallel::ParallelLayout alone;
  const RankValues ranks = values(), one(setup_.plan, alone, {&one_rank_}, has_clean_tokens());
  for (size_t place = 0; place < stages_.size(); ++place) {
    const Stage& stage = stages_[place];
    const double allowed = kOfStage * bound(stage);
    const IndexRange tokens = tokens_of(stage, step);
    for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
      const std::vector<RankValues::Piece> of_ranks = ranks.pieces(step, stage, sample, tokens);
      const std::vector<RankValues::Piece> of_one = one.pieces(step, stage, sample, tokens);
      if (of_one.empty() || !is_computed(ranks, {step, sample, place})) continue;
      const Rows expected = RankValues::joined(of_one);
      for (const RankValues::Piece& piece : of_ranks) {
        if (piece.rows == 0) continue;
        Rows part(piece.value->features, piece.rows);
        for (int64_t f = 0; f < part.features; ++f)
          std::copy_n(expected.feature(piece.feature + f) + piece.first, part.rows, part.feature(f));
        const wan::reference::StageError error =
            stage_error(RankValues::rows_of_piece(piece), part, {}, allowed, setup_.plan.dtype);
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
  const Stage& last_block = stages_[stages_.size() - 2];
  bool reused = false;
  for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample)
    reused = reused || values().pieces(step, last_block, sample, tokens_of(last_block, step)).empty();
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
  constexpr double kConvolutions = 40, kRoundings = 3, kBFloatUnit = 0x1p-9;
  // Later segments begin with frames of the ones before, which were decoded from other latents here.
  const Segments& segments = setup_.plan.segments;
  const int64_t count = segments.count == 1 ? of_ranks.extent(0) : segments.frames, height = of_ranks.extent(1);
  const int parts = layout_.vae_ranks;
  for (int part = 0; part < parts; ++part) {
    const IndexRange cells = rows_of_part(setup_.plan.latent[1], parts, part);
    const int64_t rows = height / setup_.plan.latent[1];
    double error = 0, norm = 0, most = 0;
    for (int64_t frame = 0; frame < count; ++frame) {
      const TensorView a = of_ranks.select(0, frame).slice(0, cells.begin * rows, cells.end * rows),
                       b = of_one.select(0, frame).slice(0, cells.begin * rows, cells.end * rows);
      for (int64_t i = 0; i < a.size(); ++i) {
        const double one = b.data<uint8_t>()[i], difference = a.data<uint8_t>()[i] - one;
        error += difference * difference;
        norm += one * one;
        most = std::max(most, std::abs(difference));
      }
    }
    CheckedValue value{"frames", std::ssize(timesteps_) - 1, 0, part, stages_.size() + 2, Against::kOneRank};
    value.relative_l2 = error == 0 ? 0 : std::sqrt(error / norm);
    value.max_abs = most;
    value.bound = 4 * std::sqrt(kConvolutions * kRoundings) * kBFloatUnit;
    value.of_bound = setup_.vae_dtype == DType::kBF16 ? value.relative_l2 / value.bound : most;  // of one level
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
  for (const int64_t step : steps) {
    for (size_t place = 0; place < stages_.size(); ++place) {
      for (int64_t sample = 0; sample < setup_.plan.samples(); ++sample) {
        if (is_computed(ranks, {step, sample, place})) all.push_back({step, sample, place});
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
  return all;
}

// The weights of an expert that the float64 model has, and how far those of the run are from them.
struct ForwardChecks::Weights {
  Weights(const Expert& own, const Expert& reference, int threads, ThreadTeam& team, DType computed)
      : run(&own == &reference ? nullptr : own.weights.source(threads)),
        files(reference.weights.source(threads)),
        dtype(computed),
        parameters(files, team, [this](const std::string& name) { read.insert(name); }) {}

  // Of the run's tensor, as it holds it, where it is stored in another format: what is stored alike must be the same.
  double error(const std::string& name) {
    if (run->info(name).dtype_name == files->info(name).dtype_name) return 0;
    const auto [entry, added] = errors.try_emplace(name, 0);
    if (!added) return entry->second;
    const auto values = [&](const io::WeightSource& source) {
      const Shape shape = source.info(name).shape;
      Rows all(shape.size(), 1);
      std::vector<float> stored(static_cast<size_t>(shape.size()));
      source.read(name, TensorView(stored.data(), DType::kF32, shape));
      source.release(name);
      for (size_t i = 0; i < stored.size(); ++i)
        all.values[i] = static_cast<double>(rounded(stored[i], wan::reference::rounding_of(dtype)));
      return all;
    };
    return entry->second = relative_l2(values(*run), values(*files));
  }

  std::shared_ptr<const io::WeightSource> run, files;  // run null: the same
  DType dtype;
  wan::reference::Parameters parameters;
  std::set<std::string> read;  // by the current stage
  std::map<std::string, double> errors;
};

void ForwardChecks::check_item(Weights& weights, const Item& item, int64_t rows) {
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
    return read[name] = RankValues::joined(ranks.pieces(step, *other, item.sample, tokens_of(*other, step)));
  };
  const wan::reference::ForwardStages reference(config(), setup_.plan.dtype, weights.parameters, given, value);
  const std::vector<RankValues::Piece> pieces =
      ranks.pieces(item.step, stage, item.sample, tokens_of(stage, item.step));
  const int64_t first_token = tokens_of(stage, item.step).begin;
  std::vector<int64_t> of;  // tokens, those of a piece side by side
  std::vector<int64_t> begins;
  for (const RankValues::Piece& piece : pieces) {
    begins.push_back(std::ssize(of));
    const int64_t each = rows == 0 ? 0 : std::max<int64_t>(2, rows / std::ssize(pieces));
    if (piece.feature == 0 && stage.by_token())
      add_spread({first_token + piece.first, first_token + piece.first + piece.rows}, each, of);
  }
  begins.push_back(std::ssize(of));
  if (stage.by_token() && of.empty()) return;
  weights.read.clear();
  const Rows expected = reference.expected(stage, of), before = reference.stream_before(stage, of);
  const Rows result = stage.by_token() ? RankValues::rows_at_tokens(pieces, of, first_token) : value(stage.tensor());
  // Errors of independent weights add up as squares; rows that they fall on unevenly have several times as much.
  constexpr double kUneven = 4;
  double squares = 0;
  if (weights.run != nullptr)
    for (const std::string& name : weights.read) squares += std::pow(weights.error(name), 2);
  const double allowed = bound(stage) + kUneven * std::sqrt(squares);
  size_t number = 0;
  for (const RankValues::Piece& piece : pieces) {
    // Of self-attention, ranks have the same tokens and each its heads.
    size_t from = number++;
    while (from > 0 && pieces[from].feature > 0) --from;
    std::vector<int64_t> mine(
        static_cast<size_t>(stage.by_token() ? begins[from + 1] - begins[from] : std::min(expected.rows, result.rows)));
    std::iota(mine.begin(), mine.end(), stage.by_token() ? begins[from] : 0);
    if (mine.empty()) continue;
    const auto part = [&](const Rows& all) {
      return all.rows == 0 ? Rows() : features_of(rows_at(all, mine), piece.feature, piece.value->features);
    };
    const wan::reference::StageError error =
        stage_error(part(result), part(expected), part(before), allowed, setup_.plan.dtype);
    note({stage.tensor(), item.step, item.sample, piece.rank, item.place, Against::kFloat64, error.relative_l2,
          error.max_abs, allowed, error.of_bound});
  }
}

// A tensor that is no rounding of the reference's is further off than others of its name in other blocks: their median.
void ForwardChecks::compare_weights(const Weights& weights, int expert) {
  constexpr double kFar = 4;
  std::map<std::string, std::vector<double>> kinds;
  const auto kind = [](const std::string& name) {
    std::string text;
    for (const char c : name)
      if (c < '0' || c > '9') text += c;
    return text;
  };
  for (const auto& [name, error] : weights.errors) kinds[kind(name)].push_back(error);
  for (auto& [name, errors] : kinds) std::sort(errors.begin(), errors.end());
  for (const auto& [name, error] : weights.errors) {
    const std::vector<double>& others = kinds.at(kind(name));
    const double median = others[others.size() / 2];
    if (others.size() > 2 && error > kFar * median) {
      note({fmt::format("weight {}", name), prompt_of(expert), 0, 0, 0, Against::kFloat64, error, 0, kFar * median,
            error / (kFar * median)});
    }
  }
}

void ForwardChecks::check_in_float64(const ModelFolder* reference, const Effort& effort,
                                     const std::function<void(int64_t done, int64_t total)>& progress,
                                     const std::function<bool()>& cancelled) {
  const std::vector<Item> all = items();
  stages_in_float64_ = std::ssize(all);
  ThreadTeam team(setup_.threads);
  std::map<int, Weights> weights;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    if (progress) progress(i, std::ssize(all));
    if (cancelled && cancelled()) fail("interrupted while checking against float64");
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > effort.seconds) break;
    const Item& item = all[static_cast<size_t>(i)];
    const auto expert = static_cast<size_t>(expert_of(item.step));
    const Expert& own = setup_.model.experts[expert];
    const Expert& files = reference == nullptr ? own : reference->experts[expert];
    const auto of = weights.try_emplace(static_cast<int>(expert), own, files, setup_.threads, team, setup_.plan.dtype);
    check_item(of.first->second, item, effort.rows);
    ++items_in_float64_;
  }
  for (const auto& [expert, of] : weights) compare_weights(of, expert);
  if (progress) progress(std::ssize(all), std::ssize(all));
}

}  // namespace zoetrope::pipeline
