#include "zoetrope/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "zoetrope/communicator.h"

#include "base/error.h"
#include "pipeline/generate.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/model_files/int8_calibration.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/test_model.h"
#include "tensor/copy_of.h"
#include "tensor/relative_l2.h"

namespace zoetrope {
namespace {

using pipeline::Loads;
using pipeline::ModelCopy;
using pipeline::recorded_model;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Request request(const std::string& prompt, int64_t seed = 0) {
  Request r;
  r.prompt = prompt;
  r.height = 32;
  r.width = 48;
  r.num_frames = 5;
  r.num_inference_steps = 2;
  r.seed = seed;
  return r;
}

ModelOptions on_threads(int64_t ranks, KeepWeights keep = KeepWeights::kNone) {
  ModelOptions options;
  options.ranks = ranks;
  options.threads = ranks;
  options.keep_weights = keep;
  options.strategy.deterministic = true;
  return options;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

TEST(Model, FramesAreThoseOfTheFile) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  const Video video = model.generate(request("a red cat"));
  EXPECT_EQ(video.frames.shape(), (Shape{5, 32, 48, 3}));
  EXPECT_EQ(video.frames.dtype(), DType::kU8);

  pipeline::GenerateOptions options;
  static_cast<ModelOptions&>(options) = on_threads(2);
  static_cast<Request&>(options) = request("a red cat");
  const TestFolder folder;
  options.model = recorded_model("wan21_t2v").string();
  options.output = (folder / "clip.mp4").string();
  options.dump = (folder / "dump").string();
  pipeline::generate(options);
  const auto dump = io::TensorFile::open(folder / "dump" / "run.safetensors");
  const TensorView frames = dump->tensor("frames_u8");
  EXPECT_EQ(std::memcmp(frames.raw(), video.frames.view().raw(), frames.bytes()), 0);
}

// Prompts, negative prompts and seeds of their own; each video of a batch has the bits that it has alone.
TEST(Model, ABatchHasTheBitsOfItsVideos) {
  std::vector<Request> requests{request("a red cat", 7), request("two blue dogs and a much longer prompt", 8),
                                request("a red cat", 9)};
  requests[2].negative_prompt = "grey";
  for (const int64_t ranks : {1, 2, 3}) {
    for (const double guidance : {5.0, 1.0}) {
      for (Request& r : requests) r.guidance_scale = guidance;
      ModelOptions options = on_threads(ranks);
      options.dtype = ranks == 2 ? DType::kBF16 : DType::kF32;
      Model model = Model::open(recorded_model("wan21_t2v"), options);
      const std::vector<Video> batch = model.generate(requests);
      ASSERT_EQ(batch.size(), requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        const Video alone = model.generate(requests[i]);
        EXPECT_TRUE(same(batch[i].latents, alone.latents)) << ranks << " ranks, video " << i;
        EXPECT_TRUE(same(batch[i].frames, alone.frames)) << ranks << " ranks, video " << i;
        EXPECT_EQ(batch[i].seed, requests[i].seed);
        EXPECT_EQ(batch[i].timing.empty(), i > 0);
      }
    }
  }
}

TEST(Model, ABatchOfTwoExpertsAndOfCaches) {
  Model two = Model::open(recorded_model("wan22_t2v"), on_threads(2));
  Model one = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  std::vector<Request> requests{request("a red cat", 7), request("two blue dogs", 8)};
  for (Request& r : requests) r.num_inference_steps = 6;
  const auto check = [&](Model& model) {
    const std::vector<Video> batch = model.generate(requests);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(same(batch[i].latents, model.generate(requests[i]).latents)) << i;
  };
  check(two);
  for (Request& r : requests) {
    r.cache = sampling::StepCacheKind::kTea;
    r.cache_coefficients = "wan2.1_t2v_1.3b";
    r.cache_threshold = 0.3;
  }
  check(one);
  for (Request& r : requests) {
    r = request(r.prompt);
    r.cache = sampling::StepCacheKind::kSen;
  }
  EXPECT_THAT(error_of([&] { one.generate(requests); }), HasSubstr("one video"));
}

// Segments of a video begin with its own frames.
TEST(Model, ABatchOfSegments) {
  const std::filesystem::path model = recorded_model("wan22_animate");
  const TestFolder folder;
  const auto video_of = [&](const std::string& name) {
    std::filesystem::create_directory(folder / name);
    for (const auto& entry : std::filesystem::directory_iterator(model / "inputs"))
      if (entry.path().filename().string().starts_with(name + "_video"))
        std::filesystem::copy(entry.path(), folder / name / entry.path().filename());
    return (folder / name).string();
  };
  Request r = request("a red cat", 7);
  r.num_frames = Request().num_frames;
  r.num_inference_steps = 2;
  r.image = (model / "inputs" / "image.png").string();
  r.pose_video = video_of("replace_pose");
  r.face_video = video_of("replace_face");
  r.mode = AnimateMode::kReplace;
  r.background_video = video_of("replace_background");
  r.mask = video_of("replace_mask");
  r.segment_frame_length = 5;
  r.guidance_scale = 3;
  std::vector<Request> requests{r, r, r};
  requests[1].prompt = "two blue dogs";
  requests[1].seed = 8;
  requests[2].seed = 9;
  for (const int64_t ranks : {1, 2, 3}) {
    Model animate = Model::open(model, on_threads(ranks));
    const std::vector<Video> batch = animate.generate(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Video alone = animate.generate(requests[i]);
      EXPECT_TRUE(same(batch[i].latents, alone.latents)) << ranks << " ranks, video " << i;
      EXPECT_TRUE(same(batch[i].frames, alone.frames)) << ranks << " ranks, video " << i;
    }
    EXPECT_FALSE(same(batch[0].frames, batch[2].frames)) << ranks;
  }
}

// The pictures and videos that they follow are the same for all videos of a batch.
TEST(Model, ABatchWithConditions) {
  const auto input = [](const char* model, const char* file) {
    return (recorded_model(model) / "inputs" / file).string();
  };
  const TestFolder control;
  for (const auto& entry : std::filesystem::directory_iterator(recorded_model("wan21_vace") / "inputs"))
    if (entry.path().filename().string().starts_with("video_"))
      std::filesystem::copy(entry.path(), control / entry.path().filename());
  for (const char* name : {"wan21_i2v", "wan21_flf2v", "wan22_i2v", "wan22_ti2v", "wan21_vace"}) {
    std::vector<Request> requests{request("a red cat", 7), request("two blue dogs", 8)};
    for (Request& r : requests) {
      r.num_inference_steps = 4;
      if (std::string(name) == "wan22_ti2v") r.height = r.width = 64;
      if (std::string(name) == "wan21_flf2v") r.last_image = input(name, "last_image.png");
      if (std::string(name) != "wan21_vace") {
        r.image = input(name, "image.png");
        continue;
      }
      r.control_video = control.path().string();
      r.mask = input(name, "mask_00.png");
      r.reference_images = {input(name, "reference_0.png")};
    }
    for (const int64_t ranks : {1, 3}) {
      Model model = Model::open(recorded_model(name), on_threads(ranks));
      const std::vector<Video> batch = model.generate(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Video alone = model.generate(requests[i]);
        EXPECT_TRUE(same(batch[i].latents, alone.latents)) << name << ", " << ranks << " ranks, video " << i;
        EXPECT_TRUE(same(batch[i].frames, alone.frames)) << name << ", " << ranks << " ranks, video " << i;
      }
      EXPECT_FALSE(same(batch[0].latents, batch[1].latents)) << name;
    }
  }
}

TEST(Model, ABatchMustBeAlike) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1));
  std::vector<Request> requests{request("a red cat"), request("two blue dogs")};
  requests[1].height = 48;
  EXPECT_THAT(error_of([&] { model.generate(requests); }), AllOf(HasSubstr("video 2"), HasSubstr("height=48")));
  EXPECT_THAT(error_of([&] { model.generate(std::vector<Request>()); }), HasSubstr("no video"));
  requests.pop_back();
  EXPECT_THAT(error_of([&] { model.generate(requests, {{}, {}}); }), HasSubstr("sinks"));
}

class KeptWeights : public testing::TestWithParam<KeepWeights> {};

// Prompts, seeds, sizes, steps and the shape of the run change; each video is that of a model opened for it alone.
TEST_P(KeptWeights, EveryRequestIsAsIfItWereTheFirst) {
  std::vector<Request> requests{request("a red cat"), request("a red cat", 7), request("two blue dogs", 7),
                                request("two blue dogs")};
  requests[2].height = 48;
  requests[2].num_frames = 9;
  requests[3].guidance_scale = 1;
  requests[3].num_inference_steps = 3;
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2, GetParam()));
  for (const Request& r : requests) {
    const Video again = model.generate(r);
    const Video alone = Model::open(recorded_model("wan21_t2v"), on_threads(2)).generate(r);
    EXPECT_TRUE(same(again.frames, alone.frames)) << r.prompt << " " << r.seed;
    EXPECT_TRUE(same(again.latents, alone.latents)) << r.prompt << " " << r.seed;
  }
}

INSTANTIATE_TEST_SUITE_P(, KeptWeights,
                         testing::Values(KeepWeights::kNone, KeepWeights::kTransformer, KeepWeights::kAll));

TEST(Model, TwoExpertsAreKept) {
  Model kept = Model::open(recorded_model("wan22_t2v"), on_threads(2, KeepWeights::kAll));
  Loads first, second;
  Request r = request("a red cat");
  r.num_inference_steps = 6;  // four of the first expert, two of the second
  const Video a = kept.generate(r, first.callbacks);
  const Video b = kept.generate(r, second.callbacks);
  EXPECT_TRUE(same(a.frames, b.frames));
  EXPECT_THAT(first.components, ElementsAre("transformer", "transformer_2"));
  EXPECT_THAT(second.components, ElementsAre());
}

