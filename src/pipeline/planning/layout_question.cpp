#include "pipeline/planning/layout_question.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/words.h"
#include "kernels/flash_attention/flash_attention.h"
#include "parallel/exchange.h"
#include "parallel/shards.h"
#include "pipeline/planning/step_cache_settings.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

using parallel::ParallelLayout;

struct Axis {
  const char* key;
  int64_t degree;
};

// The ranks along an axis, where −1 on one of them means "what is left". Throws Error where a degree is no count, two
// are −1, or the product is not the number of ranks.
void fill_axes(std::array<Axis, 3>& axes, int ranks) {
  Axis* open = nullptr;
  int64_t product = 1;
  for (Axis& axis : axes) {
    if (axis.degree == -1) {
      if (open != nullptr) fail("{} and {} are both -1, but only one degree can be what is left", open->key, axis.key);
      open = &axis;
      continue;
    }
    if (axis.degree < 1)
      fail("{}={} is not a degree; legal are 1, 2, 3, … and -1 for what is left", axis.key, axis.degree);
    product *= axis.degree;
  }
  if (open != nullptr) {
    if (ranks % product != 0) {
      fail("{}=-1 takes what is left, but {} ranks do not divide by the product {} of the other degrees", open->key,
           ranks, product);
    }
    open->degree = ranks / product;
  } else if (product != ranks) {
    std::string degrees;
    for (const Axis& axis : axes)
      degrees += fmt::format("{}{}={}", degrees.empty() ? "" : " × ", axis.key, axis.degree);
    fail("{} make {} ranks, but there are {}; one degree may be -1 for what is left", degrees, product, ranks);
  }
}

// What one key says of the ranks that share layers; unset: open. Throws Error for what does not divide ranks and heads.
std::optional<int> tensor_degree(const GenerateOptions& o, const ModelFolder& model, int ranks) {
  if (!o.tensor_parallelism) return std::nullopt;
  std::array axes{Axis{"data_parallelism", o.data_parallelism.value_or(1)},
                  Axis{"context_parallelism", o.context_parallelism},
                  Axis{"tensor_parallelism", *o.tensor_parallelism}};
  // What others say matters only where this is what they leave.
  if (*o.tensor_parallelism == -1) fill_axes(axes, ranks);
  parallel::check_tensor(axes[2].degree, ranks, model.experts[0].config.num_attention_heads);
  return static_cast<int>(axes[2].degree);
}

// Over how many ranks the weights are spread; unset: the planner's to say. Throws Error for what does not divide them.
std::optional<int> weight_shards(const GenerateOptions& o, int ranks) {
  if (!o.fsdp_parallelism) return std::nullopt;
  if (*o.fsdp_parallelism == -1) return ranks;
  if (*o.fsdp_parallelism >= 1 && *o.fsdp_parallelism <= ranks && ranks % *o.fsdp_parallelism == 0)
    return static_cast<int>(*o.fsdp_parallelism);
  fail("fsdp_parallelism={} does not divide the {}; legal values: {}, or -1 for all", *o.fsdp_parallelism,
       counted(ranks, "rank"), fmt::join(parallel::legal_ulysses(ranks, ranks), ", "));
}

// What is said of data. As in the published system, whose mesh has an axis of its own for weights, the branches are
// dealt to data × fsdp where these and the context are all ranks.
std::optional<int64_t> said_of_data(const GenerateOptions& o, int ranks) {
  const int64_t data = o.data_parallelism.value_or(-1), fsdp = o.fsdp_parallelism.value_or(1);
  if (data < 1 || o.context_parallelism < 1 || data * o.context_parallelism == ranks) return o.data_parallelism;
  return data * fsdp * o.context_parallelism == ranks ? data * fsdp : data;
}

// Of data where its own key does not say it: what the context leaves, else `open`.
int64_t data_degree(const GenerateOptions& o, const RunPlan& plan, int ranks, int open) {
  if (const std::optional<int64_t> data = said_of_data(o, ranks)) return *data;
  if (o.context_parallelism == -1) return open;
  return plan.guided && ranks == 2 * o.context_parallelism ? 2 : 1;
}

