#include "kernels/implementation.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

struct Sum {
  int terms;
};

Refusal up_to_four(const Sum& s) {
  if (s.terms > 4) return std::to_string(s.terms) + " terms > 4";
  return {};
}
Refusal up_to_eight(const Sum& s) {
  if (s.terms > 8) return "more than 8 terms";
  return {};
}

constexpr Implementation<Sum, int> kSums[] = {{"fast", up_to_four, 1}, {"slow", up_to_eight, 2}};

TEST(Implementation, TheFirstThatCan) {
  EXPECT_EQ(choose("sum", kSums, {4}, "").function, 1);
  EXPECT_EQ(choose("sum", kSums, {5}, "").function, 2);
  EXPECT_EQ(error_of([] { choose("sum", kSums, {9}, ""); }),
            "sum: no implementation can do this problem; there are: fast, slow");
}

TEST(Implementation, ForcedByName) {
  EXPECT_EQ(choose("sum", kSums, {4}, "slow").function, 2);
  EXPECT_EQ(error_of([] { choose("sum", kSums, {5}, "fast"); }),
            "sum: implementation 'fast' cannot run here: 5 terms > 4");
  EXPECT_EQ(error_of([] { choose("sum", kSums, {5}, "Fast"); }),
            "sum: there is no implementation 'Fast'; there are: fast, slow");
}

}  // namespace
}  // namespace zoetrope::kernels