TEST(Model, LoadsAgainOnlyWhatIsNotKept) {
  for (const KeepWeights keep : {KeepWeights::kNone, KeepWeights::kTransformer}) {
    Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1, keep));
    Loads first, second, after_release;
    model.generate(request("a red cat"), first.callbacks);
    model.generate(request("a red cat", 1), second.callbacks);
    EXPECT_THAT(first.components, ElementsAre("transformer"));
    EXPECT_EQ(second.components.empty(), keep == KeepWeights::kTransformer);
    model.release_weights();
    model.generate(request("a red cat", 2), after_release.callbacks);
    EXPECT_THAT(after_release.components, ElementsAre("transformer"));
  }
}

class CountingSink final : public FrameSink {
 public:
  explicit CountingSink(std::vector<std::string>& told, int64_t fails_at = -1) : told_(told), fails_at_(fails_at) {}
  ~CountingSink() override { told_.emplace_back(finished_ ? "closed" : "abandoned"); }
  void add_frame(const uint8_t*) override {
    if (count_++ == fails_at_) throw Error("the viewer went away");
    told_.emplace_back("frame");
  }
  void finish() override { finished_ = true; }

 private:
  std::vector<std::string>& told_;
  const int64_t fails_at_;
  int64_t count_ = 0;
  bool finished_ = false;
};

TEST(Model, FramesGoIntoASink) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  std::vector<std::string> told;
  VideoFormat seen;
  Request r = request("a red cat");
  r.fps = 24;
  const Video video = model.generate(r, [&](const VideoFormat& format) {
    seen = format;
    return std::make_unique<CountingSink>(told);
  });
  EXPECT_TRUE(video.frames.view().empty());
  EXPECT_THAT(told, ElementsAre("frame", "frame", "frame", "frame", "frame", "closed"));
  EXPECT_EQ(seen.width, 48);
  EXPECT_EQ(seen.height, 32);
  EXPECT_EQ(seen.fps, 24);
  EXPECT_EQ(seen.metadata.at("prompt"), "a red cat");
}

