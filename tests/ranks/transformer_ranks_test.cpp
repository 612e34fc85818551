// A forward of every class of the family on n ranks gives what one rank gives: every legal U × R, and for the classes
// that call attention in more places every other choice of a strategy too; on threads and (same text, under mpirun) on
// processes. So do ranks that share the layers, with attention over the others. And the comparison notices one wrong
// byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "base/project_folders.h"
#include "comm/rank_test.h"
#include "comm/testing.h"
#include "models/wan/transformer/transformer_testing.h"
#include "parallel/layout.h"
#include "parallel/shards.h"
#include "pipeline/ranks/partial_sum_ranks.h"

namespace zoetrope {
namespace {

using wan::testing::Inputs;
using wan::testing::Job;
using wan::testing::kModelClasses;
using wan::testing::Model;
using wan::testing::ModelClass;

// Besides U and R.
struct Choice {
  const char* name;
  attention::Direction direction = attention::Direction::kForward;
  attention::Softmax softmax = attention::Softmax::kOnline;
  int head_chunks = 1;
};
constexpr Choice kPlain = {""};
constexpr Choice kChoices[] = {
    {"_fixed_max_both_ways_in_chunks", attention::Direction::kTwoWay, attention::Softmax::kFixedMax, 2},
    {"_chain_in_chunks", attention::Direction::kOpen, attention::Softmax::kOnline, 2},
};

// 105 tokens of two samples: they divide by neither 2 nor 4, and a rank has parts of two frames.
Job job_of(const ModelClass& which, const Model& model) {
  Job job;
  job.latent = {3, 10, 14};
  if (which.clean_first_frame) job.clean_first_frame(model);
  return job;
}

// What the ranks of a process share, as the program does it.
struct Shared {
  Model model;
  Job job;
  Inputs inputs;
  Tensor alone;  // the velocity of one rank, [B, N, out]

