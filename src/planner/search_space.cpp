#include "planner/search_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/index_range.h"
#include "base/words.h"
#include "parallel/ring.h"
#include "planner/layer_walk.h"

namespace zoetrope::planner {
namespace {

using parallel::ContextLayout;
using parallel::Direction;
using parallel::LayoutRequest;
using parallel::ParallelLayout;
using parallel::Softmax;

constexpr int kMoreHeadChunks[] = {2, 4, 5, 8};
// Shares of the ring's waiting that remain.
constexpr double kLeftByDirection = 0.25, kLeftByHeadChunks = 0.75;

// Bytes/s into a device over all its links, and the shortest latency.
struct BestLink {
  double bandwidth = 0;
  double latency = 0;
};
BestLink best_link(const HardwareProfile& hardware) {
  BestLink best;
  for (const LinkLevel& level : hardware.links) {
    const int ways = is_grid(level.kind) ? 2 * static_cast<int>(level.shape.size()) : std::max(1, level.ports);
    best.bandwidth += level.bandwidth * ways;
    best.latency = &level == &hardware.links.front() ? level.latency : std::min(best.latency, level.latency);
  }
  return best;
}

bool matches(const LayoutRequest& request, const ParallelLayout& layout) {
  const auto is = [](const std::optional<int>& wanted, int value) { return !wanted || *wanted == value; };
  return is(request.data, layout.data) && is(request.context_ranks, layout.context.ranks()) &&
         is(request.context.ulysses, layout.context.ulysses) && is(request.context.ring, layout.context.ring) &&
         is(request.context.gather, layout.context.gather) &&
         (layout.context.gather == 1 ||
          (request.context.direction.value_or(Direction::kForward) == Direction::kForward &&
           request.context.head_chunks.value_or(1) == 1)) &&
         (!request.context.two_dimensional || (layout.context.ulysses > 1 && layout.context.ring > 1));
}

// All splits of `ranks` with `tensor`, without the rest of the request.
std::vector<ParallelLayout> all_splits(const Question& question, int ranks, int tensor) {
  std::vector<ParallelLayout> splits;
  const int places = ranks / tensor;
  for (int data = 1; data <= question.work.branches && data <= places; ++data) {
    if (places % data != 0 || question.work.branches % data != 0) continue;
    const int context = places / data;
    const auto add = [&](ContextLayout layout) {
      // Of another context, which the request leaves out.
      if (static_cast<int>(question.request.context.shard_weights.size()) == context)
        layout.shard_weights = parallel::reduced(question.request.context.shard_weights);
      splits.push_back({.data = data, .context = layout, .sharded = question.sharded, .tensor = tensor});
    };
    for (const int ulysses : parallel::legal_ulysses(context, question.work.heads / tensor))
      add({ulysses, context / ulysses});
    if (context > 1) add({.gather = context});
  }
  return splits;
}

// Whether keys say how a context is split, or that it has all ranks: then layers are divided only where a key says it.
bool fixes_context(const LayoutRequest& request) {
  const parallel::ContextRequest& context = request.context;
  return request.one_context || context.ulysses || context.ring || context.two_dimensional ||
         context.gather.value_or(1) > 1;
}

std::vector<int> tensor_degrees(const Question& question, int ranks) {
  const std::optional<int> fixed = fixed_tensor(question.request);
  std::vector<int> legal = parallel::legal_tensor(ranks, question.work.heads);
  std::erase_if(legal, [&](int tensor) { return tensor != fixed.value_or(tensor); });
  return legal;
}

// Whether so many ranks of a tensor coordinate can share weights as the key says.
bool can_share(const LayoutRequest& request, int ranks, int tensor) {
  return (ranks / tensor) % std::max(1, request.weight_shards.value_or(1)) == 0;
}

// The values of one field of the splits.
template <typename Field>
std::set<int> values(const std::vector<ParallelLayout>& splits, const Field& field) {
  std::set<int> found;
  for (const ParallelLayout& split : splits) found.insert(field(split));
  return found;
}

std::string text(const std::set<int>& found) { return fmt::format("{}", fmt::join(found, ", ")); }

// Checks one fixed field after the other against the splits that the previous ones leave.
class Narrowing {
 public:
  Narrowing(const Question& question, int ranks, int tensor)
      : left_(all_splits(question, ranks, tensor)), ranks_(ranks), tensor_(tensor) {
    // No key of its own says it: a name or a key of a ring leaves gathers out.
    if (const std::optional<int>& gather = question.request.context.gather)
      std::erase_if(left_, [&](const ParallelLayout& split) { return split.context.gather != *gather; });
    all_ = left_.size();
  }