// Keeps the bytes of all frames, and what it makes of their values.
class RoundingSink final : public FrameSink {
 public:
  RoundingSink(size_t size, std::vector<uint8_t>& bytes, std::vector<uint8_t>& rounded)
      : size_(size), bytes_(bytes), rounded_(rounded) {}
  void add_values(const float* rgb) override {
    for (size_t i = 0; i < size_; ++i) rounded_.push_back(static_cast<uint8_t>(255.0f * rgb[i]));
  }
  void add_frame(const uint8_t* rgb) override { bytes_.insert(bytes_.end(), rgb, rgb + size_); }
  void finish() override {}

 private:
  const size_t size_;
  std::vector<uint8_t>&bytes_, &rounded_;
};

TEST(Model, ASinkSeesTheValuesBehindTheBytes) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  std::vector<uint8_t> bytes, rounded;
  model.generate(request("a red cat"), [&](const VideoFormat& format) {
    return std::make_unique<RoundingSink>(static_cast<size_t>(format.width * format.height * 3), bytes, rounded);
  });
  EXPECT_EQ(bytes.size(), size_t{5 * 32 * 48 * 3});
  EXPECT_EQ(bytes, rounded);
}

// With almost no noise left, a preview shows the clip: its first frame is that of the clip, and the next latent frame
// is decoded as a first one.
TEST(Model, PreviewsShowWhatIsBeingMade) {
  for (const int64_t ranks : {1, 3}) {
    Model model = Model::open(recorded_model("wan21_t2v"), on_threads(ranks));
    Request r = request("a red cat");
    r.sigmas = {1, 0.5, 1e-6};
    const Video without = model.generate(r);
    r.preview = 1;
    std::vector<int64_t> steps;
    std::vector<Tensor> shown;
    Callbacks callbacks;
    callbacks.preview = [&](int64_t done, const Tensor& frames) {
      steps.push_back(done);
      shown.push_back(copy_of(frames));
    };
    const Video video = model.generate(r, callbacks);
    EXPECT_TRUE(same(video.frames, without.frames)) << "a preview changes nothing";
    ASSERT_THAT(steps, ElementsAre(1, 2)) << ranks << " ranks";
    EXPECT_EQ(shown[1].shape(), (Shape{2, 32, 48, 3}));
    const auto farthest_of_first_frames = [&](const Tensor& frames) {
      int most = 0;
      for (int64_t i = 0; i < 32 * 48 * 3; ++i)
        most = std::max(most, std::abs(frames.data<uint8_t>()[i] - video.frames.data<uint8_t>()[i]));
      return most;
    };
    EXPECT_LE(farthest_of_first_frames(shown[1]), 1);
    EXPECT_GT(farthest_of_first_frames(shown[0]), 20);
    r.preview = 2;
    steps.clear();
    model.generate(r, callbacks);
    EXPECT_THAT(steps, ElementsAre(2));
  }
}

TEST(Model, LatentsAloneAreThoseOfTheVideo) {
  for (const int64_t ranks : {1, 3}) {
    Model model = Model::open(recorded_model("wan21_t2v"), on_threads(ranks));
    Request r = request("a red cat");
    const Video whole = model.generate(r);
    r.decode = false;
    std::vector<std::string> told;
    const Video alone = model.generate(r, [&](const VideoFormat&) { return std::make_unique<CountingSink>(told); });
    EXPECT_TRUE(same(alone.latents, whole.latents)) << ranks << " ranks";
    EXPECT_TRUE(alone.frames.view().empty());
    EXPECT_THAT(told, testing::IsEmpty());
  }
}