  Shared(const ModelClass& which, DType dtype)
      : model(dtype, which.model), job(job_of(which, model)), inputs(model, job), alone(run(model, job, inputs)) {}
};

const Shared& shared(const ModelClass& which, DType dtype) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Shared>> known;
  const std::lock_guard lock(mutex);
  auto& found = known[fmt::format("{} {}", which.name, dtype_name(dtype))];
  if (!found) found = std::make_unique<Shared>(which, dtype);
  return *found;
}

// One rank's weights of those that share the layers.
const Model& part_of(const ModelClass& which, DType dtype, wan::TensorPart part) {
  if (part.parts == 1) return shared(which, dtype).model;
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Model>> known;
  const std::lock_guard lock(mutex);
  auto& found = known[fmt::format("{} {} {}/{}", which.name, dtype_name(dtype), part.part, part.parts)];
  if (!found) found = std::make_unique<Model>(dtype, which.model, part);
  return *found;
}

// Of a rank's velocity to that of one rank, relative to its norm. `tensor` neighbours share the layers.
double distance(const ModelClass& which, DType dtype, int tensor, const attention::Strategy& strategy,
                comm::Communicator& world) {
  const Shared& one = shared(which, dtype);
  Job job = one.job;
  job.strategy = strategy;
  const auto layers = world.split(world.rank() / tensor, world.rank());
  const auto sequence = world.split(world.rank() % tensor, world.rank());
  pipeline::PartialSumRanks sum(*layers, pipeline::PartialSumRanks::kTransformer);
  const Model& model = part_of(which, dtype, {tensor, world.rank() % tensor});
  const auto context = context_of(model, job, one.inputs);
  double error = 0, norm = 0;
  const auto compare = [&](wan::Transformer& transformer, IndexRange mine) {
    const Tensor velocity = velocity_for(model, job, mine);
    transformer.forward(one.inputs.latents, {job.timesteps, job.time_index}, velocity);
    for (int64_t b = 0; b < job.batch && !mine.empty(); ++b) {
      const TensorView ours = velocity.view().select(0, b),
                       whole = one.alone.view().select(0, b).slice(0, mine.begin, mine.end);
      for (int64_t i = 0; i < whole.size(); ++i) {
        const double expected = golden::element(whole, i), off = golden::element(ours, i) - expected;
        error += off * off;
        norm += expected * expected;
      }
    }
  };
  with_transformer(model, job, one.inputs, context, *sequence, compare, &sum);
  return std::isfinite(error) ? std::sqrt(error / std::max(norm, 1e-300)) : INFINITY;
}

constexpr double kFloat32 = 1e-5;
// bf16 of the recorded runs is up to 0.8 % off float32 (tests/golden/README.md); ranks round elsewhere, so two results
// are at most twice that apart.
constexpr double kBf16 = 2 * 8e-3;
// int8 rounds each side of a product to 1/254 of the largest of a row, some 0.8 % of its size: 1.1 % a product, of
// which the last of each of two blocks weigh most. A rank whose inputs differ in bf16 rounds some of them to the next
// step, and one that has a part of a row to steps of its own.
constexpr double kInt8 = kBf16 + 2 * 1.1e-2 * 1.42;

void matches_one(const ModelClass& which, int tensor, const attention::Strategy& strategy, comm::Communicator& world) {
  EXPECT_LE(distance(which, DType::kF32, tensor, strategy, world), kFloat32);
  EXPECT_LE(distance(which, DType::kBF16, tensor, strategy, world), kBf16);
  // Blocks of all classes are alike but for the number of keys.
  if (std::string_view(which.name) == "t2v") {
    EXPECT_LE(distance(which, DType::kI8, tensor, strategy, world), kInt8);
  }
}

void sees_a_flipped_byte(const ModelClass& which, int tensor, const attention::Strategy& strategy,
                         comm::Communicator& world) {
  constexpr auto kSums = pipeline::PartialSumRanks::kTransformer;
  for (const auto& [operation, degree] :
       {std::pair{"ulysses exchange", *strategy.layout.ulysses}, std::pair{"ring hop", *strategy.layout.ring},
        std::pair{kSums.shares, tensor}, std::pair{kSums.sums, tensor}}) {
    if (degree == 1) continue;
    const bool victim = world.rank() == world.size() - 1;
    comm::FaultyCommunicator faulty(world, victim ? operation : "", 0);
    const double mine = distance(which, DType::kF32, tensor, strategy, faulty);
    EXPECT_EQ(world.all_reduce_max(faulty.flipped() ? 1 : 0), 1);
    EXPECT_GT(world.all_reduce_max(mine), kFloat32) << operation;
  }
}

const bool kRegistered = [] {
  for (const ModelClass& which : kModelClasses) {
    const int64_t heads =
        wan::TransformerConfig::load(std::string(kGoldenFolder) + "/" + which.model + "/transformer/config.json")
            .num_attention_heads;
    for (const int ranks : {2, 3, 4, 5}) {
      if (ranks == 5 && heads % ranks != 0) continue;  // of 5 heads
      for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
        if (ranks % ulysses != 0 || ulysses > heads) continue;
        const auto add = [&](const Choice& choice) {
          attention::Strategy strategy;
          strategy.layout = {ulysses, ranks / ulysses, choice.direction, choice.head_chunks};
          strategy.softmax = choice.softmax;
          const std::string name =
              fmt::format("{}_n{}_U{}R{}{}", which.name, ranks, ulysses, ranks / ulysses, choice.name);
          comm::register_rank_test("TransformerRanksMatchOne", name, {ranks}, __FILE__, __LINE__,
                                   [=](comm::Communicator& world) { matches_one(which, 1, strategy, world); });
          if (&choice != &kPlain) return;
          comm::register_rank_test("TransformerRanksSeeAFlippedByte", name, {ranks}, __FILE__, __LINE__,
                                   [=](comm::Communicator& world) { sees_a_flipped_byte(which, 1, strategy, world); });
        };
        add(kPlain);
        if (std::string(which.name) != "vace" && !which.clean_first_frame) continue;
        for (const Choice& choice : kChoices) add(choice);
      }
      for (const int tensor : parallel::legal_tensor(ranks, heads)) {
        if (tensor == 1) continue;
        for (const int ulysses : parallel::legal_ulysses(ranks / tensor, heads / tensor)) {
          attention::Strategy strategy;
          strategy.layout = {ulysses, ranks / tensor / ulysses};
          const std::string name =
              fmt::format("{}_n{}_U{}R{}_T{}", which.name, ranks, ulysses, ranks / tensor / ulysses, tensor);
          comm::register_rank_test("TransformerRanksMatchOne", name, {ranks}, __FILE__, __LINE__,
                                   [=](comm::Communicator& world) { matches_one(which, tensor, strategy, world); });
          comm::register_rank_test(
              "TransformerRanksSeeAFlippedByte", name, {ranks}, __FILE__, __LINE__,
              [=](comm::Communicator& world) { sees_a_flipped_byte(which, tensor, strategy, world); });
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope
