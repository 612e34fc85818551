// Shard weights that follow what is measured (shard_weights=auto). After every step that computes in full, each rank
// says how long it computed and waited; the planner's prices make speeds of that, and weights that make steps shorter.
// Decides for one process, rank 0's: plain numbers in, weights out.
//
// A change needs a predicted gain in every one of the last steps. It is then on trial: steps that become no shorter end
// it. Speeds are what ranks reach while they have something to do, and a rank that waits half of the time may be fast
// only because of that (a quota of CPU time fills up meanwhile), so weights that were slower once are not tried again
// for a while, each time a longer one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/simulator.h"

namespace zoetrope::pipeline {

// What a step is priced with, on the rank that decides.
struct ShardPricing {
  planner::Work work;
  std::shared_ptr<const planner::HardwareProfile> hardware;
  planner::Configuration configuration;                         // with the weights that the run begins with
  std::function<bool(const std::vector<int>& weights)> fits{};  // into memory; null: all do
};

class ShardBalance {
 public:
  explicit ShardBalance(ShardPricing pricing);

  // Seconds of a step, of one rank.
  struct RankStep {
    double computed = 0, waited = 0;
  };
  // After a step that computed in full, of all ranks. The weights of the steps to come, where they change; empty: even.
  std::optional<std::vector<int>> after_step(const std::vector<RankStep>& ranks);
  // The next step does something else besides, as the first with an expert does: it says nothing.
  void leave_out_next() { leave_out_ = true; }

 private:
  struct Sample {
    std::vector<double> speeds;
    double seconds = 0;
  };
  // Weights that were measured.
  struct Known {
    std::vector<int> weights;
    double seconds = 0;       // of a step
    int64_t step = 0;         // the last with them
    int64_t trusted_for = 0;  // steps
  };

  double seconds(const std::vector<int>& weights, const std::vector<double>& speeds) const;
  bool can_gain() const;
  std::vector<double> mean_speeds() const;
  double mean_seconds() const;
  Known* known(const std::vector<int>& weights);
  void remember(double seconds);
  std::vector<int> change_to(const std::vector<int>& weights);

  ShardPricing pricing_;
  std::vector<int> weights_;     // now
  std::vector<double> priced_;   // what each rank computes with them, at speed 1
  std::vector<Sample> samples_;  // with these weights, the latest last
  std::vector<Known> known_;
  struct Trial {
    std::vector<int> before;
    double seconds = 0;  // of a step before
  };
  std::optional<Trial> trial_;
  bool leave_out_ = true;
  int64_t step_ = 0;
};

}  // namespace zoetrope::pipeline
