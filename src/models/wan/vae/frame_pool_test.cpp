#include "models/wan/vae/frame_pool.h"

#include <gtest/gtest.h>

namespace zoetrope::wan {
namespace {

TEST(FramePool, GivesReturnedFramesOfTheSameShapeAgain) {
  FramePool pool;
  Frame a = pool.take(2, 3, 4);
  const void* memory = a.view().raw();
  EXPECT_EQ(a.view().shape(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(pool.bytes(), 96u);
  Frame b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: moved from on purpose
  EXPECT_EQ(b.view().raw(), memory);
  b.release();
  EXPECT_FALSE(b);
  const Frame other = pool.take(3, 2, 4), same = pool.take(2, 3, 4);
  EXPECT_EQ(same.view().raw(), memory);
  EXPECT_NE(other.view().raw(), memory);
  EXPECT_EQ(pool.bytes(), 192u);
}

TEST(FramePool, AFrameInUseIsNeverGivenTwice) {
  FramePool pool;
  Frame a = pool.take(2, 2, 2), b = pool.take(2, 2, 2);
  EXPECT_NE(a.view().raw(), b.view().raw());
  const void* first = a.view().raw();
  a = std::move(b);  // returns the first
  EXPECT_EQ(pool.take(2, 2, 2).view().raw(), first);
  EXPECT_EQ(pool.bytes(), 64u);
}

TEST(FramePool, ForgetsFreeFramesWhenTheSizeChanges) {
  FramePool pool;
  pool.trim_to({8, 8});
  const Frame kept = pool.take(2, 2, 2);
  pool.take(4, 4, 4).release();
  pool.trim_to({8, 8});
  EXPECT_EQ(pool.bytes(), 32u + 256u);
  pool.trim_to({8, 9});
  EXPECT_EQ(pool.bytes(), 32u);
}

}  // namespace
}  // namespace zoetrope::wan
