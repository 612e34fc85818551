#include "pipeline/stages/decode_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "zoetrope/model.h"

#include "base/error.h"
#include "io/media/video.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/test_model.h"
#include "tensor/copy_of.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Keeps its frames and does `meanwhile` in each.
class Writer final : public io::FrameWriter {
 public:
  Writer(const GenerateOptions& options, std::function<void(size_t frame)> meanwhile)
      : FrameWriter({static_cast<int>(options.width), static_cast<int>(options.height), 16, {}}),
        meanwhile_(std::move(meanwhile)) {}
  void add_frame(const uint8_t* rgb) override {
    if (meanwhile_) meanwhile_(frames.size());
    frames.emplace_back(rgb, rgb + frame_bytes());
  }
  void finish() override {}
  PixelRounding rounding() const override { return PixelRounding::kTruncate; }

  std::vector<std::vector<uint8_t>> frames;

 private:
  const std::function<void(size_t)> meanwhile_;
};

struct Job {
  Job() {
    options.height = 56;  // seven latent rows
    options.width = 32;
    options.num_frames = 17;
    options.threads = 1;
    plan.latent = {5, 7, 4};
    plan.channels = 16;
  }

  // The frames, by `ranks` ranks.
  std::vector<std::vector<uint8_t>> decode(int ranks, const std::function<void(size_t)>& meanwhile = {},
                                           trace::Trace* trace = nullptr) {
    Tensor latents(DType::kF32, {1, 16, plan.latent[0], plan.latent[1], plan.latent[2]});
    for (int64_t i = 0; i < latents.size(); ++i)
      latents.data<float>()[i] = std::sin(0.7f * static_cast<float>(i) + 0.01f * static_cast<float>(i % 97));
    Writer writer(options, meanwhile);
    comm::run_ranks(ranks,
                    [&](comm::Communicator& world) {
                      trace::Timing timing;
                      const DecodedPart part{.frames = options.num_frames, .last = last};
                      const FrameOutput output{world.rank() == 0 ? &writer : nullptr, {}, {}, part};
                      parallel::ParallelLayout layout;
                      layout.vae_ranks = decoding_ranks(options, plan, model, world.size());
                      const Stage stage{options, model, plan, layout, callbacks, timing, nullptr};
                      decode_frames(stage, world, vae, latents, {output});
                    },
                    {.timeout_seconds = 60, .trace = trace});
    return writer.frames;
  }

  const ModelFolder model = ModelFolder::open(recorded_model("wan21_t2v"));
  GenerateOptions options;
  Callbacks callbacks;
  RunPlan plan;
  bool last = true;
  SharedVae vae{true};  // read by the first decode()
};

TEST(DecodeFrames, AnyNumberOfRanksGivesTheFramesOfOne) {
  Job job;
  const auto one = job.decode(1);
  ASSERT_EQ(one.size(), 17u);
  for (const int ranks : {2, 3, 7, 9}) {  // of nine, seven have rows
    const auto many = job.decode(ranks);
    ASSERT_EQ(many.size(), one.size());
    for (size_t f = 0; f < one.size(); ++f) {
      // Roundings of float32 may move a value over the border between two bytes.
      int most = 0;
      for (size_t i = 0; i < one[f].size(); ++i) most = std::max(most, std::abs(int{many[f][i]} - int{one[f][i]}));
      EXPECT_LE(most, 1) << "frame " << f << " of " << ranks << " ranks";
    }
  }
}

// Of tiles it is their share, and with the last of them there are all frames.
TEST(DecodeFrames, ProgressDoesNotGoBack) {
  for (const bool tiled : {false, true}) {
    SCOPED_TRACE(tiled);
    Job job;
    job.options.vae_tiling = tiled;
    job.options.width = 288;  // two tiles
    job.options.num_frames = 5;
    job.plan.latent = {2, 7, 36};
    std::vector<int64_t> told;
    job.callbacks.frames = [&](int64_t done, int64_t total) {
      EXPECT_EQ(total, 5);
      told.push_back(done);
    };
    ASSERT_EQ(job.decode(1).size(), 5u);
    EXPECT_TRUE(std::ranges::is_sorted(told));
    EXPECT_EQ(told.front(), 0);
    EXPECT_EQ(told.back(), 5);
    EXPECT_EQ(std::ranges::count(told, 2), 1);
  }
}

// Spans of a rank in the lane of waits. Packed, a span begins with its name, its rank and its lane (see trace.cpp).
int waits_of_rank(int64_t rank, std::string_view name, const trace::Trace& trace) {
  const std::vector<char> bytes = trace.pack();
  const std::string_view packed(bytes.data(), bytes.size());
  const std::string_view lane = trace::kWaitLane;
  std::string wanted(name);
  for (const int64_t value : {rank, static_cast<int64_t>(lane.size())})
    wanted.append(reinterpret_cast<const char*>(&value), sizeof value);
  wanted += lane;
  int count = 0;
  for (size_t at = packed.find(wanted); at != packed.npos; at = packed.find(wanted, at + 1)) ++count;
  return count;
}

