// How far the values of ForwardChecks may be off.
#include <algorithm>

#include "base/error.h"
#include "pipeline/checks/forward_checks.h"

namespace zoetrope::pipeline {

// What keys and values that travel in fewer bits may add to the error of a self-attention: both are rounded once, bf16
// by 2^−9 of each, int8 by half a step of the largest of 32, which is at most 3.5 of their size: 3.5 / (127·√12) =
// 2^−7. The other fourteen roundings of a stage's bound are the room that scores need, which multiply an error of keys.
double ForwardChecks::kv_rounding(const Stage& stage) const {
  constexpr double kRoundings = 16;
  if (stage.kind != Stage::Kind::kSelfAttention) return 0;
  switch (setup_.kv_exchange) {
    case parallel::KVExchange::kAsComputed:
      return 0;
    case parallel::KVExchange::kBFloat16:
      return kRoundings * 0x1p-9;
    case parallel::KVExchange::kInt8:
      return kRoundings * 0x1p-7;
  }
  ZT_CHECK(false);
}

double ForwardChecks::bound(const Stage& stage, int64_t step) const {
  const bool int8 = setup_.attention_dtype == attention::AttentionDtype::kInt8;
  return stage_bound(stage, config_of(step), setup_.plan.dtype) +
         (int8 ? wan::reference::int8_attention_rounding(stage) : 0) + kv_rounding(stage);
}

// Both have rounded alike but for the order of sums: of scores, probabilities, their sum and what is folded, or of what
// ranks that share a layer have of a product: four roundings of the sixteen. Roundings that one rank does not make
// count in full: of exchanged keys and values, and of int8 sums whose parts, on tensor ranks, have scales of their own.
double ForwardChecks::bound_of_one_rank(const Stage& stage, int64_t step) const {
  constexpr double kOfStage = 0.25;
  const bool parts = layout_.tensor > 1 && setup_.plan.dtype == DType::kBF16;
  const double only_of_ranks = kv_rounding(stage) + (parts ? wan::reference::int8_rounding(stage, config_of(step)) : 0);
  return kOfStage * (bound(stage, step) - only_of_ranks) + only_of_ranks;
}

double ForwardChecks::largest_bound() const {
  double largest = 0;
  for (int64_t step = 0; step < std::ssize(timesteps_); ++step)
    for (const Stage& stage : stages_) largest = std::max(largest, bound(stage, step));
  return largest;
}

}  // namespace zoetrope::pipeline
