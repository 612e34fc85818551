// Runs that end at any step or frame and go on: with the same layout to the same bits, with another within the bound of
// N ranks against one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "base/error.h"
#include "base/test_folder.h"
#include "pipeline/test_model.h"
#include "tensor/relative_l2.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;
using pipeline::recorded_model;
using testing::AllOf;
using testing::HasSubstr;

ModelOptions on_threads(int64_t ranks) {
  ModelOptions options;
  options.ranks = ranks;
  options.threads = ranks;
  options.dtype = DType::kF32;
  options.strategy.deterministic = true;
  return options;
}

Request request(int64_t steps, int64_t frames = 5) {
  Request r;
  r.prompt = "a red cat";
  r.height = 32;
  r.width = 48;
  r.num_frames = frames;
  r.num_inference_steps = steps;
  r.seed = 3;
  return r;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

// Ends a run after so many steps or decoded frames.
struct End {
  explicit End(int64_t steps, int64_t frames = INT64_MAX) {
    callbacks.step = [this, steps](int64_t done, int64_t, double) { steps_seen = done, now = now || done >= steps; };
    callbacks.frames = [this, frames](int64_t done, int64_t) { now = now || done >= frames; };
    callbacks.cancelled = [this] { return now.load(); };
    callbacks.note = [this](const std::string& line) { notes += line + "\n"; };
  }
  std::atomic<bool> now = false;
  int64_t steps_seen = -1;
  std::string notes;
  Callbacks callbacks;
};

// How a run goes on to its end: how many steps it begins with, and what it is.
struct Resumed {
  std::vector<Video> videos;
  int64_t first_step = -1;
  std::string notes;
};

Resumed resume(Model& model, std::vector<Request> requests, const fs::path& journal) {
  requests.front().journal.clear();
  for (Request& r : requests) r.resume = journal.string();
  Resumed resumed;
  Callbacks callbacks;
  callbacks.step = [&](int64_t done, int64_t, double) {
    if (resumed.first_step < 0) resumed.first_step = done;
  };
  callbacks.note = [&](const std::string& line) { resumed.notes += line + "\n"; };
  resumed.videos = model.generate(requests, {}, callbacks);
  EXPECT_FALSE(fs::exists(journal)) << "the journal of a complete run is removed";
  return resumed;
}

void interrupt(Model& model, std::vector<Request> requests, const fs::path& journal, End& end) {
  for (Request& r : requests) r.journal = journal.string();
  EXPECT_THROW(model.generate(requests, {}, end.callbacks), Error);
  EXPECT_THAT(end.notes, HasSubstr("resume=" + journal.string()));
}

// Goes on and ends again.
void interrupt_again(Model& model, std::vector<Request> requests, const fs::path& journal, End& end) {
  for (Request& r : requests) r.resume = journal.string();
  EXPECT_THROW(model.generate(requests, {}, end.callbacks), Error);
}

struct Case {
  const char* name;
  const char* model = "wan21_t2v";
  int64_t ranks = 1, videos = 1;
  void (*change)(Request&) = [](Request&) {};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ResumedSteps : public testing::TestWithParam<Case> {};

TEST_P(ResumedSteps, HaveTheBitsOfTheWholeRun) {
  const Case& c = GetParam();
  constexpr int64_t kSteps = 7;
  std::vector<Request> requests;
  for (int64_t v = 0; v < c.videos; ++v) {
    requests.push_back(request(kSteps));
    requests.back().seed += v;
    c.change(requests.back());
  }
  Model model = Model::open(recorded_model(c.model), on_threads(c.ranks));
  const std::vector<Video> whole = model.generate(requests);
  for (int64_t steps = 0; steps <= kSteps; ++steps) {
    const TestFolder folder;
    const fs::path journal = folder / "journal";
    End end(steps);
    interrupt(model, requests, journal, end);
    const Resumed rest = resume(model, requests, journal);
    EXPECT_EQ(rest.first_step, steps < kSteps ? steps : -1) << "no step is made twice";
    for (size_t v = 0; v < whole.size(); ++v) {
      EXPECT_TRUE(same(rest.videos[v].latents, whole[v].latents)) << steps << " steps, video " << v;
      EXPECT_TRUE(same(rest.videos[v].frames, whole[v].frames)) << steps << " steps, video " << v;
      EXPECT_EQ(rest.videos[v].seed, whole[v].seed);
    }
    if (!whole[0].step_cache) continue;
    EXPECT_EQ(rest.videos[0].step_cache->pattern, whole[0].step_cache->pattern) << steps;
    EXPECT_GT(rest.videos[0].step_cache->reused, 0) << "the case reuses no step";
  }
}

void with_cache(Request& r, sampling::StepCacheKind kind, double threshold) {
  r.cache = kind;
  r.cache_threshold = threshold;
}

INSTANTIATE_TEST_SUITE_P(
    , ResumedSteps,
    testing::Values(
        Case{"unipc"}, Case{.name = "two_ranks", .ranks = 2}, Case{.name = "three_ranks", .ranks = 3},
        Case{.name = "batch", .ranks = 2, .videos = 2}, Case{.name = "two_experts", .model = "wan22_t2v"},
        Case{.name = "euler", .change = [](Request& r) { r.scheduler = sampling::SolverKind::kFlowMatchEuler; }},
        Case{.name = "dpmpp", .change = [](Request& r) { r.scheduler = sampling::SolverKind::kDpmSolver; }},
        Case{.name = "drawn_seed", .change = [](Request& r) { r.guidance_scale = 1; }},
        Case{.name = "mag",
             .ranks = 2,
             .change =
                 [](Request& r) {
                   with_cache(r, sampling::StepCacheKind::kMag, 0.5);
                   r.cache_ratios = "1,1,0.99,0.99,0.98,0.98";
                 }},
        Case{.name = "tea",
             .change =
                 [](Request& r) {
                   with_cache(r, sampling::StepCacheKind::kTea, 0.25);
                   r.cache_coefficients = "0,0,0,0,0.1";
                 }},
        Case{.name = "drift",
             .ranks = 2,
             .videos = 2,
             .change = [](Request& r) { with_cache(r, sampling::StepCacheKind::kDrift, 0.5); }},
        Case{.name = "drift_two_experts",
             .model = "wan22_t2v",
             .change = [](Request& r) { with_cache(r, sampling::StepCacheKind::kDrift, 0.5); }},
        Case{.name = "sen", .ranks = 2, .change = [](Request& r) { with_cache(r, sampling::StepCacheKind::kSen, 2); }},
        Case{.name = "cfg",
             .change =
                 [](Request& r) {
                   r.cache = sampling::StepCacheKind::kCfg;
                   r.cache_interval = 3;
                 }}),
    [](const auto& test) { return std::string(test.param.name); });

// Five latent frames, ended at every frame.
class ResumedFrames : public testing::TestWithParam<int64_t> {};

TEST_P(ResumedFrames, HaveTheBitsOfTheWholeClip) {
  constexpr int64_t kFrames = 17;
  ModelOptions options = on_threads(GetParam());
  options.vae_parallel = GetParam();
  Model model = Model::open(recorded_model("wan21_t2v"), options);
  const std::vector<Request> requests{request(1, kFrames)};
  const Video whole = model.generate(requests.front());
  for (const int64_t frames : {0, 1, 2, 5, 8, 9, 16}) {
    const TestFolder folder;
    const fs::path journal = folder / "journal";
    End end(INT64_MAX, frames);
    interrupt(model, requests, journal, end);
    const Resumed rest = resume(model, requests, journal);
    EXPECT_TRUE(same(rest.videos[0].frames, whole.frames)) << frames;
    EXPECT_TRUE(same(rest.videos[0].latents, whole.latents)) << frames;
    EXPECT_EQ(rest.first_step, -1);
    // Of the latent frame in which it ended nothing is kept: 1, 4, 4, 4 and 4 frames.
    const int64_t kept = frames < 1 ? 0 : 1 + (frames - 1) / 4 * 4;
    if (kept == 0) EXPECT_THAT(rest.notes, HasSubstr("Goes on with the decoding"));
    else EXPECT_THAT(rest.notes, HasSubstr(fmt::format("Goes on after {} decoded frames", kept)));
  }
}

INSTANTIATE_TEST_SUITE_P(, ResumedFrames, testing::Values(1, 2, 3), testing::PrintToStringParamName());

// What two ranks remembered of their rows, one and three go on with.
TEST(Resume, TheDecoderGoesOnWithAnyNumberOfRanks) {
  const std::vector<Request> requests{request(1, 17)};
  const auto open = [&](int64_t ranks) {
    ModelOptions options = on_threads(ranks);
    options.vae_parallel = ranks;
    return Model::open(recorded_model("wan21_t2v"), options);
  };
  Model two = open(2);
  const Video whole = two.generate(requests.front());
  for (const int64_t ranks : {1, 3}) {
    const TestFolder folder;
    End end(INT64_MAX, 9);
    interrupt(two, requests, folder / "journal", end);
    Model other = open(ranks);
    const Resumed rest = resume(other, requests, folder / "journal");
    EXPECT_THAT(rest.notes, HasSubstr("Goes on after 9 decoded frames"));
    EXPECT_TRUE(same(rest.videos[0].latents, whole.latents));
    // The attention of the middle block adds up in another order.
    int64_t off = 0;
    const uint8_t *a = rest.videos[0].frames.view().data<uint8_t>(), *b = whole.frames.view().data<uint8_t>();
    for (int64_t i = 0; i < whole.frames.view().size(); ++i) off = std::max<int64_t>(off, std::abs(a[i] - b[i]));
    EXPECT_LE(off, 1) << ranks;
  }
}

TEST(Resume, StepsGoOnWithAnyNumberOfRanks) {
  constexpr double kBound = 1e-5;  // of N ranks against one, float32
  std::vector<Request> requests{request(5)};
  for (const bool cached : {false, true}) {
    if (cached) {
      with_cache(requests[0], sampling::StepCacheKind::kMag, 0.5);
      requests[0].cache_ratios = "1,1,0.99,0.99,0.98,0.98";
    }
    Model one = Model::open(recorded_model("wan21_t2v"), on_threads(1));
    const Video whole = one.generate(requests.front());
    for (const int64_t ranks : {2, 3, 4, 7}) {
      Model several = Model::open(recorded_model("wan21_t2v"), on_threads(ranks));
      for (const bool begins_with_one : {true, false}) {
        const TestFolder folder;
        End end(3);
        interrupt(begins_with_one ? one : several, requests, folder / "journal", end);
        const Resumed rest = resume(begins_with_one ? several : one, requests, folder / "journal");
        EXPECT_EQ(rest.first_step, 3);
        EXPECT_LE(relative_l2(rest.videos[0].latents, whole.latents), kBound) << ranks;
      }
    }
  }
}

// The recorded pictures of this name, as a folder of their own.
std::string video_of(const TestFolder& folder, const std::string& name) {
  fs::create_directory(folder / name);
  for (const auto& entry : fs::directory_iterator(recorded_model("wan22_animate") / "inputs"))
    if (entry.path().filename().string().starts_with(name)) fs::copy(entry.path(), folder / name);
  return (folder / name).string();
}

// Three segments: ended in the first and second, between them, and while they are decoded.
TEST(Resume, SegmentsGoOn) {
  const fs::path model = recorded_model("wan22_animate");
  const TestFolder inputs;
  Request r = request(2);
  r.num_frames = Request().num_frames;
  r.guidance_scale = 1;
  r.image = (model / "inputs" / "image.png").string();
  r.pose_video = video_of(inputs, "animate_pose_video");
  r.face_video = video_of(inputs, "animate_face_video");
  r.segment_frame_length = 5;
  Model animate = Model::open(model, on_threads(2));
  const Video whole = animate.generate(r);
  const int64_t all = whole.frames.view().extent(0);
  for (const auto& [steps, frames] : {std::pair<int64_t, int64_t>(1, INT64_MAX),
                                      {2, INT64_MAX},
                                      {3, INT64_MAX},
                                      {4, INT64_MAX},
                                      {INT64_MAX, 1},
                                      {INT64_MAX, 6},
                                      {INT64_MAX, all - 1}}) {
    const TestFolder folder;
    End end(steps, frames);
    interrupt(animate, {r}, folder / "journal", end);
    const Resumed rest = resume(animate, {r}, folder / "journal");
    EXPECT_TRUE(same(rest.videos[0].frames, whole.frames)) << steps << " steps, " << frames << " frames";
  }
  // Ended twice in the last segment, whose first frames come from the one before.
  for (const int64_t frames : {all - 2, all - 1}) {
    const TestFolder folder;
    End steps(6), again(INT64_MAX, frames);
    interrupt(animate, {r}, folder / "journal", steps);
    interrupt_again(animate, {r}, folder / "journal", again);
    EXPECT_TRUE(same(resume(animate, {r}, folder / "journal").videos[0].frames, whole.frames)) << frames << " frames";
  }
}

// Of each segment one video is decoded after the other.
TEST(Resume, SegmentsOfABatchGoOn) {
  const fs::path model = recorded_model("wan22_animate");
  const TestFolder inputs;
  Request r = request(2);
  r.num_frames = Request().num_frames;
  r.image = (model / "inputs" / "image.png").string();
  r.pose_video = video_of(inputs, "animate_pose_video");
  r.face_video = video_of(inputs, "animate_face_video");
  r.segment_frame_length = 5;
  std::vector<Request> requests{r, r};
  requests[1].prompt = "two blue dogs";
  requests[1].seed = 4;
  Model animate = Model::open(model, on_threads(2));
  const std::vector<Video> whole = animate.generate(requests);
  EXPECT_FALSE(same(whole[0].frames, whole[1].frames));
  // Frames are told of each video: this many have been told when it ends.
  const auto check = [&](int64_t steps, int64_t told_frames) {
    const TestFolder folder;
    End end(steps);
    int64_t told = 0;
    end.callbacks.frames = [&](int64_t done, int64_t) { end.now = end.now || (done > 0 && ++told >= told_frames); };
    interrupt(animate, requests, folder / "journal", end);
    const Resumed rest = resume(animate, requests, folder / "journal");
    for (size_t v = 0; v < requests.size(); ++v)
      EXPECT_TRUE(same(rest.videos[v].frames, whole[v].frames))
          << steps << " steps, " << told_frames << ", video " << v;
  };
  for (const int64_t steps : {1, 2, 3, 5}) check(steps, INT64_MAX);
  for (const int64_t frames : {1, 2, 3, 4, 6, 8, 9}) check(INT64_MAX, frames);
  const TestFolder folder;
  End steps(6), again(INT64_MAX, whole[0].frames.extent(0));  // the first video is complete then
  interrupt(animate, requests, folder / "journal", steps);
  interrupt_again(animate, requests, folder / "journal", again);
  const Resumed rest = resume(animate, requests, folder / "journal");
  for (size_t v = 0; v < requests.size(); ++v) EXPECT_TRUE(same(rest.videos[v].frames, whole[v].frames)) << v;
}

// A batch is decoded video by video.
TEST(Resume, ABatchGoesOnInItsSecondVideo) {
  std::vector<Request> requests{request(2, 9), request(2, 9)};
  requests[1].prompt = "two blue dogs";
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  const std::vector<Video> whole = model.generate(requests);
  for (const int64_t videos : {1, 2}) {
    const TestFolder folder;
    End end(INT64_MAX);
    int64_t ended = 0;
    end.callbacks.frames = [&](int64_t done, int64_t) {
      if (done == 5 && ++ended == videos) end.now = true;
    };
    interrupt(model, requests, folder / "journal", end);
    const Resumed rest = resume(model, requests, folder / "journal");
    EXPECT_THAT(rest.notes, HasSubstr(fmt::format("Goes on after 5 decoded frames of video {}", videos)));
    for (size_t v = 0; v < 2; ++v) EXPECT_TRUE(same(rest.videos[v].frames, whole[v].frames)) << v;
  }
}

TEST(Resume, DrawnSeedsAreKept) {
  Request r = request(3);
  r.seed = -1;
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1));
  const TestFolder folder;
  End end(1);
  interrupt(model, {r}, folder / "journal", end);
  const Resumed rest = resume(model, {r}, folder / "journal");
  r.seed = rest.videos[0].seed;
  EXPECT_TRUE(same(model.generate(r).latents, rest.videos[0].latents));
}

