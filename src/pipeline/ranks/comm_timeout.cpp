#include "pipeline/ranks/comm_timeout.h"

#include <algorithm>

namespace zoetrope::pipeline {

namespace {

constexpr double kTimes = 10;
constexpr double kLeast = 60;  // a busy machine delays a rank by seconds, however short its steps are

}  // namespace

comm::RankOptions rank_options(const ModelOptions& options) {
  comm::RankOptions ranks;
  ranks.timeout_seconds = options.comm_timeout.value_or(ranks.timeout_seconds);
  ranks.extends = !options.comm_timeout;
  return ranks;
}

double step_timeout(const planner::StepPrediction& step, const parallel::ParallelLayout& layout) {
  const bool every_layer = layout.context.ranks() > 1 || layout.tensor > 1 || layout.weight_shards > 1;
  return std::max(kLeast, kTimes * (every_layer ? step.layer_seconds : step.seconds));
}

}  // namespace zoetrope::pipeline