// All ranks go on with what the callback on rank 0 leaves.
TEST(Model, ACallbackMayChangeTheLatents) {
  const auto changed = [](int64_t ranks) {
    ModelOptions options = on_threads(ranks);
    options.dtype = DType::kF32;
    Model model = Model::open(recorded_model("wan21_t2v"), options);
    std::vector<int64_t> steps;
    std::vector<double> timesteps;
    Callbacks callbacks;
    callbacks.latents = [&](int64_t step, double timestep, const TensorView& latents) {
      steps.push_back(step);
      timesteps.push_back(timestep);
      if (step == 0)
        for (int64_t i = 0; i < latents.size(); ++i) latents.data<float>()[i] *= -0.5f;
    };
    Video video = model.generate(request("a red cat"), callbacks);
    EXPECT_THAT(steps, ElementsAre(0, 1));
    EXPECT_EQ(timesteps.size(), 2u);
    EXPECT_GT(timesteps[0], timesteps[1]);
    return std::move(video.latents);
  };
  const Tensor one = changed(1);
  EXPECT_LT(relative_l2(changed(3), one), 1e-4);
  ModelOptions options = on_threads(1);
  options.dtype = DType::kF32;
  const Video unchanged = Model::open(recorded_model("wan21_t2v"), options).generate(request("a red cat"));
  EXPECT_GT(relative_l2(unchanged.latents, one), 0.1);
}

TEST(Model, AnErrorLeavesTheModelAsItWas) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2, KeepWeights::kAll));
  const Video first = model.generate(request("a red cat"));
  std::vector<std::string> told;
  EXPECT_THAT(error_of([&] {
                model.generate(request("a red cat"),
                               [&](const VideoFormat&) { return std::make_unique<CountingSink>(told, 2); });
              }),
              HasSubstr("the viewer went away"));
  EXPECT_THAT(told, ElementsAre("frame", "frame", "abandoned"));
  Callbacks stops;
  std::atomic<int> asked = 0;
  stops.cancelled = [&] { return ++asked > 3; };
  EXPECT_THAT(error_of([&] { model.generate(request("two blue dogs"), stops); }), HasSubstr("interrupted"));
  EXPECT_TRUE(same(model.generate(request("a red cat")).frames, first.frames));
}

TEST(Model, RefusalsNameTheField) {
  const auto refusal = [](auto&& change) {
    return error_of([&] {
      ModelOptions options = on_threads(1);
      Request r = request("a red cat");
      change(options, r);
      Model::open(recorded_model("wan21_t2v"), options).generate(r);
    });
  };
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.prompt.clear(); }), HasSubstr("prompt"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.height = -16; }), HasSubstr("height=-16"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.num_frames = 4; }), HasSubstr("num_frames=4"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.guidance_scale = std::nan(""); }),
              HasSubstr("guidance_scale=nan"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.num_inference_steps = 0; }),
              HasSubstr("num_inference_steps=0"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.sink_value_bytes = -1; }), HasSubstr("sink_value_bytes=-1"));
  EXPECT_THAT(refusal([](ModelOptions&, Request& r) { r.image = "cat.png"; }), HasSubstr("image"));
  EXPECT_THAT(refusal([](ModelOptions& o, Request&) { o.dtype = DType::kF16; }),
              AllOf(HasSubstr("F16"), HasSubstr("BF16")));
  EXPECT_THAT(refusal([](ModelOptions& o, Request&) { o.ranks = 0; }), HasSubstr("ranks=0"));
  EXPECT_THAT(refusal([](ModelOptions& o, Request&) {
                o.lora = {{"a.safetensors", 2000}};
              }),
              HasSubstr("a.safetensors"));
  EXPECT_THAT(error_of([] { Model::open("no/such/folder"); }), HasSubstr("no/such/folder"));
}

