#include "pipeline/model_call.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "base/test_folder.h"
#include "pipeline/test_model.h"

namespace zoetrope {
namespace {

Model open_on_threads(int64_t ranks) {
  ModelOptions options;
  options.ranks = options.threads = ranks;
  options.keep_weights = KeepWeights::kAll;
  options.strategy.deterministic = true;
  return Model::open(pipeline::recorded_model("wan21_t2v"), options);
}

bool equal_frames(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

class CallingSink final : public FrameSink {
 public:
  CallingSink(const std::function<void()>& when_added, const std::function<void()>& when_finished)
      : when_added_(when_added), when_finished_(when_finished) {}
  void add_frame(const uint8_t*) override {
    if (when_added_) when_added_();
  }
  void finish() override {
    if (when_finished_) when_finished_();
  }

 private:
  const std::function<void()> when_added_, when_finished_;
};

// Such a call would wait for itself. One of another model works.
TEST(ModelCall, CallbacksAndSinksCannotCallTheirModel) {
  for (const int64_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Model model = open_on_threads(ranks), other = open_on_threads(ranks);
    const Request r = pipeline::small_run();
    const Video alone = model.generate(r);
    const auto again = [&] {
      Callbacks patience;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      patience.cancelled = [end] { return std::chrono::steady_clock::now() > end; };
      model.generate(r, patience);
    };
    const OpenSink adds = [&](const VideoFormat&) { return std::make_unique<CallingSink>(again, nullptr); };
    const OpenSink finishes = [&](const VideoFormat&) { return std::make_unique<CallingSink>(nullptr, again); };
    const OpenSink opens = [&](const VideoFormat&) {
      again();
      return std::make_unique<CallingSink>(nullptr, nullptr);
    };
    Callbacks steps, asks, another;
    steps.step = [&](int64_t, int64_t, double) { again(); };
    asks.cancelled = [&] {
      again();
      return false;
    };
    another.step = [&](int64_t, int64_t, double) { other.generate(r, adds); };
    const auto run = [&](const OpenSink& sink, const Callbacks& callbacks) {
      EXPECT_EQ(error_of([&] { model.generate(r, sink, callbacks); }),
                "call: the model is in a call, whose callback or sink this is; call it afterwards");
    };
    run({}, steps);
    run({}, asks);
    run({}, another);
    run(adds, {});
    run(finishes, {});
    run(opens, {});
    Video inner;
    another.step = [&](int64_t done, int64_t, double) {
      if (done == 1) inner = other.generate(r);
    };
    EXPECT_TRUE(equal_frames(model.generate(r, another).frames, alone.frames));
    EXPECT_TRUE(equal_frames(inner.frames, alone.frames));
  }
}

}  // namespace
}  // namespace zoetrope
