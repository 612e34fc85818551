#include "pipeline/checks/reference_weights.h"

#include <gtest/gtest.h>

namespace zoetrope::pipeline {
namespace {

// Errors that were measured of normal and of trained matrices lie below half of these.
TEST(ReferenceWeights, KnowsWhatAFormatMayCost) {
  EXPECT_DOUBLE_EQ(largest_rounding("Q8_0"), 2.0 / 128);
  EXPECT_DOUBLE_EQ(largest_rounding("Q4_K"), 2.0 / 8);
  EXPECT_DOUBLE_EQ(largest_rounding("I8 with a scale for each row"), 2.0 / 128);
  EXPECT_DOUBLE_EQ(largest_rounding("F8_E4M3 with a scale"), 2.0 / 16);
  EXPECT_DOUBLE_EQ(largest_rounding("mxfp8"), 2.0 / 16);
  EXPECT_DOUBLE_EQ(largest_rounding("F8_E5M2"), 2.0 / 8);
  EXPECT_DOUBLE_EQ(largest_rounding("BF16"), 2.0 / 256);
  EXPECT_DOUBLE_EQ(largest_rounding("F16"), 2.0 / 2048);
}

}  // namespace
}  // namespace zoetrope::pipeline