// A file of int8_calibration for a recorded model: each expert has blocks that are off by 1 % in each branch, where the
// errors of branches have nothing to do with each other.
std::filesystem::path calibration_of(const std::filesystem::path& model, const TestFolder& folder) {
  const pipeline::Int8Calibration file(folder / "int8.json");
  const pipeline::ModelFolder opened = pipeline::ModelFolder::open(model);
  const pipeline::BranchNorms same{1, 1, 1}, apart{1e-4, 1e-4, 0};
  for (size_t expert = 0; expert < opened.experts.size(); ++expert)
    file.remember({.weights = pipeline::transformer_identity(opened, expert),
                   .name = "a model",
                   .at = {{.timestep = 500, .velocity = same, .blocks = {apart, apart}, .all = {2e-4, 2e-4, 0}}}});
  return file.file();
}

ModelOptions within_budget(double budget, const std::filesystem::path& calibration) {
  ModelOptions options = on_threads(1);
  options.dtype = DType::kI8;
  options.int8_layers = "auto";
  options.int8_calibration = calibration.string();
  options.budget = budget;
  return options;
}

// A budget is spent for the guidance that a model is opened for. At 5 a block is off by 0.01 · √(5² + 4²).
TEST(Model, RefusesGuidanceBeyondTheBudget) {
  const TestFolder folder;
  const auto path = recorded_model("wan21_t2v");
  ModelOptions options = within_budget(0.07, calibration_of(path, folder));
  Model model = Model::open(path, options);
  Request r = request("a red cat");
  EXPECT_THAT(model.describe(r), HasSubstr("1 of 2 blocks multiply in int8 (0; predicted 6.4 % off bf16 per step"));
  r.guidance_scale = 3;
  EXPECT_THAT(model.describe(r), HasSubstr("(0; predicted 3.6 % off bf16 per step; on latents without guidance)"));
  EXPECT_EQ(model.generate(r).frames.extent(0), r.num_frames);
  r.guidance_scale = 8;
  EXPECT_THAT(error_of([&] { model.generate(r); }),
              AllOf(HasSubstr("guidance_scale=8: int8 then changes the velocity of the transformer by 0.107, more than "
                              "budget=0.07"),
                    HasSubstr("open the model for this one")));
  EXPECT_THAT(error_of([&] { Model::open(path, options, r); }), HasSubstr("by 0.107 with guidance 8"));
  r.guidance_scale = 0.5;  // off, as 1
  EXPECT_THAT(Model::open(path, options, r).describe(r), HasSubstr("(0-1; predicted 1.4 % off bf16 per step)"));
  options.budget.reset();  // 0.02 of one forward, with any guidance
  r.guidance_scale = 8;
  EXPECT_THAT(Model::open(path, options).describe(r), HasSubstr("(0-1; predicted 15 % off bf16 per step"));
}

TEST(Model, EachExpertSpendsTheBudgetForItsGuidance) {
  const TestFolder folder;
  const auto path = recorded_model("wan22_t2v");
  Request r = request("a red cat");
  r.guidance_scale = 5;
  r.guidance_scale_2 = 1;
  const Model model = Model::open(path, within_budget(0.07, calibration_of(path, folder)), r);
  EXPECT_THAT(model.describe(r),
              AllOf(HasSubstr("1 of 2 blocks multiply in int8 (0; predicted 6.4 % off bf16 per step"),
                    HasSubstr("2 of 2 blocks multiply in int8 (0-1; predicted 1.4 % off bf16 per step)")));
  r.guidance_scale_2 = 5;
  EXPECT_THAT(error_of([&] { model.describe(r); }),
              HasSubstr("guidance_scale_2=5: int8 then changes the velocity of the transformer_2 by 0.0906"));
  r.guidance_scale_2.reset();  // as guidance_scale
  EXPECT_THAT(error_of([&] { model.describe(r); }),
              HasSubstr("guidance_scale=5: int8 then changes the velocity of the transformer_2 by 0.0906"));
}

TEST(Model, CallsFromSeveralThreadsFollowOneAnother) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1, KeepWeights::kAll));
  const Video alone = model.generate(request("a red cat"));
  Video videos[3];
  {
    std::vector<std::jthread> callers;
    for (Video& video : videos) callers.emplace_back([&] { video = model.generate(request("a red cat")); });
  }
  for (const Video& video : videos) EXPECT_TRUE(same(video.frames, alone.frames));
}

