#include "planner/search_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/index_range.h"
#include "planner/layer_walk.h"

namespace zoetrope::planner {
namespace {

constexpr int kHeadChunks[] = {1, 2, 4, 5, 8};

bool matches(const Fixed& fixed, const Split& split) {
  const auto is = [](const std::optional<int>& wanted, int value) { return !wanted || *wanted == value; };
  return is(fixed.data, split.data) && is(fixed.context, split.context.ranks()) &&
         is(fixed.ulysses, split.context.ulysses) && is(fixed.ring, split.context.ring);
}

// All of so many ranks, whatever is fixed.
std::vector<Split> all_splits(const Question& question, int ranks) {
  std::vector<Split> splits;
  for (int data = 1; data <= question.work.branches && data <= ranks; ++data) {
    if (ranks % data != 0 || question.work.branches % data != 0) continue;
    const int context = ranks / data;
    for (const int ulysses : parallel::legal_ulysses(context, question.work.heads))
      splits.push_back({data, {ulysses, context / ulysses}});
  }
  return splits;
}

// Values of one field among splits.
template <typename Field>
std::set<int> values(const std::vector<Split>& splits, const Field& field) {
  std::set<int> found;
  for (const Split& split : splits) found.insert(field(split));
  return found;
}

std::string text(const std::set<int>& found) { return fmt::format("{}", fmt::join(found, ", ")); }

// One fixed field after the other is held against what those before it leave.
class Narrowing {
 public:
  Narrowing(const Question& question, int ranks)
      : left_(all_splits(question, ranks)), all_(left_.size()), ranks_(ranks) {}

  template <typename Field>
  void narrow(const std::string& key, const std::optional<int>& wanted, const Field& field) {
    if (!wanted) return;
    if (legal(field).count(*wanted) == 0) {
      fail("{}={} is not possible for {} rank{}{}; legal values: {}", key, *wanted, ranks_, ranks_ == 1 ? "" : "s",
           left_.size() < all_ ? " with what else is fixed" : "", text(legal(field)));
    }
    std::erase_if(left_, [&](const Split& split) { return field(split) != *wanted; });
  }
  template <typename Field>
  std::set<int> legal(const Field& field) const {
    return values(left_, field);
  }

