#include "models/sampling/published_caches.h"

#include <gtest/gtest.h>

namespace zoetrope::sampling {
namespace {

TEST(PublishedRatios, HaveAValueForEachBranchOfEachStep) {
  struct Curve {
    const char* model;
    size_t steps;
    double threshold, last_conditional, sum;
  };
  // Sums computed from the table of the specification.
  for (const Curve& curve :
       {Curve{"wan2.1_t2v_14b", 50, 0.12, 0.86111, 98.03940}, Curve{"wan2.1_i2v_14b_480p", 40, 0.12, 0.92617, 77.98790},
        Curve{"wan2.1_i2v_14b_720p", 40, 0.12, 0.8679, 78.11605}, Curve{"wan2.2_t2v_a14b", 40, 0.04, 0.80263, 77.77300},
        Curve{"wan2.2_i2v_a14b", 40, 0.06, 0.79823, 77.56108}}) {
    const PublishedRatios* found = published_ratios(curve.model);
    ASSERT_NE(found, nullptr) << curve.model;
    ASSERT_EQ(found->ratios.size(), 2 * curve.steps) << curve.model;
    EXPECT_EQ(found->threshold, curve.threshold);
    EXPECT_EQ(found->ratios[0], 1.0);
    EXPECT_EQ(found->ratios[1], 1.0);
    EXPECT_EQ(found->ratios[2 * curve.steps - 2], curve.last_conditional);
    double sum = 0;
    for (const double ratio : found->ratios) sum += ratio;
    EXPECT_NEAR(sum, curve.sum, 1e-9) << curve.model;
  }
  EXPECT_EQ(published_ratios("wan2.1_t2v_1.3b"), nullptr);
  EXPECT_EQ(published_ratios(""), nullptr);
}

TEST(PublishedCoefficients, AreFourthDegree) {
  for (const char* model : {"wan2.1_t2v_1.3b", "wan2.1_t2v_14b", "wan2.1_i2v_14b_480p", "wan2.1_i2v_14b_720p"}) {
    const PublishedCoefficients* found = published_coefficients(model);
    ASSERT_NE(found, nullptr) << model;
    EXPECT_EQ(found->embedding.size(), 5u);
    EXPECT_EQ(found->projection.size(), 5u);
    EXPECT_NE(models_with_coefficients().find(model), std::string::npos);
  }
  EXPECT_EQ(published_coefficients("wan2.2_t2v_a14b"), nullptr);
  EXPECT_EQ(models_with_ratios().find("1.3b"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::sampling
