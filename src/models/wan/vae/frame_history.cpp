#include "models/wan/vae/frame_history.h"

#include <cstring>

#include "base/error.h"

namespace zoetrope::wan {

void FrameHistory::start(Stream& stream, int64_t capacity, int64_t zeros, int64_t height, int64_t width,
                         int64_t channels) {
  const Shape shape{capacity, height, width, channels};
  if (!memory_ || !(memory_.shape() == shape)) {
    memory_ = {};  // the old one goes before the new one comes
    memory_ = Tensor::uninitialized(DType::kF32, shape);
  }
  filled_ = zeros;
  const TensorView past = memory_.view().slice(0, 0, zeros);
  constexpr int64_t kGrainBytes = 1 << 16;
  stream.team().parallel_for(static_cast<int64_t>(past.bytes()), kGrainBytes, [&](IndexRange range, int) {
    std::memset(static_cast<char*>(past.raw()) + range.begin, 0, static_cast<size_t>(range.size()));
  });
}

TensorView FrameHistory::incoming(int64_t frames) const { return memory_.view().slice(0, filled_, filled_ + frames); }

TensorView FrameHistory::append(int64_t frames) {
  filled_ += frames;
  return memory_.view().slice(0, 0, filled_);
}

void FrameHistory::drop(Stream& stream, int64_t frames) {
  ZT_CHECK(frames <= filled_);
  const int64_t kept = filled_ - frames;
  const TensorView all = memory_.view();
  // In steps that do not overlap; oldest first.
  for (int64_t done = 0; frames > 0 && done < kept;) {
    const int64_t step = std::min(frames, kept - done);
    copy(stream, all.slice(0, done, done + step), all.slice(0, frames + done, frames + done + step));
    done += step;
  }
  filled_ = kept;
}

}  // namespace zoetrope::wan