TEST(Resume, AnotherRunIsRefused) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1));
  const TestFolder folder;
  const fs::path journal = folder / "journal";
  End end(1);
  interrupt(model, {request(3)}, journal, end);
  const auto refusal = [&](Model& by, Request r) {
    r.resume = journal.string();
    return error_of([&] { by.generate(r); });
  };
  Request other = request(4);
  other.prompt = "a blue dog";
  EXPECT_THAT(refusal(model, other), AllOf(HasSubstr("num_inference_steps is 3 there and 4 here"),
                                           HasSubstr("prompt is a red cat there and a blue dog here")));
  Model another = Model::open(recorded_model("wan21_t2v_h6"), on_threads(1));
  EXPECT_THAT(refusal(another, request(3)), AllOf(HasSubstr("another model"), HasSubstr("transformer")));
  Request both = request(3);
  both.journal = (folder / "b").string();
  EXPECT_THAT(refusal(model, both), HasSubstr("leave journal out"));
  EXPECT_EQ(resume(model, {request(3)}, journal).first_step, 1) << "refusals leave the journal as it was";
}

// The frames are lost with the Error, so that the journal alone has them.
TEST(Resume, AJournalOutlivesATraceThatFails) {
  const TestFolder folder;
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1));
  const Video whole = model.generate(request(3));
  fs::create_directory(folder / "gone");
  Request traced = request(3);
  traced.trace = (folder / "gone" / "x.json").string();
  traced.journal = (folder / "journal").string();
  Callbacks callbacks;
  callbacks.step = [&](int64_t, int64_t, double) { fs::remove_all(folder / "gone"); };
  EXPECT_THAT(error_of([&] { model.generate({traced}, {}, callbacks); }), HasSubstr("x.json"));
  const Resumed rest = resume(model, {request(3)}, folder / "journal");
  EXPECT_TRUE(same(rest.videos[0].frames, whole.frames));
}

// Where what the decoder remembers is gone, the clip begins again and the video is the same.
TEST(Resume, ADamagedDecoderFileCostsTheClipOnly) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  const Video whole = model.generate(request(1, 9));
  for (const bool missing : {true, false}) {
    const TestFolder folder;
    End end(INT64_MAX, 5);
    interrupt(model, {request(1, 9)}, folder / "journal", end);
    for (const auto& entry : fs::directory_iterator(folder / "journal")) {
      if (!entry.path().filename().string().starts_with("decoder.")) continue;
      if (missing) fs::remove(entry.path());
      else fs::resize_file(entry.path(), 100);
    }
    const Resumed rest = resume(model, {request(1, 9)}, folder / "journal");
    EXPECT_THAT(rest.notes, HasSubstr("decoding begins again"));
    EXPECT_TRUE(same(rest.videos[0].frames, whole.frames));
  }
}

}  // namespace
}  // namespace zoetrope
