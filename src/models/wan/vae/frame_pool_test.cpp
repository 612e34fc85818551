#include "models/wan/vae/frame_pool.h"

#include <gtest/gtest.h>

namespace zoetrope::wan {
namespace {

FrameRows whole(int64_t height, int64_t width) { return {{0, height}, height, width}; }

TEST(FramePool, GivesReturnedFramesOfTheSameKindAgain) {
  FramePool pool(DType::kF32);
  ThreadTeam team(2);
  Frame a = pool.take(team, whole(2, 3), 4, Border::kNone);
  const void* memory = a.view().raw();
  EXPECT_EQ(a.view().shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(pool.bytes(), 96u);
  Frame b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: moved from on purpose
  EXPECT_EQ(b.view().raw(), memory);
  b.release();
  EXPECT_FALSE(b);
  const Frame other = pool.take(team, whole(3, 2), 4, Border::kNone),
              lower = pool.take(team, {{2, 4}, 4, 3}, 4, Border::kNone),
              bordered = pool.take(team, whole(2, 3), 4, Border::kOne),
              same = pool.take(team, whole(2, 3), 4, Border::kNone);
  EXPECT_EQ(same.view().raw(), memory);
  EXPECT_NE(other.view().raw(), memory);
  EXPECT_EQ(pool.bytes(), 3 * 96u + 4 * 5 * 4 * 4u);
}

TEST(FramePool, AFrameInUseIsNeverGivenTwice) {
  FramePool pool(DType::kBF16);
  ThreadTeam team(2);
  Frame a = pool.take(team, whole(2, 2), 2, Border::kNone), b = pool.take(team, whole(2, 2), 2, Border::kNone);
  EXPECT_NE(a.view().raw(), b.view().raw());
  const void* first = a.view().raw();
  a = std::move(b);  // returns the first
  EXPECT_EQ(pool.take(team, whole(2, 2), 2, Border::kNone).view().raw(), first);
  EXPECT_EQ(pool.bytes(), 32u);
}

TEST(FramePool, ForgetsFreeFramesWhenTheClipChanges) {
  FramePool pool(DType::kF32);
  ThreadTeam team(2);
  pool.trim_to(whole(8, 8));
  const Frame kept = pool.take(team, whole(2, 2), 2, Border::kNone);
  pool.take(team, whole(4, 4), 4, Border::kNone).release();
  pool.trim_to(whole(8, 8));
  EXPECT_EQ(pool.bytes(), 32u + 256u);
  pool.trim_to({{0, 8}, 9, 8});
  EXPECT_EQ(pool.bytes(), 32u);
}

TEST(FramePool, RowsLieInABorderOfZeros) {
  FramePool pool(DType::kF32);
  ThreadTeam team(2);
  const Frame frame = pool.take(team, whole(2, 3), 2, Border::kOne);
  EXPECT_EQ(frame.bordered().shape(), (Shape{4, 5, 2}));
  const float* all = frame.bordered().data<float>();
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t y = i / 10, x = i / 2 % 5;
    const bool inside = y == 1 || y == 2 ? x >= 1 && x <= 3 : false;
    EXPECT_TRUE(inside || all[i] == 0) << y << ", " << x;
  }
  EXPECT_EQ(frame.row(-1).raw(), all + 2);
  EXPECT_EQ(frame.row(0).raw(), frame.view().raw());
  EXPECT_EQ(frame.row(2).raw(), all + 3 * 10 + 2);
  EXPECT_EQ(frame.row(1).shape(), (Shape{3, 2}));
  EXPECT_TRUE(frame.row(1).contiguous());
}

}  // namespace
}  // namespace zoetrope::wan
