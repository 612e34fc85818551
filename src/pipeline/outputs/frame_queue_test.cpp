#include "pipeline/outputs/frame_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/media/video.h"

namespace zoetrope::pipeline {
namespace {

// Stores its frames; may be blocked, and may fail.
class RecordingWriter final : public io::FrameWriter {
 public:
  RecordingWriter(int64_t width, int64_t height, PixelRounding rounding = PixelRounding::kTruncate)
      : FrameWriter({static_cast<int>(width), static_cast<int>(height), 16, {}}), rounding_(rounding) {}

  void add_frame(const uint8_t* rgb) override {
    std::unique_lock lock(mutex_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !blocked_; });
    if (static_cast<int>(frames_.size()) == fails_at_) fail("the disk is full");
    frames_.emplace_back(rgb, rgb + frame_bytes());
  }
  void finish() override {}
  PixelRounding rounding() const override { return rounding_; }

  void block(bool blocked) {
    const std::lock_guard lock(mutex_);
    blocked_ = blocked;
    changed_.notify_all();
  }
  void fail_at(int frame) { fails_at_ = frame; }
  void wait_for_begun(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ >= count; });
  }
  const std::vector<std::vector<uint8_t>>& frames() const { return frames_; }

 private:
  const PixelRounding rounding_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool blocked_ = false;
  int begun_ = 0, fails_at_ = -1;
  std::vector<std::vector<uint8_t>> frames_;
};

// Values from below −1 to above 1, another sequence for each frame.
float value_of(int64_t frame, int64_t i) {
  return 1.1f * std::sin(0.37f * static_cast<float>(i) + static_cast<float>(frame));
}

void fill(const TensorView& frame, int64_t index) {
  for (int64_t i = 0; i < frame.size(); ++i) frame.data<float>()[i] = value_of(index, i);
}

TEST(FrameQueue, EveryFrameArrivesInOrderAsTheSameBytes) {
  // More values than one piece and no whole number of them; more frames than may wait.
  constexpr int64_t kFrames = 11, kHeight = 48, kWidth = 64;
  for (const auto& [rounding, to_u8] :
       {std::pair{PixelRounding::kTruncate, &io::to_u8_truncate}, std::pair{PixelRounding::kRound, &io::to_u8_round}}) {
    RecordingWriter writer(kWidth, kHeight, rounding);
    const Shape frame{kHeight, kWidth, 3}, clip{kFrames, kHeight, kWidth, 3};
    const Tensor floats(DType::kF32, clip), bytes(DType::kU8, clip);
    FrameQueue queue({writer, floats, bytes}, frame, {});
    for (int64_t f = 0; f < kFrames; ++f) {
      fill(queue.next(), f);
      queue.push();
    }
    queue.finish();
    ASSERT_EQ(writer.frames().size(), static_cast<size_t>(kFrames));
    int64_t wrong = 0;
    for (int64_t f = 0; f < kFrames; ++f) {
      for (int64_t i = 0; i < frame.size(); ++i) {
        const float unit = std::clamp(0.5f * value_of(f, i) + 0.5f, 0.0f, 1.0f);
        wrong += writer.frames()[static_cast<size_t>(f)][static_cast<size_t>(i)] != to_u8(unit);
        wrong += floats.view().select(0, f).data<float>()[i] != unit;
        wrong += bytes.view().select(0, f).data<uint8_t>()[i] != io::to_u8_truncate(unit);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(FrameQueue, FramesAreTakenWhileOneIsWrittenAndNoMoreThanMayWait) {
  RecordingWriter writer(4, 2);
  writer.block(true);
  int ticks = 0;
  FrameQueue queue({writer, {}, {}}, {2, 4, 3}, [&] {
    if (++ticks == 2) writer.block(false);
  });
  fill(queue.next(), 0);
  queue.push();
  writer.wait_for_begun(1);
  for (size_t f = 1; f <= FrameQueue::kMostWaiting; ++f) {
    fill(queue.next(), static_cast<int64_t>(f));
    queue.push();
  }
  EXPECT_EQ(ticks, 0);
  fill(queue.next(), 9);  // returns only after the writer was released
  EXPECT_EQ(ticks, 2);
  queue.push();
  queue.finish();
  EXPECT_EQ(writer.frames().size(), FrameQueue::kMostAtOnce);
  EXPECT_GT(queue.waited_seconds(), 0);
}

TEST(FrameQueue, WhatWritingThrowsReachesTheCaller) {
  for (const int frames_after : {0, 1, 20}) {
    RecordingWriter writer(4, 2);
    writer.fail_at(2);
    FrameQueue queue({writer, {}, {}}, {2, 4, 3}, {});
    std::string message;
    try {
      for (int f = 0; f < 3 + frames_after; ++f) {
        fill(queue.next(), f);
        queue.push();
      }
      queue.finish();
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "the disk is full");
    EXPECT_EQ(writer.frames().size(), 2u);
  }
}

TEST(FrameQueue, AnInterruptEndsTheWait) {
  for (const bool at_the_end : {false, true}) {
    RecordingWriter writer(4, 2);
    writer.block(true);
    const auto interrupt = [&] {
      FrameQueue queue({writer, {}, {}}, {2, 4, 3}, [&] { throw std::runtime_error("interrupted"); });
      fill(queue.next(), 0);
      queue.push();
      writer.wait_for_begun(1);
      try {
        for (int f = 1; f < 20; ++f) {
          if (at_the_end && f == 3) queue.finish();
          fill(queue.next(), f);
          queue.push();
        }
      } catch (...) {
        writer.block(false);
        throw;
      }
    };
    EXPECT_THROW(interrupt(), std::runtime_error);
    EXPECT_GE(writer.frames().size(), 1u);  // the one that was being written
  }
}

TEST(FrameQueue, NothingPushedIsNothingWritten) {
  RecordingWriter writer(4, 2);
  {
    FrameQueue queue({writer, {}, {}}, {2, 4, 3}, {});
    fill(queue.next(), 0);
  }
  EXPECT_TRUE(writer.frames().empty());
  FrameQueue queue({writer, {}, {}}, {2, 4, 3}, {});
  queue.finish();
  EXPECT_TRUE(writer.frames().empty());
}

}  // namespace
}  // namespace zoetrope::pipeline
