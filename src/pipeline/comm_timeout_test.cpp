#include "pipeline/comm_timeout.h"

#include <gtest/gtest.h>

#include "pipeline/generate_options.h"

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

}  // namespace
}  // namespace zoetrope::pipeline