  // `why`: is said after the legal values.
  template <typename Field>
  void narrow(const std::string& key, const std::optional<int>& wanted, const Field& field,
              const std::string& why = "") {
    if (!wanted) return;
    if (legal(field).count(*wanted) == 0) {
      fail("{}={} is not possible for {}{}{}; legal values: {}{}", key, *wanted, counted(ranks_, "rank"),
           tensor_ > 1 ? fmt::format(" with tensor_parallelism={}", tensor_) : "",
           left_.size() < all_ ? " with what else is fixed" : "", text(legal(field)), why);
    }
    std::erase_if(left_, [&](const ParallelLayout& split) { return field(split) != *wanted; });
  }
  template <typename Field>
  std::set<int> legal(const Field& field) const {
    return values(left_, field);
  }
  // Checks the settings that some splits cannot have.
  void check_settings(const parallel::ContextRequest& request, int64_t heads) const {
    for (const ParallelLayout& split : left_) {
      ContextLayout context = split.context;
      context.direction = request.direction.value_or(context.direction);
      context.head_chunks = request.head_chunks.value_or(context.head_chunks);
      check(context, context.ranks(), heads);
    }
  }

 private:
  std::vector<ParallelLayout> left_;
  size_t all_ = 0;
  int ranks_, tensor_;
};

void check_splits(const Question& question, int ranks) {
  const LayoutRequest& fixed = question.request;
  const int branches = question.work.branches;
  if (fixed.data && *fixed.data > branches) {
    fail("data_parallelism={}: there {} here; use {}", *fixed.data,
         branches == 1 ? "is one branch to compute without guidance"
                       : fmt::format("are {} branches of guidance", branches),
         branches == 1 ? "1" : "1 or 2");
  }
  const int tensor = fixed.tensor.value_or(1);
  parallel::check_tensor(tensor, ranks, question.work.heads);
  const int64_t heads = question.work.heads / tensor;
  const auto ulysses = [](const ParallelLayout& split) { return split.context.ulysses; };
  Narrowing left(question, ranks, tensor);
  left.narrow("data_parallelism", fixed.data, [](const ParallelLayout& split) { return split.data; });
  const auto context_ranks = [](const ParallelLayout& split) { return split.context.ranks(); };
  left.narrow("context_parallelism", fixed.context_ranks, context_ranks);
  if (fixed.context.two_dimensional)
    parallel::check_two_dimensional(fixed.context.ulysses, *left.legal(context_ranks).rbegin(), heads);
  if (fixed.context.ulysses && *fixed.context.ulysses > heads) {
    fail("ulysses_shards={} is more than the {} heads{}, and a rank cannot attend less than one head; legal values: {}",
         *fixed.context.ulysses, heads,
         tensor > 1 ? fmt::format(" that tensor_parallelism={} leaves a rank", tensor) : "", text(left.legal(ulysses)));
  }
  left.narrow("ulysses_shards", fixed.context.ulysses, ulysses);
  left.narrow(
      "attention: ring", fixed.context.ring, [](const ParallelLayout& split) { return split.context.ring; },
      heads < ranks / tensor ? fmt::format("; Ulysses takes at most a rank per head, and there are {} heads", heads)
                             : "");
  left.check_settings(fixed.context, heads);
}

}  // namespace

std::optional<int> fixed_tensor(const LayoutRequest& request) {
  if (request.tensor || !fixes_context(request)) return request.tensor;
  return 1;
}

std::vector<int> run_sizes(const Question& question) {
  if (question.objective == Objective::kLatency) return {question.ranks};
  std::vector<int> sizes;
  for (int size = question.ranks; size >= 1; --size)
    if (question.ranks % size == 0) sizes.push_back(size);
  return sizes;
}

std::vector<ParallelLayout> legal_splits(const Question& question, int ranks) {
  std::vector<ParallelLayout> splits;
  for (const int tensor : tensor_degrees(question, ranks)) {
    if (tensor > 1 && !question.request.tensor && !can_share(question.request, ranks, tensor)) continue;
    for (const ParallelLayout& split : all_splits(question, ranks, tensor))
      if (matches(question.request, split)) splits.push_back(split);
    if (splits.empty()) break;
  }
  const auto is_one_context = [](const ParallelLayout& split) { return split.data == 1; };
  if (question.request.one_context && std::any_of(splits.begin(), splits.end(), is_one_context))
    std::erase_if(splits, std::not_fn(is_one_context));
  for (ParallelLayout& split : splits) split = in_chunks(question, in_directions(question, split).front()).front();
  if (question.sharded) return splits;
  // Where every rank computes all tokens, how a context is split changes nothing.
  const auto same = [](const ParallelLayout& a, const ParallelLayout& b) {
    return a.data == b.data && a.tensor == b.tensor;
  };
  splits.erase(std::unique(splits.begin(), splits.end(), same), splits.end());
  return splits;
}

std::vector<IllegalSplit> illegal_splits(const Question& question, int ranks) {
  std::vector<IllegalSplit> illegal;
  const auto add = [&](const ParallelLayout& layout, std::string reason) {
    IllegalSplit& split = illegal.emplace_back();
    split.layout = layout;
    split.reason = std::move(reason);
  };
  const int branches = question.work.branches;
  const bool data_open = !question.request.data && !question.request.context_ranks;
  const int tensor = question.request.tensor.value_or(1), places = ranks / tensor;
  const int64_t heads = question.work.heads / tensor;
  const ParallelLayout halves{.data = 2, .context = {1, (places + 1) / 2}, .tensor = tensor};
  if (data_open && places > 1 && branches == 1) add(halves, "without guidance there is one branch to compute");
  if (data_open && branches == 2 && places > 1 && places % 2 != 0)
    add(halves, fmt::format("{} ranks cannot be halved", places));
  const parallel::ContextRequest& context_fixed = question.request.context;
  if (context_fixed.ulysses || context_fixed.ring || context_fixed.two_dimensional) return illegal;
  std::vector<ParallelLayout> legal = legal_splits(question, ranks);
  std::erase_if(legal, [&](const ParallelLayout& split) { return split.tensor != tensor; });
  for (const int context : values(legal, [](const ParallelLayout& s) { return s.context.ranks(); })) {
    for (const int ulysses : parallel::legal_ulysses(context, context)) {
      if (ulysses <= heads) continue;
      add({.data = places / context, .context = {ulysses, context / ulysses}, .tensor = tensor},
          fmt::format("{} Ulysses ranks, but {} heads, and a rank cannot attend less than one", ulysses, heads));
    }
  }
  return illegal;
}

void check_request(const Question& question) {
  const LayoutRequest& fixed = question.request;
  const std::vector<int> sizes = run_sizes(question);
  const bool any =
      std::any_of(sizes.begin(), sizes.end(), [&](int ranks) { return !legal_splits(question, ranks).empty(); });
  if (!any) check_splits(question, question.ranks);
  if (fixed.context.head_chunks && *fixed.context.head_chunks < 1)
    fail("ulysses_attention_chunks={} must be at least 1, which is one group of all heads", *fixed.context.head_chunks);
  const int shards = fixed.weight_shards.value_or(1), tensor = fixed.tensor.value_or(1);
  if (shards < 1 || question.ranks % shards != 0)
    fail("fsdp_parallelism={} does not divide the {} ranks", shards, question.ranks);
  if (!can_share(fixed, question.ranks, tensor)) {
    fail("fsdp_parallelism={} does not divide the {} ranks that tensor_parallelism={} leaves of {}", shards,
         question.ranks / tensor, tensor, question.ranks);
  }
  if (question.block_q && *question.block_q < 0) fail("block_q={} must be at least 1", *question.block_q);
  const auto rows = static_cast<int>(std::min<int64_t>(question.ranks, question.work.vae_rows));
  if (fixed.vae_ranks && (*fixed.vae_ranks < 1 || *fixed.vae_ranks > rows)) {
    fail("vae_parallel={} must be from 1 to {}: there {} {}, and each needs one of {} latent rows", *fixed.vae_ranks,
         rows, question.ranks == 1 ? "is" : "are", counted(question.ranks, "rank"), question.work.vae_rows);
  }
}

std::vector<Kernel> kernels(const Question& question, const ParallelLayout& split) {
  const HardwareProfile& hardware = question.hardware;
  const ComputeFigures& figures = hardware.compute(question.work.element_bytes);
  std::vector<Softmax> softmaxes{Softmax::kOnline};
  if (figures.fixed_max_gain > 1) softmaxes.push_back(Softmax::kFixedMax);
  if (question.softmax) softmaxes = {*question.softmax};
  std::vector<int64_t> blocks = hardware.block_q_choices;
  if (blocks.empty()) blocks = {0};
  if (question.block_q) blocks = {*question.block_q};
  const int64_t queries = ceil_div(question.work.tokens, split.of_sequence().ring * split.of_sequence().gather);
  std::vector<Kernel> found;
  for (const Softmax softmax : softmaxes) {
    for (const int64_t block : blocks) {
      const int64_t wanted = block > 0 ? block : hardware.block_q;
      const int64_t rows = wanted > 0 ? std::min(wanted, queries) : queries;
      const double efficiency = figures.attention.at(static_cast<double>(rows));
      const double gain = softmax == Softmax::kFixedMax ? figures.fixed_max_gain : 1;
      found.push_back({softmax, block, padding(queries, rows) / (efficiency * gain)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Kernel& a, const Kernel& b) { return a.price < b.price; });
  return found;
}

std::vector<ParallelLayout> in_directions(const Question& question, const ParallelLayout& split) {
  // Two ranks have one neighbour: all directions send the same there.
  constexpr int kFewestForDirections = 3;
  std::vector<Direction> directions{Direction::kForward};
  if (question.request.context.direction) directions = {*question.request.context.direction};
  else if (split.of_sequence().ring >= kFewestForDirections)
    directions.assign(std::begin(parallel::kDirections), std::end(parallel::kDirections));
  std::vector<ParallelLayout> layouts(directions.size(), split);
  for (size_t i = 0; i < layouts.size(); ++i) layouts[i].context.direction = directions[i];
  return layouts;
}

std::vector<ParallelLayout> in_chunks(const Question& question, const ParallelLayout& split) {
  std::vector<int> counts{1};
  const int ulysses = split.of_sequence().ulysses;
  if (question.request.context.head_chunks) counts = {*question.request.context.head_chunks};
  else if (ulysses > 1)
    for (const int count : kMoreHeadChunks)
      if (count <= ceil_div(question.work.heads / split.tensor, int64_t{ulysses})) counts.push_back(count);
  std::vector<ParallelLayout> layouts(counts.size(), split);
  for (size_t i = 0; i < layouts.size(); ++i) layouts[i].context.head_chunks = counts[i];
  return layouts;
}

std::vector<int> vae_ranks(const Question& question, int ranks) {
  const auto most = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(ranks, question.work.vae_rows)));
  if (question.request.vae_ranks) return {std::clamp(*question.request.vae_ranks, 1, most)};
  std::vector<int> counts;
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration) {
  const Prices prices(work, hardware, configuration);
  const int tensor = configuration.layout.tensor;
  const int64_t batch = work.batch(configuration.layout.data);
  const parallel::ContextLayout context = configuration.layout.of_sequence();
  const int64_t tokens = ceil_div(work.tokens, context.ranks());
  const int64_t block = work.tokens / context.ring, queries = block / context.gather;
  const int64_t heads = ceil_div(work.heads / tensor, int64_t{context.ulysses});
  const auto layers = static_cast<double>(work.layers);
  Breakdown least;
  least.linear = layers * prices.layer_gemms(tensor, tokens, batch);
  least.tokens = layers * prices.tokens(tokens, batch);
  least.overhead = layers * hardware.layer_overhead * static_cast<double>(batch);
  least.attention = layers * context.ring * prices.attention(queries, block, heads, batch);
  const BestLink link = best_link(hardware);
  const auto travel = [&](int64_t arriving, int latencies) {
    const auto bytes = static_cast<double>(parallel::kv_bytes(work.sizes(batch), {0, arriving}, heads));
    return layers * std::max(link.bandwidth > 0 ? bytes / link.bandwidth : 0, latencies * link.latency);
  };
  const TensorSums sums = tensor_sums(work, tensor, tokens, batch);
  const auto sent = static_cast<double>(sums.bytes * (tensor - 1));
  least.tensor =
      layers * ((link.bandwidth > 0 ? sent / link.bandwidth : 0) + static_cast<double>(sums.exchanges) * link.latency);
  const double ring = travel(block * (context.ring - 1), (context.ring - 1) / 2);
  least.exposed_ring = std::max(0.0, ring - least.attention);
  if (context.gather > 1) least.exposed_exchange = travel(queries * (context.gather - 1), 1);
  StepPrediction step;
  step.seconds = least.total();
  step.ranks = {least};
  return step;
}

double least_of_change(const StepPrediction& plain, const parallel::ContextLayout& before,
                       const parallel::ContextLayout& after) {
  const Breakdown& c = plain.critical();
  const double exchange = c.exposed_exchange * before.head_chunks / std::max(before.head_chunks, after.head_chunks);
  const double attention = before.direction != after.direction
                               ? std::max(c.attention, kLeftByDirection * c.exposed_ring)
                               : c.attention + kLeftByHeadChunks * c.exposed_ring;
  return c.linear + c.tokens + c.overhead + c.tensor + c.gather + exchange + attention;
}

}  // namespace zoetrope::planner
