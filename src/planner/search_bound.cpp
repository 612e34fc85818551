#include "planner/search_bound.h"

#include <algorithm>

#include "base/index_range.h"
#include "planner/layer_walk.h"

namespace zoetrope::planner {
namespace {

// Shares of the ring's waiting that stay.
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

}  // namespace

StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration) {
  const RankUse& use = configuration.ranks;
  const Prices prices(work, hardware, configuration);
  const int64_t batch = work.branches / use.data;
  const parallel::Topology context = use.sharded ? use.context : parallel::Topology{1, 1};
  const int64_t tokens = ceil_div(work.tokens, context.ranks()), block = work.tokens / context.ring;
  const int64_t heads = ceil_div(work.heads, context.ulysses);
  const auto layers = static_cast<double>(work.layers);
  Breakdown least;
  least.linear = layers * prices.products(work.linear_flop + work.cross_flop, tokens, batch);
  least.tokens = layers * prices.tokens(tokens, batch);
  least.overhead = layers * hardware.layer_overhead * static_cast<double>(batch);
  least.attention = layers * context.ring * prices.attention(block, block, heads, batch);
  const BestLink link = best_link(hardware);
  const double bytes =
      static_cast<double>(parallel::kv_bytes(work.sizes(batch), {0, block * (context.ring - 1)}, heads));
  const int hops = (context.ring - 1) / 2;
  const double ring = layers * std::max(link.bandwidth > 0 ? bytes / link.bandwidth : 0, hops * link.latency);
  least.exposed_ring = std::max(0.0, ring - least.attention);
  StepPrediction step;
  step.seconds = least.total();
  step.ranks = {least};
  return step;
}

double least_of_change(const StepPrediction& plain, Change change, int chunks_before, int chunks) {
  const Breakdown& c = plain.critical();
  const double exchange = c.exposed_exchange * chunks_before / std::max(chunks_before, chunks);
  const double attention = change == Change::kDirection ? std::max(c.attention, kLeftByDirection * c.exposed_ring)
                                                        : c.attention + kLeftByHeadChunks * c.exposed_ring;
  return c.linear + c.tokens + c.overhead + c.gather + exchange + attention;
}

}  // namespace zoetrope::planner
