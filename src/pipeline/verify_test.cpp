#include "pipeline/verify.h"

#include <gmock/gmock.h>

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(VerifyReport, SaysWhatDriftDidNotPredict) {
  VerifyReport report;
  report.reused = {{5, 0.12}, {6, 0.31}};
  EXPECT_THAT(report.text(false), Not(HasSubstr("cache_threshold")));
  report.reuse_threshold = 0.4;
  EXPECT_THAT(report.text(false), Not(HasSubstr("cache_threshold")));
  report.reuse_threshold = 0.3;
  EXPECT_THAT(report.text(false),
              HasSubstr("That is up to 0.31 of velocities predicted to be at most 0.3 off (cache_threshold)"));
}

}  // namespace
}  // namespace zoetrope::pipeline
