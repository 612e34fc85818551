#include "base/index_range.h"

#include <gtest/gtest.h>

namespace zoetrope {
namespace {

TEST(SplitRange, CoversEveryItemOnceInOrderWithSizesOneApart) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t parts = 1; parts <= 17; ++parts) {
      int64_t next = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const IndexRange range = split_range(total, parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), total / parts);
        EXPECT_LE(range.size(), total / parts + 1);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace zoetrope