// Ranks that wait for rank 0's output get its heartbeats: each restarts their deadline. Counted instead of timed: the
// output is blocked until rank 0 has waited for many of its ticks, and the heartbeats of that wait must have arrived.
TEST(DecodeFrames, RanksDoNotGiveUpOnARankThatWaitsForItsOutput) {
  Job job;
  job.decode(1);
  // Every rank asks once a frame it takes, so that beyond these all questions are ticks of rank 0's wait.
  constexpr int kRanks = 3, kFrames = 17, kTicks = 5, kEnough = kRanks * kFrames + kTicks;
  std::atomic<int> asked = 0;
  job.callbacks.cancelled = [&] {
    ++asked;
    return false;
  };
  const auto hold = [&](size_t frame) {
    if (frame != 1) return;
    constexpr std::chrono::minutes kMost{2};  // far more than 56 ticks of 0.1 s: a wait that never ticks is an error
    const auto begin = std::chrono::steady_clock::now();
    while (asked < kEnough) {
      if (std::chrono::steady_clock::now() - begin > kMost) fail("nobody waits for the output");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  trace::Trace trace;
  EXPECT_EQ(job.decode(kRanks, hold, &trace).size(), static_cast<size_t>(kFrames));
  // Rank 1 hears "go on" for every frame, and "wait" in each tick.
  EXPECT_GE(waits_of_rank(1, "heartbeat of the output", trace), kFrames + kTicks);
}

TEST(DecodeFrames, RanksDoNotGiveUpOnARankThatReadsTheVae) {
  Job job;
  job.options.vae_parallel = 1;
  job.last = false;
  constexpr int kWeights = 20;
  std::atomic<int> asked = 0;
  job.callbacks.cancelled = [&] { return ++asked > kWeights; };
  trace::Trace trace;
  EXPECT_THAT(error_of([&] { job.decode(2, {}, &trace); }), HasSubstr("interrupted while reading the VAE"));
  // All but the last: that may have arrived when rank 0 has failed, which ends the wait for it.
  EXPECT_GE(waits_of_rank(1, "heartbeat of decoding", trace), kWeights - 1);
}

TEST(DecodeFrames, AnErrorOfTheOutputEndsAllRanks) {
  Job job;
  for (const int ranks : {1, 3}) {
    EXPECT_THAT(error_of([&] {
                  job.decode(ranks, [](size_t frame) {
                    if (frame == 2) fail("the disk is full");
                  });
                }),
                HasSubstr("the disk is full"));
  }
}

TEST(DecodeFrames, AnInterruptOnAnyRankEndsAll) {
  Job job;
  job.decode(1);
  std::atomic<int> asked = 0;
  job.callbacks.cancelled = [&] { return ++asked > 7; };
  for (const int ranks : {1, 3}) {
    asked = 0;
    EXPECT_THAT(error_of([&] { job.decode(ranks); }), HasSubstr("interrupted while decoding"));
  }
}

TEST(DecodingRanks, AreTheFirstOnesAsFarAsThereAreRows) {
  Job job;
  const auto count = [&](int ranks) { return decoding_ranks(job.options, job.plan, job.model, ranks); };
  EXPECT_EQ(count(1), 1);
  EXPECT_EQ(count(4), 4);
  EXPECT_EQ(count(7), 7);
  EXPECT_EQ(count(12), 7);
  job.options.vae_parallel = 3;
  EXPECT_EQ(count(3), 3);
  EXPECT_EQ(count(12), 3);
  EXPECT_THAT(error_of([&] { count(2); }), AllOf(HasSubstr("vae_parallel=3: at most 2"), HasSubstr("2 ranks")));
  job.options.vae_parallel = 8;
  EXPECT_THAT(error_of([&] { count(12); }), AllOf(HasSubstr("vae_parallel=8: at most 7"), HasSubstr("7 latent rows")));
  job.options.vae_tiling = true;
  job.options.vae_parallel = 2;
  EXPECT_THAT(error_of([&] { count(4); }), AllOf(HasSubstr("vae_parallel=2"), HasSubstr("vae_tiling")));
  job.options.vae_parallel = 1;
  EXPECT_EQ(count(4), 1);
  job.options.vae_parallel.reset();
  EXPECT_EQ(count(4), 4);  // one tile is enough: nothing is tiled
  job.plan.latent = {5, 7, 33};
  EXPECT_EQ(count(4), 1);
}

// The model sees the picture's latent frame in every step, whatever its own latents have there.
TEST(Preview, BeginsWithThePictureThatIsGiven) {
  ModelOptions options;
  options.threads = 2;
  Model model = Model::open(recorded_model("wan22_ti2v"), options);
  Request request;
  request.prompt = "a red cat";
  request.image = (recorded_model("wan22_ti2v") / "inputs" / "image.png").string();
  request.height = request.width = 64;
  request.num_frames = 5;
  request.num_inference_steps = 3;
  request.preview = 1;
  std::vector<Tensor> shown;
  Callbacks callbacks;
  callbacks.preview = [&](int64_t, const Tensor& frames) { shown.push_back(copy_of(frames)); };
  const Video video = model.generate(request, callbacks);
  ASSERT_EQ(shown.size(), 2u);
  for (const Tensor& frames : shown) {
    int most = 0;
    for (int64_t i = 0; i < 64 * 64 * 3; ++i)
      most = std::max(most, std::abs(frames.data<uint8_t>()[i] - video.frames.data<uint8_t>()[i]));
    EXPECT_LE(most, 1);
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