// Ranks of a program's own share one Model. They call again without waiting for each other.
TEST(Model, RanksOfTheCallerShareIt) {
  constexpr int kRanks = 3;
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(kRanks, KeepWeights::kTransformer));
  Tensor frames[2], latents[kRanks];
  comm::run_ranks(kRanks, [&](comm::Communicator& world) {
    for (int64_t seed = 0; seed < 2; ++seed) {
      Video video = model.generate(world, request("a red cat", seed));
      EXPECT_EQ(video.frames.view().empty(), world.rank() != 0);
      if (world.rank() == 0) frames[seed] = std::move(video.frames);
      latents[world.rank()] = std::move(video.latents);
    }
  });
  for (int64_t seed = 0; seed < 2; ++seed) {
    const Video expected = model.generate(request("a red cat", seed));
    EXPECT_TRUE(same(frames[seed], expected.frames)) << seed;
  }
  EXPECT_TRUE(same(latents[0], latents[2]));
}

// Each half of the ranks has a communicator and a prompt of its own; both use the Model at once.
TEST(Model, GroupsOfRanksMakeTheirOwnVideos) {
  ModelOptions options = on_threads(2, KeepWeights::kAll);
  options.ranks = std::nullopt;
  Model model = Model::open(recorded_model("wan21_t2v"), options);
  const char* prompts[] = {"a red cat", "two blue dogs"};
  Tensor frames[2];
  comm::run_ranks(4, [&](comm::Communicator& world) {
    const int half = world.rank() / 2;
    const auto group = world.split(half, world.rank());
    Video video = model.generate(*group, request(prompts[half]));
    if (group->rank() == 0) frames[half] = std::move(video.frames);
  });
  Model alone = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  for (int half = 0; half < 2; ++half) EXPECT_TRUE(same(frames[half], alone.generate(request(prompts[half])).frames));
}

TEST(Model, RanksMustAskForTheSame) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  EXPECT_THAT(error_of([&] {
                comm::run_ranks(
                    2, [&](comm::Communicator& world) { model.generate(world, request("a red cat", world.rank())); });
              }),
              HasSubstr("seed"));
}

TEST(Model, OnlyRankZeroNeedsASink) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::string> told;
    comm::run_ranks(2, [&](comm::Communicator& world) {
      OpenSink sink;
      if (world.rank() == 0) sink = [&](const VideoFormat&) { return std::make_unique<CountingSink>(told); };
      EXPECT_TRUE(model.generate(world, request("a red cat"), sink).frames.view().empty());
    });
    EXPECT_EQ(told.size(), 6u);
  }
}

TEST(Model, ASinkThatIsNotOpenedIsAnError) {
  Model model = Model::open(recorded_model("wan21_t2v"), on_threads(1));
  EXPECT_THAT(error_of([&] { model.generate(request("a red cat"), [](const VideoFormat&) { return nullptr; }); }),
              HasSubstr("sink"));
}

TEST(Model, DescribesBeforeItRuns) {
  const Model model = Model::open(recorded_model("wan21_t2v"), on_threads(2));
  EXPECT_THAT(model.describe(request("a red cat")), AllOf(HasSubstr("48 x 32 x 5"), HasSubstr("Ranks 2")));
}

TEST(Model, DescribesWhatEachExpertDoes) {
  const Model model = Model::open(recorded_model("wan22_t2v").string());
  Request r = request("a red cat");
  r.num_inference_steps = 6;
  r.guidance_scale = 4;
  r.guidance_scale_2 = 3;
  EXPECT_THAT(model.describe(r), HasSubstr("6 steps (4 with high noise), guidance 4, of low noise 3\n"));
  r.boundary_ratio = 0;
  EXPECT_THAT(model.describe(r), HasSubstr("6 steps, guidance 4\n"));
}

}  // namespace
}  // namespace zoetrope
