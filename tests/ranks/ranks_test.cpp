// N ranks compute what one does: the final latents of whole runs of every kind of model, for every legal U × R, for
// guidance branches on halves of the ranks and for ranks that share the layers, on threads and (same text, under
// mpirun) on processes. And the comparison notices one wrong byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/project_folders.h"
#include "comm/rank_test.h"
#include "comm/testing.h"
#include "parallel/layout.h"
#include "parallel/shards.h"
#include "pipeline/ranks/partial_sum_ranks.h"
#include "pipeline/run.h"
#include "pipeline/settings/dtype_word.h"
#include "pipeline/settings/generate_options.h"
#include "tensor/relative_l2.h"

namespace zoetrope {
namespace {

struct Job {
  const char* name;
  const char* model;
  int64_t heads;
  int64_t height, width, frames;  // tokens: (height/16)·(width/16)·((frames + 3)/4)
  double recorded_bf16_error;     // final latents in case.json, of the model's own class where it has none
  // Of the ranks; the one rank that they are compared with has the defaults.
  std::optional<parallel::Direction> direction{};
  std::optional<parallel::Softmax> softmax{};
  int64_t head_chunks = 1;
  const char* inputs = "";  // "key=file key=file", files of the model's inputs
  const char* lora = "";    // a recorded file, merged on every side
  int videos = 1;           // of a batch, which each have their prompt and seed
  bool weighted = false;    // ranks have unequal shards
};

constexpr auto kTwoWay = parallel::Direction::kTwoWay, kOpen = parallel::Direction::kOpen;
constexpr auto kFixedMax = parallel::Softmax::kFixedMax;
constexpr auto kUnset = std::nullopt;

// 125 tokens divide by none of 2, 3, 4, 6, 7; six heads do not divide by four, four not by three. Two experts switch
// midway.
constexpr Job kJobs[] = {
    {"even_tokens", "wan21_t2v", 4, 48, 64, 9, 1.4e-2},
    {"odd_tokens", "wan21_t2v", 4, 80, 80, 17, 1.4e-2},
    {"six_heads", "wan21_t2v_h6", 6, 80, 80, 17, 1.4e-2},
    {"two_experts", "wan22_t2v", 4, 32, 48, 5, 1.4e-2},
    {"fixed_max_both_ways_in_chunks", "wan21_t2v_h6", 6, 48, 64, 9, 1.4e-2, kTwoWay, kFixedMax, 2},
    {"fixed_max_chain_in_chunks", "wan21_t2v", 4, 48, 64, 9, 1.4e-2, kOpen, kFixedMax, 3},
    {"image", "wan21_i2v", 4, 48, 80, 9, 1.4e-2, kUnset, kUnset, 1, "image=image.png"},
    {"image_of_two_experts", "wan22_i2v", 2, 48, 80, 9, 1.4e-2, kUnset, kUnset, 1, "image=image.png"},
    {"first_and_last_image", "wan21_flf2v", 4, 48, 80, 9, 1.4e-2, kUnset, kUnset, 1,
     "image=image.png last_image=last_image.png"},
    {"text_of_two", "wan22_ti2v", 4, 96, 160, 9, 1.4e-2},
    {"image_as_first_frame", "wan22_ti2v", 4, 96, 160, 9, 1.4e-2, kUnset, kUnset, 1, "image=image.png"},
    {"control", "wan21_vace", 4, 48, 80, 5, 1.4e-2, kUnset, kUnset, 1,
     "control_video=. mask=mask_00.png reference_images=reference_0.png"},
    {"lora", "wan21_t2v", 4, 32, 48, 5, 1.4e-2, kUnset, kUnset, 1, "", "original"},
    {"batch", "wan21_t2v", 4, 48, 48, 9, 1.4e-2, kUnset, kUnset, 1, "", "", 3},
    {"batch_in_chunks_both_ways", "wan21_t2v_h6", 6, 48, 48, 9, 1.4e-2, kTwoWay, kFixedMax, 2, "", "", 2},
    {"unequal_shards", "wan21_t2v_h6", 6, 80, 80, 17, 1.4e-2, kUnset, kUnset, 1, "", "", 1, true},
    {"unequal_shards_both_ways_in_chunks", "wan21_t2v_h6", 6, 48, 64, 9, 1.4e-2, kTwoWay, kFixedMax, 2, "", "", 1,
     true},
    {"unequal_shards_of_an_image", "wan22_ti2v", 4, 96, 160, 9, 1.4e-2, kUnset, kUnset, 1, "image=image.png", "", 1,
     true},
    {"batch_of_images", "wan21_i2v", 4, 48, 48, 5, 1.4e-2, kUnset, kUnset, 1, "image=image.png", "", 2},
};

struct Layout {
  int data, ulysses, ring, tensor = 1;
  std::string text() const {
    return fmt::format("data{}_U{}R{}{}", data, ulysses, ring, tensor > 1 ? fmt::format("_T{}", tensor) : "");
  }
};

// Recorded models keep the frames of their video among other pictures; CMake puts them into a folder of their own.
void add_inputs(const Job& job, pipeline::GenerateOptions& options) {
  OptionSet set = pipeline::describe_options(options);
  std::istringstream words(job.inputs);
  for (std::string word; words >> word;) {
    const size_t split = word.find('=');
    const std::string key = word.substr(0, split), file = word.substr(split + 1);
    const std::string path = file == "." ? fmt::format("{}/tests/ranks/control_video", kBuildFolder)
                                         : fmt::format("{}/inputs/{}", options.model, file);
    set.set(key, path, "the test");
  }
}

pipeline::GenerateOptions options_of(const Job& job, const std::string& dtype) {
  pipeline::GenerateOptions options;
  options.model = fmt::format("{}/pipelines/{}", kGoldenFolder, job.model);
  options.prompt = "A red cat runs across the market at dawn.";
  options.negative_prompt = "grey";
  options.height = job.height;
  options.width = job.width;
  options.num_frames = job.frames;
  options.num_inference_steps = 4;
  options.guidance_scale = 4;
  options.seed = 3;
  options.dtype = pipeline::dtype_of(dtype);
  options.threads = 1;
  options.decode = false;
  options.check_finite = false;  // a flipped byte may be one of an exponent
  add_inputs(job, options);
  if (*job.lora != 0) options.lora = {{fmt::format("{}/loras/{}.safetensors", kGoldenFolder, job.lora), 0.8}};
  return options;
}

std::vector<pipeline::GenerateOptions> batch_of(const pipeline::GenerateOptions& options, int videos) {
  std::vector<pipeline::GenerateOptions> batch(static_cast<size_t>(videos), options);
  for (size_t v = 1; v < batch.size(); ++v) {
    batch[v].prompt = fmt::format("{} blue dogs sleep.", v);
    batch[v].seed += static_cast<int64_t>(v);
  }
  return batch;
}

// Latents of all videos of a run, one after another.
Tensor joined(const std::vector<Video>& videos) {
  const Shape& one = videos.front().latents.shape();
  Tensor all = Tensor::uninitialized(DType::kF32, {std::ssize(videos) * one[0], one[1], one[2], one[3], one[4]});
  for (size_t v = 0; v < videos.size(); ++v) {
    const TensorView latents = videos[v].latents;
    std::memcpy(all.data<char>() + v * latents.bytes(), latents.raw(), latents.bytes());
  }
  return all;
}

struct OpenRun {
  OpenRun(const pipeline::GenerateOptions& options, int videos)
      : model(options), run(model, batch_of(options, videos)) {}
  pipeline::OpenModel model;
  pipeline::Run run;
};

// From rank 0, where ranks are processes.
void share(Tensor& latents, comm::Communicator& world) {
  std::array<int64_t, 5> extents{};
  for (int axis = 0; axis < 5 && world.rank() == 0; ++axis) extents[static_cast<size_t>(axis)] = latents.shape()[axis];
  world.broadcast(0, extents.data(), sizeof extents);
  if (world.rank() != 0)
    latents = Tensor::uninitialized(DType::kF32, {extents[0], extents[1], extents[2], extents[3], extents[4]});
  world.broadcast(0, latents.data<char>(), TensorView(latents).bytes());
}

// The latents of one rank; computed once in a job.
const Tensor& reference(const Job& job, const std::string& dtype, comm::Communicator& world) {
  static std::mutex mutex;
  static std::map<std::string, Tensor> known;
  const std::lock_guard lock(mutex);
  Tensor& latents = known[fmt::format("{} {}", job.name, dtype)];
  if (latents) return latents;
  const bool processes = world.size() > world.ranks_in_this_process();
  if (!processes || world.rank() == 0) {
    const auto video = std::make_shared<OpenRun>(options_of(job, dtype), job.videos);
    comm::run_ranks(1, [&](comm::Communicator& alone) { latents = joined(video->run.run(alone, {}, {})); });
  }
  if (processes) share(latents, world);
  return latents;
}

// Latents: every rank has them all.
Tensor run(const Job& job, const Layout& layout, const std::string& dtype, comm::Communicator& world) {
  // Shared by the ranks of a process, as the program does it.
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<OpenRun>> open;
  std::shared_ptr<OpenRun> video;
  {
    const std::lock_guard lock(mutex);
    auto& shared = open[fmt::format("{} {} {}", job.name, dtype, layout.text())];
    video = shared.lock();
    if (!video) {
      pipeline::GenerateOptions options = options_of(job, dtype);
      options.data_parallelism = layout.data;
      options.tensor_parallelism = layout.tensor;
      options.strategy.ulysses_shards = layout.ulysses;
      options.strategy.ring_direction = job.direction;
      options.strategy.softmax = job.softmax;
      options.strategy.ulysses_attention_chunks = job.head_chunks;
      for (int rank = 0; job.weighted && rank < layout.ulysses * layout.ring; ++rank)
        options.strategy.shard_weights.fixed.push_back(1 + 7 * rank % 4);
      shared = video = std::make_shared<OpenRun>(options, job.videos);
    }
  }
  Tensor latents = joined(video->run.run(world, {}, {}));
  world.barrier();  // so that the object is shared to the end
  return latents;
}

constexpr double kFloat32 = 1e-5;

// Ranks fold blocks in another order, so bf16 roundings fall elsewhere, and through steps and guidance the result is
// another sample of bf16's own error: 1.5 times what one rank's bf16 is off float32, the bound that recorded bf16 runs
// have too. Two such samples are up to the root of the sum of their squares apart.
constexpr double kBf16Factor = 1.5;

void matches_one(const Job& job, const Layout& layout, comm::Communicator& world) {
  const double error = relative_l2(run(job, layout, "float32", world), reference(job, "float32", world));
  EXPECT_LE(error, kFloat32);
  if (world.rank() == 0)
    fmt::print("{} n={} {}: float32 {:.2g} off one rank\n", job.name, world.size(), layout.text(), error);
}

void matches_one_in_bf16(const Job& job, const Layout& layout, comm::Communicator& world) {
  const Tensor& exact = reference(job, "float32", world);
  const Tensor& rounded = reference(job, "bf16", world);
  const double own_error = relative_l2(rounded, exact);
  const Tensor ours = run(job, layout, "bf16", world);
  EXPECT_LE(relative_l2(ours, exact), kBf16Factor * own_error);
  EXPECT_LE(relative_l2(ours, rounded), std::hypot(1, kBf16Factor) * own_error);
  EXPECT_LE(own_error, kBf16Factor * job.recorded_bf16_error);
  if (world.rank() == 0) {
    fmt::print("{} n={} {}: bf16 {:.2g} off one rank, {:.2g} off float32 (one rank: {:.2g})\n", job.name, world.size(),
               layout.text(), relative_l2(ours, rounded), relative_l2(ours, exact), own_error);
  }
}

// One byte of one received piece is wrong: the run must leave its bound on some rank.
void sees_a_flipped_byte(const Job& job, const Layout& layout, comm::Communicator& world) {
  constexpr auto kSums = pipeline::PartialSumRanks::kTransformer;
  // Of sums a product's: those before it are of squares, of which a row alone may matter to nobody.
  constexpr int kFirst = 0, kProduct = 5;
  const std::pair<const char*, int> operations[] = {
      {"ulysses exchange", layout.ulysses}, {"ring hop", layout.ring},     {"ulysses output exchange", layout.ulysses},
      {"guidance gather", layout.data},     {kSums.shares, layout.tensor}, {kSums.sums, layout.tensor}};
  for (const auto& [operation, degree] : operations) {
    if (degree == 1) continue;
    SCOPED_TRACE(operation);
    const bool victim = world.rank() == world.size() - 1;
    const bool of_sum = operation == kSums.shares || operation == kSums.sums;
    comm::FaultyCommunicator faulty(world, victim ? operation : "", of_sum ? kProduct : kFirst);
    const double mine = relative_l2(run(job, layout, "float32", faulty), reference(job, "float32", world));
    EXPECT_EQ(world.all_reduce_max(faulty.flipped() ? 1 : 0), 1);
    EXPECT_GT(world.all_reduce_max(std::isfinite(mine) ? mine : INFINITY), kFloat32);
  }
}

// The layouts below are those that the library takes for legal; it must not forget one.
TEST(Layouts, HaveEveryDegree) {
  using Degrees = std::vector<int>;
  EXPECT_EQ(parallel::legal_ulysses(4, 4), (Degrees{1, 2, 4}));
  EXPECT_EQ(parallel::legal_ulysses(4, 2), (Degrees{1, 2}));
  EXPECT_EQ(parallel::legal_ulysses(6, 6), (Degrees{1, 2, 3, 6}));
  EXPECT_EQ(parallel::legal_ulysses(7, 6), (Degrees{1}));
  EXPECT_EQ(parallel::legal_tensor(4, 4), (Degrees{1, 2, 4}));
  EXPECT_EQ(parallel::legal_tensor(6, 6), (Degrees{1, 2, 3, 6}));
}

std::vector<std::pair<int, int>> data_and_tensor(int ranks, int64_t heads) {
  std::vector<std::pair<int, int>> both;
  for (const int tensor : parallel::legal_tensor(ranks, heads))
    for (const int data : {1, 2})
      if (ranks / tensor % data == 0) both.emplace_back(data, tensor);
  return both;
}

// Processes wait while rank 0 computes what one rank makes.
const comm::RankOptions kPatient{.timeout_seconds = 300};

const bool kRegistered = [] {
  for (const Job& job : kJobs) {
    for (const int ranks : {2, 3, 4, 6, 7}) {
      // More ranks than four differ in nothing that conditions have to do with.
      if (ranks > 4 && *job.inputs != '\0') continue;
      if (ranks == 6 && job.videos > 1) continue;
      for (const auto& [data, tensor] : data_and_tensor(ranks, job.heads)) {
        const int context = ranks / data / tensor;
        for (const int ulysses : parallel::legal_ulysses(context, job.heads / tensor)) {
          if (job.weighted && context == 1) continue;
          const Layout layout{data, ulysses, context / ulysses, tensor};
          const std::string name = fmt::format("{}_n{}_{}", job.name, ranks, layout.text());
          comm::register_rank_test(
              "RanksMatchOne", name, {ranks}, __FILE__, __LINE__,
              [=](comm::Communicator& world) { matches_one(job, layout, world); }, kPatient);
          comm::register_rank_test(
              "RanksMatchOneInBF16", name, {ranks}, __FILE__, __LINE__,
              [=](comm::Communicator& world) { matches_one_in_bf16(job, layout, world); }, kPatient);
          if (job.videos > 1 || job.weighted) continue;  // pieces are larger or smaller, and otherwise the same
          comm::register_rank_test(
              "RanksSeeAFlippedByte", name, {ranks}, __FILE__, __LINE__,
              [=](comm::Communicator& world) { sees_a_flipped_byte(job, layout, world); }, kPatient);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope
