#include "zoetrope/attention.h"

#include "attention/plan.h"
#include "bench/attention_data.h"
#include "bench/calibrate_measure.h"
#include "pipeline/layout_question.h"
#include "planner/simulator.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kTokens = 4096, kHeads = 8, kHeadDim = 128;

constexpr attention::Problem problem_of(DType dtype) {
  return {.tokens = kTokens, .heads = kHeads, .head_dim = kHeadDim, .dtype = dtype};
}

// Only the attention of a layer.
double predicted(const planner::HardwareProfile& profile, const planner::Configuration& configuration, DType dtype,
                 double speed) {
  planner::HardwareProfile attention_only = profile;
  attention_only.layer_overhead = 0;
  for (planner::ComputeFigures* compute : {&attention_only.bf16, &attention_only.float32}) compute->peak *= speed;
  const planner::Work work = pipeline::attention_work(problem_of(dtype));
  return simulate_step(work, attention_only, configuration).layer_seconds;
}

struct Timed {
  Measured time;
  double peak = 0;
};

Timed run(CalibrationRank& rank, const attention::Strategy& strategy, DType dtype) {
  attention::ContextAttention attention = attention::plan(problem_of(dtype), strategy, rank.world(), rank.stream());
  const Tensor o(dtype, {1, attention.tokens().size(), kHeads, kHeadDim});
  uint64_t seed = 1;
  // The values do not affect the time, as long as they are not denormal or NaN.
  const attention::InputSlots& slots = attention.input_slots();
  for (const std::vector<HeadSlot>* list : {&slots.q, &slots.k, &slots.v})
    for (const HeadSlot& slot : *list) fill_normal(slot.out, seed++);
  const Isa isa = calibrated_isa(rank, dtype);
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
  std::vector<SelfCheck> checks;
  for (const parallel::ContextLayout& layout : layouts) {
    attention::Strategy strategy;
    strategy.layout = parallel::ContextRequest::exactly(layout);
    strategy.softmax = attention::Softmax::kOnline;
    const Timed timed = run(rank, strategy, dtype);
    if (profile == nullptr) continue;
    planner::Configuration configuration;
    configuration.layout.context = layout;
    const double speed = timed.peak / peak;
    checks.push_back({fmt::format("{}, {} tokens, {} heads", configuration.text(), kTokens, kHeads),
                      predicted(*profile, configuration, dtype, speed), timed.time.value, timed.time.spread, speed});
  }
  return checks;
}

}  // namespace zoetrope::bench
