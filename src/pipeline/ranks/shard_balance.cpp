#include "pipeline/ranks/shard_balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "planner/shard_weights.h"

namespace zoetrope::pipeline {
namespace {

constexpr size_t kSamples = 2;          // steps that a decision looks at
constexpr double kGain = 0.05;          // what a change must promise, of a step
constexpr double kClearlySlower = 1.1;  // seen after one step
constexpr int64_t kTrusted = 16;        // steps, the first time
constexpr double kNear = 0.1;           // shares that differ by less are the same, relative

// Whether the shares of all ranks are about the same.
bool near(const std::vector<int>& a, const std::vector<int>& b, size_t ranks) {
  const auto share = [&](const std::vector<int>& weights, size_t rank) {
    if (weights.empty()) return 1.0 / static_cast<double>(ranks);
    double sum = 0;
    for (const int weight : weights) sum += weight;
    return weights[rank] / sum;
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double x = share(a, rank), y = share(b, rank);
    if (std::abs(x - y) > kNear * std::min(x, y)) return false;
  }
  return true;
}

}  // namespace

ShardBalance::ShardBalance(ShardPricing pricing) : pricing_(std::move(pricing)) {
  ZT_CHECK(pricing_.hardware != nullptr);
  change_to(pricing_.configuration.layout.context.shard_weights);
}

double ShardBalance::seconds(const std::vector<int>& weights, const std::vector<double>& speeds) const {
  planner::HardwareProfile hardware = *pricing_.hardware;
  hardware.speeds = speeds;
  return planner::simulate_shards(pricing_.work, hardware, pricing_.configuration, weights).seconds;
}

std::vector<double> ShardBalance::mean_speeds() const {
  std::vector<double> mean(samples_.front().speeds.size(), 0);
  for (const Sample& sample : samples_)
    for (size_t rank = 0; rank < mean.size(); ++rank)
      mean[rank] += sample.speeds[rank] / static_cast<double>(samples_.size());
  return mean;
}

double ShardBalance::mean_seconds() const {
  double sum = 0;
  for (const Sample& sample : samples_) sum += sample.seconds;
  return sum / static_cast<double>(samples_.size());
}

ShardBalance::Known* ShardBalance::known(const std::vector<int>& weights) {
  const auto ranks = static_cast<size_t>(pricing_.configuration.layout.context.ranks());
  for (Known& other : known_)
    if (near(other.weights, weights, ranks)) return &other;
  return nullptr;
}

// What steps with the present weights take.
void ShardBalance::remember(double seconds) {
  if (Known* before = known(weights_)) {
    *before = {weights_, seconds, step_, 2 * before->trusted_for};
  } else {
    known_.push_back({weights_, seconds, step_, kTrusted});
  }
}

std::vector<int> ShardBalance::change_to(const std::vector<int>& weights) {
  weights_ = weights;
  samples_.clear();
  leave_out_ = true;
  priced_.clear();
  const planner::StepPrediction step =
      planner::simulate_shards(pricing_.work, *pricing_.hardware, pricing_.configuration, weights_);
  for (const planner::Breakdown& rank : step.ranks) priced_.push_back(planner::compute_seconds(rank));
  return weights_;
}

// At best all ranks compute all the time and end together. Cheap, unlike the search over weights of many ranks.
bool ShardBalance::can_gain() const {
  return std::all_of(samples_.begin(), samples_.end(), [&](const Sample& sample) {
    double work = 0, speed = 0;
    for (size_t rank = 0; rank < priced_.size(); ++rank) {
      work += priced_[rank];
      speed += sample.speeds[rank];
    }
    return work / speed <= (1 - kGain) * sample.seconds;
  });
}

std::optional<std::vector<int>> ShardBalance::after_step(const std::vector<RankStep>& ranks) {
  ZT_CHECK(ranks.size() == priced_.size(), "{} ranks measured, {} priced", ranks.size(), priced_.size());
  ++step_;
  Sample sample;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    // A rank without tokens says nothing about its speed.
    const bool computes = ranks[rank].computed > 0 && priced_[rank] > 0;
    sample.speeds.push_back(computes ? priced_[rank] / ranks[rank].computed : 1);
    sample.seconds = std::max(sample.seconds, ranks[rank].computed + ranks[rank].waited);
  }
  const bool left_out = std::exchange(leave_out_, false);
  const auto give_up = [&](double seconds) {
    remember(seconds);
    return change_to(std::exchange(trial_, std::nullopt)->before);
  };
  if (trial_ && sample.seconds > kClearlySlower * trial_->seconds) return give_up(sample.seconds);
  if (left_out) return std::nullopt;
  samples_.push_back(std::move(sample));
  if (samples_.size() < kSamples) return std::nullopt;
  if (samples_.size() > kSamples) samples_.erase(samples_.begin());
  if (trial_ && mean_seconds() >= trial_->seconds) return give_up(mean_seconds());
  trial_.reset();
  if (!can_gain()) return std::nullopt;

  planner::HardwareProfile hardware = *pricing_.hardware;
  hardware.speeds = mean_speeds();
  const std::vector<int> wanted = planner::fastest_shard_weights(pricing_.work, hardware, pricing_.configuration);
  const auto gains = [&](const Sample& of) {
    return seconds(wanted, of.speeds) <= (1 - kGain) * seconds(weights_, of.speeds);
  };
  if (wanted == weights_ || !std::all_of(samples_.begin(), samples_.end(), gains)) return std::nullopt;
  const Known* measured = known(wanted);
  if (measured != nullptr && step_ < measured->step + measured->trusted_for &&
      measured->seconds > (1 - kGain) * mean_seconds())
    return std::nullopt;
  if (pricing_.fits && !pricing_.fits(wanted)) return std::nullopt;
  trial_ = {weights_, mean_seconds()};
  remember(mean_seconds());
  return change_to(wanted);
}

}  // namespace zoetrope::pipeline
