#include "pipeline/outputs/frame_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/ticking_wait.h"
#include "io/media/video.h"
#include "trace/elapsed.h"

namespace zoetrope::pipeline {
namespace {

constexpr std::chrono::milliseconds kBetweenTicks{100};
constexpr int64_t kPiece = 4096;  // values that pass through all steps while they are in the first-level cache

}  // namespace

FrameQueue::FrameQueue(const Output& output, const Shape& frame, std::function<void()> tick, const trace::Lane& lane)
    : output_(output), shape_(frame), tick_(std::move(tick)), lane_(lane), thread_([this] { work(); }) {}

FrameQueue::~FrameQueue() {
  {
    const std::lock_guard lock(mutex_);
    dropped_ = true;
  }
  end_thread();
}

void FrameQueue::end_thread() {
  {
    const std::lock_guard lock(mutex_);
    no_more_ = true;
  }
  to_write_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Waits until ready() or the thread has failed.
template <typename Ready>
void FrameQueue::wait(Lock& lock, Ready&& ready) {
  const auto begin = trace::Clock::now();
  wait_ticking(
      lock, written_, kBetweenTicks, [&] { return ended_ || ready(); },
      [&] {
        if (tick_) tick_();
      });
  waited_seconds_ += trace::seconds_since(begin);
}

TensorView FrameQueue::next() {
  ZT_CHECK(!current_);
  Lock lock(mutex_);
  ZT_CHECK(!no_more_);
  wait(lock, [&] { return waiting_.size() < kMostWaiting; });
  if (ended_) {
    lock.unlock();
    rethrow();
  }
  if (!free_.empty()) {
    current_ = std::move(free_.back());
    free_.pop_back();
  } else {
    current_ = Tensor::uninitialized(DType::kF32, shape_);
  }
  return current_;
}

void FrameQueue::push() {
  ZT_CHECK(static_cast<bool>(current_));
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::exchange(current_, Tensor{}));
  }
  to_write_.notify_all();
}

void FrameQueue::finish() {
  {
    Lock lock(mutex_);
    no_more_ = true;
    to_write_.notify_all();
    wait(lock, [] { return false; });
  }
  rethrow();
}

// After the thread has ended, and only then, so that the exception is nobody else's.
void FrameQueue::rethrow() {
  end_thread();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

double FrameQueue::busy_seconds() const {
  ZT_CHECK(!thread_.joinable());
  return busy_seconds_;
}

void FrameQueue::work() {
  std::exception_ptr error;
  try {
    for (int64_t index = 0;; ++index) {
      Tensor frame;
      {
        Lock lock(mutex_);
        to_write_.wait(lock, [&] { return !waiting_.empty() || no_more_; });
        if (waiting_.empty() || dropped_) break;
        frame = std::move(waiting_.front());
        waiting_.pop_front();
      }
      const auto begin = trace::Clock::now();
      write(frame, index);
      busy_seconds_ += trace::seconds_since(begin);
      {
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(frame));
      }
      written_.notify_all();
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    ended_ = true;
  }
  written_.notify_all();
}

void FrameQueue::write(const TensorView& frame, int64_t index) {
  const trace::Span span(lane_, "convert and encode");
  std::vector<uint8_t> bytes(static_cast<size_t>(frame.size()));
  for (int64_t begin = 0; begin < frame.size(); begin += kPiece) {
    const std::span<float> piece(frame.data<float>() + begin,
                                 static_cast<size_t>(std::min(kPiece, frame.size() - begin)));
    for (float& value : piece) value = std::clamp(0.5f * value + 0.5f, 0.0f, 1.0f);
    io::to_u8(output_.sink.rounding(), piece, bytes.data() + begin);
    if (!output_.floats) continue;
    std::copy(piece.begin(), piece.end(), output_.floats.select(0, index).data<float>() + begin);
    io::to_u8(PixelRounding::kTruncate, piece, output_.bytes.select(0, index).data<uint8_t>() + begin);
  }
  output_.sink.add_values(frame.data<float>());
  output_.sink.add_frame(bytes.data());
}

}  // namespace zoetrope::pipeline
