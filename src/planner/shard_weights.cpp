#include "planner/shard_weights.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace zoetrope::planner {
namespace {

// In the smallest numbers that are within this of the shares.
constexpr double kRounding = 0.015;
constexpr int kLargestWeight = 100;

std::vector<int> in_small_numbers(const std::vector<double>& shares) {
  const double largest = *std::max_element(shares.begin(), shares.end());
  std::vector<int> weights(shares.size());
  for (int scale = 1; scale <= kLargestWeight; ++scale) {
    bool close = true;
    for (size_t i = 0; i < shares.size(); ++i) {
      const double wanted = scale * shares[i] / largest;
      weights[i] = std::max(1, static_cast<int>(std::lround(wanted)));
      close = close && std::abs(weights[i] - wanted) <= kRounding * wanted;
    }
    if (close) break;
  }
  return parallel::reduced(weights);
}

// By context rank: of the slowest of the devices that have this place in their context.
std::vector<double> context_speeds(const HardwareProfile& hardware, const parallel::ParallelLayout& layout) {
  std::vector<double> speeds(static_cast<size_t>(layout.context.ranks()), 0);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    double& speed = speeds[static_cast<size_t>(layout.context_index(rank))];
    const double mine = hardware.speed(rank);
    speed = speed == 0 ? mine : std::min(speed, mine);
  }
  return speeds;
}

}  // namespace

double compute_seconds(const Breakdown& rank) {
  return rank.linear + rank.attention + rank.tokens + rank.overhead + rank.merge;
}

StepPrediction simulate_shards(const Work& work, const HardwareProfile& hardware, Configuration configuration,
                               const std::vector<int>& shard_weights) {
  configuration.layout.context.shard_weights = shard_weights;
  return simulate_step(work, hardware, configuration);
}

std::vector<int> fastest_shard_weights(const Work& work, const HardwareProfile& hardware,
                                       const Configuration& configuration) {
  constexpr int kRounds = 5;
  const parallel::ParallelLayout& layout = configuration.layout;
  if (!layout.sharded || layout.context.ranks() == 1) return {};
  std::vector<int> best;
  double least = simulate_shards(work, hardware, configuration, {}).seconds;
  std::vector<double> shares = context_speeds(hardware, layout);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int> weights = in_small_numbers(shares);
    const StepPrediction step = simulate_shards(work, hardware, configuration, weights);
    if (step.seconds < least) {
      least = step.seconds;
      best = weights;
    }
    std::vector<double> busy(shares.size(), 0);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      double& most = busy[static_cast<size_t>(layout.context_index(rank))];
      most = std::max(most, compute_seconds(step.ranks[static_cast<size_t>(rank)]));
    }
    // Half of what is missing: what one rank is given, all others of its ring or group lose.
    const double longest = *std::max_element(busy.begin(), busy.end());
    for (size_t i = 0; i < shares.size(); ++i)
      if (busy[i] > 0) shares[i] *= std::sqrt(longest / busy[i]);
  }
  return best;
}

}  // namespace zoetrope::planner
