#include "models/wan/vae/frame_history.h"

#include <gtest/gtest.h>

#include <deque>

namespace zoetrope::wan {
namespace {

// Frames are numbered from 1, zeros are the history before them. However the pieces are cut, what is there after
// append() is the kept frames followed by the new ones.
TEST(FrameHistory, KeepsTheLastFramesHoweverTheClipIsCut) {
  Stream stream(2);
  FrameHistory history;
  constexpr int64_t kHeight = 3, kWidth = 5, kChannels = 2;
  for (const int64_t kept : {1, 2, 3}) {
    history.start(stream, 3 + kept, kept, kHeight, kWidth, kChannels);
    std::deque<float> expected(static_cast<size_t>(kept), 0.0f);
    float number = 0;
    for (const int64_t count : {1, 1, 3, 2, 1, 3, 3}) {
      const TensorView incoming = history.incoming(count);
      for (int64_t frame = 0; frame < count; ++frame) {
        expected.push_back(++number);
        const TensorView one = incoming.select(0, frame);
        std::fill(one.data<float>(), one.data<float>() + one.size(), number);
      }
      const TensorView window = history.append(count);
      ASSERT_EQ(window.shape(), (Shape{kept + count, kHeight, kWidth, kChannels}));
      ASSERT_TRUE(window.contiguous());
      for (int64_t i = 0; i < window.size(); ++i) {
        const auto frame = static_cast<size_t>(i / (kHeight * kWidth * kChannels));
        ASSERT_EQ(window.data<float>()[i], expected[frame]);
      }
      history.drop(stream, count);
      expected.erase(expected.begin(), expected.begin() + count);
      ASSERT_EQ(history.frames(), kept);
    }
  }
}

TEST(FrameHistory, StartsWithZerosAgain) {
  Stream stream(1);
  FrameHistory history;
  history.start(stream, 3, 2, 2, 2, 1);
  const TensorView all = history.append(1);
  std::fill(all.data<float>(), all.data<float>() + all.size(), 7.0f);
  const void* memory = all.raw();
  history.start(stream, 3, 2, 2, 2, 1);
  const TensorView again = history.append(0);
  EXPECT_EQ(again.raw(), memory);
  for (int64_t i = 0; i < again.size(); ++i) EXPECT_EQ(again.data<float>()[i], 0.0f);
}

}  // namespace
}  // namespace zoetrope::wan