 private:
  std::vector<Split> left_;
  size_t all_;
  int ranks_;
};

void check_splits(const Question& question, int ranks) {
  const Fixed& fixed = question.fixed;
  const int branches = question.work.branches;
  if (fixed.data && *fixed.data > branches) {
    fail("data_parallelism={}: there {} here; use {}", *fixed.data,
         branches == 1 ? "is one branch to compute without guidance"
                       : fmt::format("are {} branches of guidance", branches),
         branches == 1 ? "1" : "1 or 2");
  }
  const auto ulysses = [](const Split& split) { return split.context.ulysses; };
  Narrowing left(question, ranks);
  left.narrow("data_parallelism", fixed.data, [](const Split& split) { return split.data; });
  left.narrow("context_parallelism", fixed.context, [](const Split& split) { return split.context.ranks(); });
  if (fixed.ulysses && *fixed.ulysses > question.work.heads) {
    fail("ulysses_shards={} is more than the {} heads, and a rank cannot attend less than one head; legal values: {}",
         *fixed.ulysses, question.work.heads, text(left.legal(ulysses)));
  }
  left.narrow("ulysses_shards", fixed.ulysses, ulysses);
  left.narrow("attention: ring", fixed.ring, [](const Split& split) { return split.context.ring; });
}

}  // namespace

std::vector<int> run_sizes(const Question& question) {
  if (question.objective == Objective::kLatency) return {question.ranks};
  std::vector<int> sizes;
  for (int size = question.ranks; size >= 1; --size)
    if (question.ranks % size == 0) sizes.push_back(size);
  return sizes;
}

std::vector<Split> legal_splits(const Question& question, int ranks) {
  std::vector<Split> splits = all_splits(question, ranks);
  std::erase_if(splits, [&](const Split& split) { return !matches(question.fixed, split); });
  if (question.sharded) return splits;
  // Where every rank computes all tokens, how a context is split changes nothing.
  const auto same = [](const Split& a, const Split& b) { return a.data == b.data; };
  splits.erase(std::unique(splits.begin(), splits.end(), same), splits.end());
  return splits;
}

std::vector<IllegalSplit> illegal_splits(const Question& question, int ranks) {
  std::vector<IllegalSplit> illegal;
  const int branches = question.work.branches;
  const bool data_open = !question.fixed.data && !question.fixed.context;
  const Split halves{2, {1, (ranks + 1) / 2}};
  if (data_open && ranks > 1 && branches == 1)
    illegal.push_back({halves, "without guidance there is one branch to compute"});
  if (data_open && branches == 2 && ranks > 1 && ranks % 2 != 0)
    illegal.push_back({halves, fmt::format("{} ranks cannot be halved", ranks)});
  if (question.fixed.ulysses || question.fixed.ring) return illegal;
  for (const int context : values(legal_splits(question, ranks), [](const Split& s) { return s.context.ranks(); })) {
    for (const int ulysses : parallel::legal_ulysses(context, context)) {
      if (ulysses <= question.work.heads) continue;
      illegal.push_back({{ranks / context, {ulysses, context / ulysses}},
                         fmt::format("{} Ulysses ranks, but {} heads, and a rank cannot attend less than one", ulysses,
                                     question.work.heads)});
    }
  }
  return illegal;
}

void check_fixed(const Question& question) {
  const Fixed& fixed = question.fixed;
  const std::vector<int> sizes = run_sizes(question);
  const bool any =
      std::any_of(sizes.begin(), sizes.end(), [&](int ranks) { return !legal_splits(question, ranks).empty(); });
  if (!any) check_splits(question, question.ranks);
  if (fixed.head_chunks && *fixed.head_chunks < 1)
    fail("ulysses_attention_chunks={} must be at least 1, which is one group of all heads", *fixed.head_chunks);
  if (fixed.block_q && *fixed.block_q < 0) fail("block_q={} must be at least 1", *fixed.block_q);
  const auto rows = static_cast<int>(std::min<int64_t>(question.ranks, question.work.vae_rows));
  if (fixed.vae && (*fixed.vae < 1 || *fixed.vae > rows)) {
    fail("vae_parallel={}: from 1 to {}, for there {} {} rank{} and {} latent rows, of which every rank needs one",
         *fixed.vae, rows, question.ranks == 1 ? "is" : "are", question.ranks, question.ranks == 1 ? "" : "s",
         question.work.vae_rows);
  }
}

std::vector<Kernel> kernels(const Question& question, const Split& split) {
  const HardwareProfile& hardware = question.hardware;
  const ComputeFigures& figures = hardware.compute(question.work.element_bytes);
  std::vector<bool> softmaxes{false};
  if (figures.fixed_max_gain > 1) softmaxes.push_back(true);
  if (question.fixed.fixed_max) softmaxes = {*question.fixed.fixed_max};
  std::vector<int64_t> blocks = hardware.block_q_choices;
  if (blocks.empty()) blocks = {0};
  if (question.fixed.block_q) blocks = {*question.fixed.block_q};
  const int64_t queries = ceil_div(question.work.tokens, question.sharded ? split.context.ring : 1);
  std::vector<Kernel> found;
  for (const bool fixed_max : softmaxes) {
    for (const int64_t block : blocks) {
      const int64_t wanted = block > 0 ? block : hardware.block_q;
      const int64_t rows = wanted > 0 ? std::min(wanted, queries) : queries;
      const double efficiency = figures.attention.at(static_cast<double>(rows));
      const double gain = fixed_max ? figures.fixed_max_gain : 1;
      found.push_back({fixed_max, block, padding(queries, rows) / (efficiency * gain)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Kernel& a, const Kernel& b) { return a.price < b.price; });
  return found;
}

std::vector<parallel::Direction> directions(const Question& question, const Split& split) {
  using parallel::Direction;
  // Two ranks have one neighbour: all directions send the same there.
  constexpr int kFewestForDirections = 3;
  const bool ring = question.sharded && split.context.ring >= kFewestForDirections;
  if (question.fixed.direction) return {*question.fixed.direction};
  if (!ring) return {Direction::kForward};
  return {Direction::kForward, Direction::kTwoWay, Direction::kOpen};
}

std::vector<int> head_chunks(const Question& question, const Split& split) {
  if (question.fixed.head_chunks) return {*question.fixed.head_chunks};
  if (split.context.ulysses == 1 || !question.sharded) return {1};
  const int64_t heads = ceil_div(question.work.heads, split.context.ulysses);
  std::vector<int> chunks;
  for (const int count : kHeadChunks)
    if (count <= heads) chunks.push_back(count);
  return chunks;
}

std::vector<int> vae_ranks(const Question& question, int ranks) {
  const auto most = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(ranks, question.work.vae_rows)));
  if (question.fixed.vae) return {std::clamp(*question.fixed.vae, 1, most)};
  std::vector<int> counts;
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

}  // namespace zoetrope::planner
