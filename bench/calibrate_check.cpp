#include "zoetrope/attention.h"

#include "attention/plan.h"
#include "bench/attention_data.h"
#include "bench/calibrate_measure.h"
#include "pipeline/planning/layout_question.h"
#include "planner/simulator.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kHeads = 8, kHeadDim = 128;

attention::Problem problem_of(int64_t tokens, DType dtype) {
  return {.tokens = tokens, .heads = kHeads, .head_dim = kHeadDim, .dtype = dtype};
}

// As many tokens as a rank of `peak` FLOP per second attends to within some windows.
int64_t tokens_of(CalibrationRank& rank, double peak) {
  constexpr int64_t kLeast = 1024, kMost = 4096;
  constexpr double kWindows = 40;
  const auto seconds = [&](int64_t tokens) {
    const auto scores = static_cast<double>(tokens) * static_cast<double>(tokens) * kHeads;
    return 4 * kHeadDim * scores / rank.world().size() / peak;
  };
  int64_t tokens = kMost;
  while (tokens > kLeast && seconds(tokens) > kWindows * rank.seconds()) tokens /= 2;
  return static_cast<int64_t>(rank.world().all_reduce_max(static_cast<double>(tokens)));
}

// Only the attention of a layer.
double predicted(const planner::HardwareProfile& profile, const planner::Configuration& configuration,
                 const attention::Problem& problem, double speed) {
  planner::HardwareProfile attention_only = profile;
  attention_only.layer_overhead = 0;
  for (planner::ComputeFigures* compute : {&attention_only.bf16, &attention_only.float32}) compute->peak *= speed;
  const planner::Work work = pipeline::attention_work(problem);
  return simulate_step(work, attention_only, configuration).layer_seconds;
}

struct Timed {
  Measured time;
  double peak = 0;
};

Timed run(CalibrationRank& rank, const attention::Strategy& strategy, const attention::Problem& problem) {
  attention::ContextAttention attention = attention::plan(problem, strategy, rank.world(), rank.stream());
  const Tensor o(problem.dtype, {1, attention.tokens().size(), kHeads, kHeadDim});
  uint64_t seed = 1;
  // The values do not affect the time, as long as they are not denormal or NaN.
  const attention::InputSlots& slots = attention.input_slots();
  for (const std::vector<HeadSlot>* list : {&slots.q, &slots.k, &slots.v})
    for (const HeadSlot& slot : *list) fill_normal(slot.out, seed++);
  const Isa isa = calibrated_isa(rank, problem.dtype);
  const auto once = [&] { attention.run({}, o); };
  rank.slowest(1, once);
  std::vector<double> seconds, peaks{rank.peak(isa)};
  for (int i = 0; i < kRepeats; ++i) {
    seconds.push_back(rank.slowest(1, once));
    peaks.push_back(rank.peak(isa));
  }
  return {measured(seconds), median(peaks)};
}

}  // namespace

std::vector<SelfCheck> check_profile(CalibrationRank& rank, const planner::HardwareProfile* profile, DType dtype,
                                     double peak) {
  const int ranks = rank.world().size();
  std::vector<parallel::ContextLayout> layouts;
  if (ranks <= kHeads) layouts.push_back({.ulysses = ranks});
  if (ranks > 1) layouts.push_back({.ring = ranks});
  const attention::Problem problem = problem_of(tokens_of(rank, peak), dtype);
  std::vector<SelfCheck> checks;
  for (const parallel::ContextLayout& layout : layouts) {
    attention::Strategy strategy;
    strategy.layout = parallel::ContextRequest::exactly(layout);
    strategy.softmax = attention::Softmax::kOnline;
    const Timed timed = run(rank, strategy, problem);
    if (profile == nullptr) continue;
    planner::Configuration configuration;
    configuration.layout.context = layout;
    const double speed = timed.peak / peak;
    checks.push_back({fmt::format("{}, {} tokens, {} heads", configuration.text(), problem.tokens, kHeads),
                      predicted(*profile, configuration, problem, speed), timed.time.value, timed.time.spread, speed});
  }
  return checks;
}

}  // namespace zoetrope::bench
