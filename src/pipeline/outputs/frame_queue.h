// A queue of frames from the decoder to the output. Its thread clamps them, converts them to bytes and
// encodes them while later frames are being decoded, so that decoding waits only where the output is slower than the
// VAE. Knows no VAE and no ranks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "zoetrope/tensor.h"
#include "zoetrope/video.h"

#include "trace/trace.h"

namespace zoetrope::pipeline {

class FrameQueue {
 public:
  // Frames that may wait for the output: what a latent frame becomes. Each is 4.8 MB at 480×832 and 11 MB at 720×1280.
  static constexpr size_t kMostWaiting = 4;
  // Frames there can be at once: these, the one being filled, the one being written.
  static constexpr size_t kMostAtOnce = kMostWaiting + 2;

  struct Output {
    FrameSink& sink;
    TensorView floats;  // [F, H, W, 3] F32 in [0, 1]: a copy for a dump, or null
    TensorView bytes;   // [F, H, W, 3] U8, truncated: the same
  };
  // `tick` is called on the caller's thread now and then while it waits; what it throws ends the wait.
  FrameQueue(const Output& output, const Shape& frame /* {H, W, 3} */, std::function<void()> tick,
             const trace::Lane& lane = {});
  ~FrameQueue();  // drops what still waits; the frame that is being written is written
  FrameQueue(const FrameQueue&) = delete;
  FrameQueue& operator=(const FrameQueue&) = delete;

  // Memory for the next frame, [H, W, 3] F32, to be filled with values in [−1, 1] and pushed. Waits while kMostWaiting
  // frames wait to be written. This call and the two below throw what writing threw.
  TensorView next();
  void push();
  // Returns when every frame is with the writer (whose finish() is still to be called).
  void finish();

  double waited_seconds() const { return waited_seconds_; }  // of the caller, in next() and finish()
  double busy_seconds() const;                               // of the thread; after finish()

 private:
  using Lock = std::unique_lock<std::mutex>;
  template <typename Ready>
  void wait(Lock& lock, Ready&& ready);
  void rethrow();
  void end_thread();
  void work();
  void write(const TensorView& frame, int64_t index);

  const Output output_;
  const Shape shape_;
  const std::function<void()> tick_;
  const trace::Lane lane_;

  std::mutex mutex_;
  std::condition_variable to_write_, written_;
  std::deque<Tensor> waiting_;
  std::vector<Tensor> free_;
  bool no_more_ = false;  // frames come
  bool dropped_ = false;  // nothing more is to be written
  bool ended_ = false;    // the thread has nothing left to do
  std::exception_ptr error_;

  Tensor current_;  // between next() and push()
  double waited_seconds_ = 0;
  double busy_seconds_ = 0;  // the thread's
  std::thread thread_;
};

}  // namespace zoetrope::pipeline
