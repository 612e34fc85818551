#include "pipeline/ranks/comm_timeout.h"

#include <gtest/gtest.h>

#include <atomic>

#include "zoetrope/model.h"

#include "comm/testing.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

TEST(CommTimeout, SecondsAreADeadlineAndAutoExtends) {
  GenerateOptions options;
  OptionSet set = describe_options(options);
  EXPECT_TRUE(rank_options(options).extends);
  EXPECT_EQ(rank_options(options).timeout_seconds, comm::RankOptions().timeout_seconds);
  set.set_argument("comm_timeout=7.5");
  EXPECT_FALSE(rank_options(options).extends);
  EXPECT_EQ(rank_options(options).timeout_seconds, 7.5);
  set.set_argument("comm_timeout=auto");
  EXPECT_TRUE(rank_options(options).extends);
  EXPECT_THROW(set.set_argument("comm_timeout=0"), Error);
  EXPECT_THROW(set.set_argument("comm_timeout=soon"), Error);
}

TEST(CommTimeout, FollowsWhatIsPredictedBetweenTwoExchanges) {
  planner::StepPrediction step;
  step.seconds = 40;
  step.layer_seconds = 8;
  parallel::ParallelLayout layout;
  layout.data = 2;
  EXPECT_EQ(step_timeout(step, layout), 400);
  layout.tensor = 2;
  EXPECT_EQ(step_timeout(step, layout), 80);
  step.layer_seconds = 0.01;
  EXPECT_EQ(step_timeout(step, layout), 60);
}

// Counts the timeouts that are set, here and on what is split from it.
class CountedTimeouts final : public comm::WrappedCommunicator {
 public:
  CountedTimeouts(comm::Communicator& inner, std::atomic<int>& count) : WrappedCommunicator(inner), count_(count) {}
  CountedTimeouts(std::unique_ptr<comm::Communicator> inner, std::atomic<int>& count)
      : WrappedCommunicator(std::move(inner)), count_(count) {}

  void set_timeout(double seconds) override {
    ++count_;
    WrappedCommunicator::set_timeout(seconds);
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    return std::make_unique<CountedTimeouts>(inner().split(color, key), count_);
  }

 private:
  std::atomic<int>& count_;
};

TEST(CommTimeout, IsSetByARun) {
  std::atomic<int> count = 0;
  OpenModel model(small_run());
  pipeline::Run run(model, {small_run()});
  comm::run_ranks(2, [&](comm::Communicator& world) {
    CountedTimeouts counted(world, count);
    run.run(counted, {}, {});
  });
  EXPECT_GT(count, 0);
}

TEST(CommTimeout, IsThatOfTheCallersCommunicator) {
  std::atomic<int> count = 0;
  Model model = Model::open(recorded_model("wan21_t2v"), small_run());
  comm::run_ranks(2, [&](comm::Communicator& world) {
    CountedTimeouts counted(world, count);
    model.generate(counted, small_run());
  });
  EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace zoetrope::pipeline