// How parts of the data came about, as it was written, and what makes one part of them.
struct DataKeys {
  std::string written, one;
};

DataKeys data_keys(const GenerateOptions& o, int data, int ranks) {
  constexpr const char* kOne = "data_parallelism=1";
  std::string own = fmt::format("data_parallelism={}", o.data_parallelism.value_or(data));
  if (said_of_data(o, ranks) != o.data_parallelism) own += fmt::format(" × fsdp_parallelism={}", *o.fsdp_parallelism);
  if (o.context_parallelism == -1) return {own, kOne};
  const std::string whole = fmt::format("context_parallelism={}", ranks);
  if (o.data_parallelism.value_or(-1) != -1) return {own, fmt::format("{} and {}", kOne, whole)};
  const std::string rest =
      fmt::format("context_parallelism={} of {} ranks, which leaves {} parts for guidance branches",
                  o.context_parallelism, ranks, data);
  if (o.data_parallelism) return {fmt::format("{} with {}", own, rest), whole};
  return {rest, whole + ", or leave it out"};
}

// Throws Error where guidance has fewer than `data` branches, or a cache needs them on the same ranks; names the key
// that made it so many.
void check_data_degree(const GenerateOptions& o, int data, int ranks) {
  if (data == 1) return;
  const auto& [written, one] = data_keys(o, data, ranks);
  if (o.guidance_scale <= 1) {
    fail("{}: without guidance (guidance_scale={}) there is one branch to compute; use {}", written, o.guidance_scale,
         one);
  }
  if (data > 2) fail("{}: there are two guidance branches; use {}, or two parts", written, one);
  if (computes_branches_in_turn(o)) {
    fail(
        "{} with cache=cfg: the guidance branches would run at the same time, so leaving one out saves nothing; use "
        "{}, or another cache",
        written, one);
  }
}

// How many ranks a context of `places` can have; empty where the keys contradict themselves, which others say.
std::vector<int> context_sizes(const GenerateOptions& o, const RunPlan& plan, int places) {
  if (o.context_parallelism != -1) {
    if (o.context_parallelism < 1 || o.context_parallelism > places) return {};
    return {static_cast<int>(o.context_parallelism)};
  }
  if (const int64_t data = said_of_data(o, places).value_or(-1); data != -1) {
    if (data < 1 || places % data != 0) return {};
    return {static_cast<int>(places / data)};
  }
  const bool divides = plan.guided && !o.strategy.deterministic && !computes_branches_in_turn(o) && places % 2 == 0;
  return divides ? std::vector{places, places / 2} : std::vector{places};
}

// A list has one weight for each rank of a context. Returns how many; unset: there is no list.
std::optional<int> context_of_weights(const GenerateOptions& o, const RunPlan& plan, int places, bool side_by_side) {
  const std::vector<int>& weights = o.strategy.shard_weights.fixed;
  if (weights.empty()) return std::nullopt;
  const auto count = static_cast<int>(weights.size());
  const std::vector<int> sizes = context_sizes(o, plan, places);
  const auto is_possible = [&](int of) {
    const std::vector<int> possible = of == places ? sizes : context_sizes(o, plan, of);
    return std::find(possible.begin(), possible.end(), count) != possible.end();
  };
  bool possible = sizes.empty() || is_possible(places);
  for (int of = 1; of < places && side_by_side; ++of) possible = possible || (places % of == 0 && is_possible(of));
  if (possible) return count;
  fail("shard_weights={} has {}, but the context has {}; give one for each", fmt::join(weights, ","),
       counted(count, "number"),
       sizes.size() == 1 ? counted(sizes[0], "rank") : fmt::format("{} ranks", fmt::join(sizes, " or ")));
}

