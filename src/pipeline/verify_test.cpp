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
              HasSubstr("The largest of them, 0.31, is above cache_threshold=0.3, which the cache only predicts"));
}

}  // namespace
}  // namespace zoetrope::pipeline