ParallelLayout lay_out(const GenerateOptions& o, const RunPlan& plan, const ModelFolder& model, int ranks, int data) {
  ParallelLayout layout;
  layout.tensor = tensor_degree(o, model, ranks).value_or(1);
  const int places = ranks / layout.tensor;  // for data and context
  std::array axes{Axis{"data_parallelism", data_degree(o, plan, places, data)},
                  Axis{"context_parallelism", o.context_parallelism}, Axis{"tensor_parallelism", layout.tensor}};
  fill_axes(axes, ranks);
  layout.data = static_cast<int>(axes[0].degree);
  check_data_degree(o, layout.data, places);
  const int64_t heads = model.experts[0].config.num_attention_heads / layout.tensor;
  const int context = static_cast<int>(axes[1].degree);
  layout.context = filled(attention::parse_strategy(o.strategy, context, heads).layout, context, heads);
  layout.sharded = plan.tokens >= o.flash_min_seq_length;
  layout.vae_ranks = decoding_ranks(o, plan, model, ranks);
  layout.text_ranks = text_ranks(o.strategy.deterministic, ranks);
  layout.weight_shards = weight_shards(o, places).value_or(1);
  return layout;
}

// Keys that contradict themselves or a name are refused here; the search checks degrees against the ranks.
void check_keys(const GenerateOptions& o, int64_t heads) {
  constexpr int64_t kAbsurd = 1'000'000;
  if (const int64_t said = o.strategy.ulysses_shards.value_or(1); said > kAbsurd || said < -kAbsurd)
    fail("ulysses_shards={}: from 1 to the {} heads of this model", said, heads);
  attention::Strategy strategy = attention::requested_strategy(o.strategy);
  strategy.layout.ulysses = strategy.layout.ring = std::nullopt;
  strategy.layout.two_dimensional = false;
  strategy.layout.shard_weights.clear();
  attention::checked_strategy(strategy, 1, heads);
}

std::optional<int> degree(const std::optional<int64_t>& said) {
  return said ? std::optional(static_cast<int>(*said)) : std::nullopt;
}

void fix_by_keys(planner::Question& q, const attention::StrategyOptions& keys) {
  const attention::Strategy strategy = attention::requested_strategy(keys);
  q.request.context = strategy.layout;
  q.softmax = strategy.softmax;
  // What was measured must not change a bit.
  if (keys.deterministic && !q.softmax) q.softmax = parallel::Softmax::kOnline;
  // As a CPU computes them.
  if (strategy.block_q > 0) q.block_q = std::min(strategy.block_q, kernels::kMostTileRows);
  if (strategy.block_kv > 0) q.block_kv = std::min(strategy.block_kv, kernels::kMostTileKeys);
}

}  // namespace

ParallelLayout layout_by_rule(const GenerateOptions& o, const RunPlan& plan, const ModelFolder& model, int ranks) {
  context_of_weights(o, plan, ranks / tensor_degree(o, model, ranks).value_or(1), false);
  const auto divided = [&]() -> std::optional<ParallelLayout> {
    if (!plan.guided || o.strategy.deterministic || ranks % 2 != 0) return std::nullopt;
    try {
      return lay_out(o, plan, model, ranks, 2);
    } catch (const Error&) {
      return std::nullopt;
    }
  };
  try {
    const ParallelLayout layout = lay_out(o, plan, model, ranks, 1);
    // flash is for one rank: with the branches divided, fewer gather or none.
    const bool by_flash = layout.context.gather > 1 && !attention::names_topology(o.strategy);
    return by_flash ? divided().value_or(layout) : layout;
  } catch (const Error&) {
    // What a key says may be possible with the branches divided.
    if (const std::optional<ParallelLayout> layout = divided()) return *layout;
    throw;
  }
}

planner::Question run_question(const RunPlan& plan, const ModelFolder& model, const MemoryQuestion& memory, int ranks,
                               planner::Objective objective) {
  const GenerateOptions& o = memory.options;
  check_keys(o, model.experts[0].config.num_attention_heads);
  planner::Question q;
  q.ranks = ranks;
  q.objective = objective;
  q.request.tensor = tensor_degree(o, model, ranks);
  const int places = ranks / q.request.tensor.value_or(1);  // for data and context
  q.sharded = plan.tokens >= o.flash_min_seq_length;
  fix_by_keys(q, o.strategy);
  if (o.data_parallelism != -1) q.request.data = degree(said_of_data(o, places));
  if (o.context_parallelism != -1) q.request.context_ranks = degree(o.context_parallelism);
  const bool side_by_side = objective != planner::Objective::kLatency;
  if (const std::optional<int> count = context_of_weights(o, plan, places, side_by_side))
    q.request.context_ranks = count;
  // A named topology keeps its ranks.
  q.request.one_context =
      q.sharded && !o.data_parallelism && o.context_parallelism == -1 && attention::names_topology(o.strategy);
  if (computes_branches_in_turn(o)) {
    // What the context leaves is of data; a context that does not divide the ranks is the search's to refuse.
    const int context = q.request.context_ranks.value_or(0);
    const bool leaves = context > 0 && places % context == 0;
    check_data_degree(o, q.request.data.value_or(leaves ? places / context : 1), places);
    q.request.data = 1;
  }
  q.request.vae_ranks = degree(o.vae_parallel);
  q.work = work_of(memory);
  if (o.strategy.deterministic) {
    q.request = parallel::LayoutRequest::exactly(layout_by_rule(o, plan, model, ranks));
    q.all_decode = !o.vae_parallel;
  }
  q.request.weight_shards = weight_shards(o, places);
  q.work.steps = priced_steps(plan);
  if (o.cache_compare) q.work.steps += plan.total_steps();  // denoised first, all of them in full
  if (side_by_side) q.work.ranks_of_all_runs = ranks;
  q.memory = workload_by_layout(memory);
  return q;
}

planner::Work attention_work(const attention::Problem& problem) {
  planner::Work work;
  work.layers = 1;
  work.tokens = problem.tokens;
  work.heads = problem.heads;
  work.head_dim = problem.head_dim;
  work.element_bytes = static_cast<int64_t>(dtype_size(problem.dtype));
  work.branches = static_cast<int>(problem.batch);
  work.steps = 1;
  return work;
}

planner::Question attention_question(const attention::Problem& problem, const attention::StrategyOptions& keys,
                                     int ranks) {
  const attention::Strategy by_rule = attention::parse_strategy(keys, ranks, problem.heads);
  planner::Question q;
  q.ranks = ranks;
  fix_by_keys(q, keys);
  if (keys.deterministic) q.request.context = by_rule.layout;
  q.request.data = q.request.text_ranks = q.request.tensor = 1;
  q.work = attention_work(problem);
  q.work.kv_vector_bytes = parallel::kv_vector_bytes(keys.kv_exchange_dtype, problem.head_dim);
  q.memory = [sizes = q.work.sizes(problem.batch)](const ParallelLayout& layout, int ranks_here) {
    planner::Workload workload;
    workload.layout = layout;
    workload.ranks_here = ranks_here;
    workload.attention = sizes;
    workload.experts.emplace_back().name = "attention";
    return workload;
  };
  q.memory_limit = planner::Bytes::most();  // attention::plan allocates it, or throws
  return q;
}

std::string no_exchange_note(const GenerateOptions& o, const ParallelLayout& layout) {
  if (layout.of_sequence().ranks() > 1) return "";
  std::vector<std::string> keys;
  const attention::ShardWeights& weights = o.strategy.shard_weights;
  if (weights.automatic) keys.emplace_back("shard_weights=auto");
  if (!weights.fixed.empty()) keys.push_back(fmt::format("shard_weights={}", fmt::join(weights.fixed, ",")));
  if (o.strategy.kv_exchange_dtype != parallel::KVExchange::kAsComputed)
    keys.push_back(fmt::format("kv_exchange_dtype={}", kv_exchange_name(o.strategy.kv_exchange_dtype)));
  if (keys.empty()) return "";
  return fmt::format("{} without effect: a rank has whole sequences, and nothing is exchanged",
                     fmt::join(keys, " and "));
}

std::string keep_one_copy(planner::Question& question, const GenerateOptions& options) {
  const bool spread = question.request.weight_shards.value_or(1) > 1;
  question.request.weight_shards = 1;
  if (!spread) return "";
  return fmt::format("fsdp_parallelism={}: the ranks of one process have one copy of the weights, whatever it says",
                     *options.fsdp_parallelism);
}

void leave_tiles_to_kernels(planner::Question& question) {
  if (!question.block_q) question.block_q = 0;
}

}  // namespace zoetrope::pipeline
