#include "pipeline/planning/admission.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <sstream>

#include "base/test_folder.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/workload.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using planner::Bytes;

MemoryQuestion question_1_3b() {
  MemoryQuestion question;
  question.options.dtype = DType::kF32;
  question.options.num_frames = 81;
  question.options.weights_in_memory = WeightsInMemory::kBf16;  // all of them
  wan::TransformerConfig transformer;
  transformer.num_attention_heads = 12;
  transformer.ffn_dim = 8960;
  transformer.num_layers = 30;
  question.configs.experts = {transformer};
  return question;
}

std::vector<planner::MemoryLimit> limit(double gigabytes) { return {{"a test", Bytes::of_gigabytes(gigabytes)}}; }

Bytes peak(const MemoryQuestion& question) { return memory_plan(question).peak().total(); }

TEST(Admission, LetsThroughWhatFitsExactly) {
  const MemoryQuestion question = question_1_3b();
  const Bytes needed = peak(question);
  EXPECT_EQ(refusal(question, {{"a test", needed}}), "");
  EXPECT_NE(refusal(question, {{"a test", needed - Bytes(1)}}), "");
  EXPECT_EQ(refusal(question, {}), "");
}

// What a process with a rank keeps is its part: of the shards, of the layers, of the copy of its host, of a stream.
TEST(Admission, AProcessKeepsItsPartOfTheWeights) {
  const MemoryQuestion alone = question_1_3b();
  const auto kept = [](const MemoryQuestion& question) { return kept_bytes(question, {.experts = true}).gigabytes(); };
  const double whole = kept(alone);
  const wan::TransformerConfig& config = alone.configs.experts.front();
  EXPECT_EQ(kept_bytes(alone, {.experts = true}).count(),
            static_cast<int64_t>(wan::transformer_weight_bytes(wan::transformer_tensors(config), DType::kF32)));
  MemoryQuestion question = alone;
  question.layout.context.ulysses = 2;
  EXPECT_EQ(kept(question), whole);
  question.sharers = 2;
  EXPECT_NEAR(kept(question), whole / 2, whole / 100);
  question.sharers = 1;
  question.layout.weight_shards = 2;
  EXPECT_LT(kept(question), whole * 0.6);
  question.layout = {};
  question.layout.tensor = 2;
  EXPECT_LT(kept(question), whole * 0.6);
  question.ranks_here = 2;
  EXPECT_GE(kept(question), whole);
  question = alone;
  question.options.weight_memory = 1;
  EXPECT_EQ(kept(question), 1);
  EXPECT_EQ(kept_bytes(question, {}), Bytes());
  question = alone;
  question.options.weights_in_memory = WeightsInMemory::kAsStored;
  const int64_t packed_from = wan::packed_from_bytes(question.configs);
  EXPECT_EQ(kept_bytes(question, {.experts = true}).count(),
            static_cast<int64_t>(wan::streamed_bytes(config, DType::kF32, packed_from).usual));  // packed for use
}

// In every phase the weights that stay are added to those that the phase uses.
TEST(Admission, KeptWeightsArePlanned) {
  MemoryQuestion question = question_1_3b();
  question.configs.experts.push_back(question.configs.experts.front());
  const auto totals = [&](KeepWeights keep) {
    question.options.keep_weights = keep;
    std::map<std::string, Bytes> total;
    for (const planner::MemoryPhase& phase : memory_plan(question).phases) total[phase.name] = phase.total();
    return total;
  };
  const planner::Workload workload = wan::workload(question.configs, run_size(question), question.layout, 1);
  const Bytes expert = workload.experts.front().weights.resident, decoder = workload.vae.weights.resident;
  auto none = totals(KeepWeights::kNone), transformer = totals(KeepWeights::kTransformer),
       all = totals(KeepWeights::kAll);
  EXPECT_EQ(transformer["text encoder"], none["text encoder"] + expert * 2);
  EXPECT_EQ(transformer["denoise with transformer"], none["denoise with transformer"] + expert);
  EXPECT_EQ(transformer["VAE decode"], none["VAE decode"] + expert * 2);
  EXPECT_EQ(all["text encoder"], transformer["text encoder"] + decoder);
  EXPECT_EQ(all["denoise with transformer"], transformer["denoise with transformer"] + decoder);
  EXPECT_EQ(all["VAE decode"], transformer["VAE decode"]);
  EXPECT_NE(refusal(question, {{"a test", peak(question) - Bytes(1)}}).find("keep_weights=none"), std::string::npos);
}

// They are there until the next prompts replace them, while everything else goes on.
// Processes of a host keep a transformer's weights once; what is streamed, each has for itself.
TEST(Admission, WeightsAreSharedByTheProcessesOfAHost) {
  MemoryQuestion question = question_1_3b();
  question.layout.context.ulysses = 4;
  const auto denoising = [&] { return memory_plan(question).peak_of(planner::kTransformer); };
  const Bytes weights =
      wan::workload(question.configs, run_size(question), question.layout, 1).experts[0].weights.resident;
  const Bytes alone = denoising();
  question.sharers = 4;
  EXPECT_EQ(denoising(), alone - (weights - weights / 4));
  question.sharers = 8;  // those of another run have their own
  EXPECT_EQ(denoising(), alone - (weights - weights / 4));
  question.sharers = 4;
  question.options.weights_in_memory = WeightsInMemory::kAuto;
  question.options.weight_memory = 1;
  const Bytes streamed = denoising();
  question.sharers = 1;
  EXPECT_EQ(denoising(), streamed);
  // As stored: the file is mapped by all of them.
  question.options.weights_in_memory = WeightsInMemory::kAsStored;
  question.options.weight_memory.reset();
  const Bytes file = wan::workload(question.configs, run_size(question), question.layout, 1).experts[0].weights.stored;
  const Bytes mapped = denoising();
  question.sharers = 4;
  EXPECT_EQ(denoising(), mapped - (file - file / 4));
}

TEST(Admission, EmbeddingsOfTheLastRunArePlanned) {
  MemoryQuestion question = question_1_3b();
  const planner::MemoryPlan without = memory_plan(question);
  question.known_prompts = 5'000'000;
  const planner::MemoryPlan with = memory_plan(question);
  ASSERT_EQ(with.phases.size(), without.phases.size());
  for (size_t i = 0; i < with.phases.size(); ++i)
    EXPECT_EQ(with.phases[i].total(), without.phases[i].total() + Bytes(5'000'000)) << with.phases[i].name;
}

TEST(Admission, FramesThatASinkKeepsArePlanned) {
  MemoryQuestion question = question_1_3b();
  const auto decoding = [&] { return memory_plan(question).peak_of(planner::kVae); };
  const Bytes none = decoding(),
              values(question.options.num_frames * question.options.height * question.options.width * 3);
  question.options.frames_in_memory = true;
  EXPECT_EQ(decoding(), none + values);
  question.options.sink_value_bytes = 4;
  EXPECT_EQ(decoding(), none + values * 4);
}

TEST(Admission, WhatADumpKeepsIsPlanned) {
  MemoryQuestion question = question_1_3b();
  const planner::MemoryPlan without = memory_plan(question);
  const int64_t values = question.options.num_frames * question.options.height * question.options.width * 3;
  const int64_t latents = 16 * (1 + (question.options.num_frames - 1) / 4) * (question.options.height / 8) *
                          (question.options.width / 8) * 4;
  question.options.dump = "folder";
  const auto expect_kept = [&](int64_t steps) {
    const planner::MemoryPlan with = memory_plan(question);
    const Bytes kept = Bytes(latents) * (1 + 2 * steps);
    EXPECT_EQ(with.peak_of(planner::kTextEncoder), without.peak_of(planner::kTextEncoder));
    EXPECT_EQ(with.peak_of(planner::kTransformer), without.peak_of(planner::kTransformer) + kept);
    EXPECT_EQ(with.peak_of(planner::kVae), without.peak_of(planner::kVae) + kept + Bytes(values) * (4 + 1));
  };
  expect_kept(50);
  question.options.num_inference_steps = 20;
  expect_kept(20);
  question.options.sigmas = {1, 0.75, 0.5, 0.25};
  expect_kept(4);
}

TEST(Admission, FramesOfAGifArePlanned) {
  MemoryQuestion question = question_1_3b();
  question.options.output = "frames";  // pictures: their encoder is not counted
  const auto decoding = [&] { return memory_plan(question).peak_of(planner::kVae); };
  const Bytes none = decoding(),
              values(question.options.num_frames * question.options.height * question.options.width * 3);
  question.options.output = "clip.GIF";
  EXPECT_EQ(decoding(), none + values);
}

TEST(Admission, SaysWhatIsNeededWhatThereIsAndWhatWouldFit) {
  const MemoryQuestion question = question_1_3b();
  const std::string text = refusal(question, {{"a test", peak(question) - Bytes(1)}});
  for (const char* words : {"this run needs ", " in phase '", "weights ", "are available, because of a test",
                            "what would fit: ", "weights_in_memory=auto (", "num_frames=77", "height=464 width=800"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

// Where weights would be streamed, another phase may be what does not fit.
TEST(Admission, NamesThePhaseThatStreamingDoesNotHelp) {
  MemoryQuestion question = question_1_3b();
  question.options.weights_in_memory = WeightsInMemory::kAuto;
  const MemoryQuestion least = with_least_weights(question);
  const planner::MemoryPhase asked = memory_plan(question).peak(), still = memory_plan(least).peak();
  ASSERT_LT(still.total(), asked.total());
  const std::string text = refusal(question, {{"a test", still.total() - Bytes(1)}});
  EXPECT_THAT(text, testing::HasSubstr("needs " + asked.total().text() + " in phase '" + asked.name));
  EXPECT_THAT(text, testing::HasSubstr("and with its weights streamed still " + still.total().text() + " in phase '" +
                                       still.name));
  question.options.weights_in_memory = WeightsInMemory::kBf16;
  EXPECT_THAT(refusal(question, {{"a test", still.total() - Bytes(1)}}), testing::Not(testing::HasSubstr("still")));
  // A stream shares nothing with the other processes of a host: of a small model it needs more than all weights.
  GenerateOptions small = small_run();
  small.model = recorded_model("../../../demo/wan-tiny").string();
  small.height = small.width = 32;
  small.output = "frames";  // else most is held while they are encoded
  question = OpenModel(small).memory;
  question.layout.data = question.sharers = 2;
  const Bytes whole = memory_plan(question).peak().total();
  ASSERT_GT(memory_plan(with_least_weights(question)).peak().total(), whole);
  EXPECT_THAT(refusal(question, {{"a test", whole - Bytes(1)}}), testing::Not(testing::HasSubstr("still")));
}

// Every way out that is offered is one: the model says so of the changed options.
TEST(Admission, WhatIsOfferedFits) {
  for (const double share : {0.9, 0.7, 0.5, 0.45}) {
    const MemoryQuestion question = question_1_3b();
    const Bytes available(static_cast<int64_t>(share * static_cast<double>(peak(question).count())));
    const auto ways = what_would_fit(question, available);
    EXPECT_FALSE(ways.empty()) << share;
    for (const std::string& way : ways) {
      if (way.find("processes") != std::string::npos || way.find("convert") != std::string::npos) continue;
      MemoryQuestion other = question;
      OptionSet set = describe_options(other.options);
      std::istringstream words(way.substr(0, way.find(" (")));
      for (std::string word; words >> word;) set.set_argument(word);
      EXPECT_LE(peak(as_it_fits(other, available)), available) << way;
      EXPECT_NE(way.find(peak(as_it_fits(other, available)).text()), std::string::npos) << way;
    }
  }
}

// Denoising is the peak and the VAE, whose settings do not lower it, needs nearly as much: what is offered must be
// admitted as it is worded, with no change that was tried and not told.
TEST(Admission, WhatIsOfferedFitsWhereDenoisingIsThePeak) {
  MemoryQuestion question = question_1_3b();
  question.options.dtype = question.options.text_encoder_dtype = DType::kBF16;
  question.options.num_frames = 641;
  const planner::MemoryPlan plan = memory_plan(question);
  ASSERT_EQ(plan.peak().component, planner::kTransformer);
  ASSERT_EQ(question.options.vae_dtype, DType::kF32);
  const Bytes vae = plan.peak_of(planner::kVae);
  ASSERT_LT(vae, plan.peak().total());
  // Above and below what the VAE needs as it was asked for.
  bool settings = false;
  for (const double share : {1.02, 0.98, 0.8, 0.6}) {
    const Bytes available(static_cast<int64_t>(share * static_cast<double>(vae.count())));
    for (const std::string& way : what_would_fit(question, available)) {
      if (way.find("processes") != std::string::npos || way.find("convert") != std::string::npos) continue;
      MemoryQuestion other = question;
      OptionSet set = describe_options(other.options);
      std::istringstream words(way.substr(0, way.find(" (")));
      for (std::string word; words >> word;) set.set_argument(word);
      EXPECT_EQ(refusal(other, {{"a test", available}}), "") << way;
      settings = settings || way.find("vae_") != std::string::npos;
    }
  }
  EXPECT_TRUE(settings);  // the case was met
}

TEST(Admission, WhereNothingFitsItSaysTheLeast) {
  const std::string text = refusal(question_1_3b(), limit(0.2));
  EXPECT_NE(text.find("the least that this model needs is "), std::string::npos) << text;
}

TEST(Admission, RanksOfOtherHostsHelpWhereActivationsAreTooMuch) {
  MemoryQuestion question = question_1_3b();
  question.options.height = 720;
  question.options.width = 1280;
  const auto ways = what_would_fit(question, Bytes(8'000'000'000));
  const bool offered = std::any_of(ways.begin(), ways.end(), [](const std::string& way) {
    return way.find("MPI processes, each on a host of its own") != std::string::npos;
  });
  EXPECT_TRUE(offered) << fmt::format("{}", fmt::join(ways, ", or "));
}

std::string ways_text(const MemoryQuestion& question, Bytes available, const StepSeconds& cost = {}) {
  return fmt::format("{}", fmt::join(what_would_fit(question, available, cost), ", or "));
}

// Where weights may be is said for each place with what it costs, as far as that is known.
TEST(Admission, SaysWhatOtherPlacesOfTheWeightsCost) {
  MemoryQuestion question = question_1_3b();
  question.layout.context.ring = 4;
  const Bytes available = peak(question) - Bytes(1'500'000'000);
  const auto cost = [](const MemoryQuestion& other) -> std::optional<double> {
    if (other.layout.tensor > 1) return 9.0;
    return other.layout.weight_shards > 1 ? 7.0 : other.options.weight_memory ? 5.0 : 3.0;
  };
  const std::string text = ways_text(question, available, cost);
  EXPECT_THAT(text, testing::ContainsRegex("weights_in_memory=auto \\([0-9.]+ GB, 5 s a step\\)"));
  EXPECT_THAT(text, testing::ContainsRegex("fsdp_parallelism=2 \\([0-9.]+ GB, 7 s a step\\)"));
  EXPECT_THAT(text, testing::ContainsRegex("tensor_parallelism=2 \\([0-9.]+ GB, 9 s a step\\)"));
  // float32 as stored is no smaller, but a file of 8 bits is.
  EXPECT_THAT(text, testing::ContainsRegex("zoetrope convert format=q8_0 of the transformer with "
                                           "weights_in_memory=as_stored \\([0-9.]+ GB, 3 s a step\\)"));
  // And one of 4 bits where that is too large: the transformer must need the most for that.
  MemoryQuestion frugal = question;
  frugal.options.text_encoder_dtype = frugal.options.vae_dtype = DType::kBF16;
  frugal.options.vae_tiling = true;
  bool smaller = false;
  for (int64_t less = 1'000'000'000; less < 4'000'000'000; less += 100'000'000)
    smaller = smaller || ways_text(frugal, peak(frugal) - Bytes(less)).find("convert format=q4_0") != std::string::npos;
  EXPECT_TRUE(smaller);
  question.configs.transformer_file_bytes = 1'400'000'000;  // of one byte a weight
  EXPECT_THAT(ways_text(question, available, cost),
              testing::ContainsRegex("or weights_in_memory=as_stored \\([0-9.]+ GB, 3 s a step\\)"));
  EXPECT_THAT(ways_text(question, available, cost), testing::Not(testing::HasSubstr("convert")));
  EXPECT_THAT(ways_text(question, available), testing::ContainsRegex("fsdp_parallelism=2 \\([0-9.]+ GB\\)"));
  // Ranks of one process have one copy: others are needed, on hosts of which nobody knows.
  question.ranks_here = 4;
  EXPECT_THAT(ways_text(question, available, cost),
              testing::ContainsRegex("fsdp_parallelism=[0-9]+ over [0-9]+ MPI processes, each on a host of its own "
                                     "\\([0-9.]+ GB\\)"));
  EXPECT_THAT(ways_text(question, available, cost), testing::Not(testing::HasSubstr("tensor_parallelism")));
}

// What the keys say of weights is left out where it contradicts.
TEST(Admission, OtherPlacesOfTheWeightsGoWithTheKeys) {
  MemoryQuestion question = question_1_3b();
  question.options.output = "frames";  // else most is held while they are encoded
  question.options.weights_in_memory = WeightsInMemory::kAuto;
  question.layout.context.ring = question.layout.weight_shards = 2;
  question.options.fsdp_parallelism = 2;
  const Bytes available = peak(question) - Bytes(50'000'000);
  EXPECT_THAT(ways_text(question, available), testing::ContainsRegex("weight_memory=[0-9.]+ fsdp_parallelism=1 \\("));
  question.options.fsdp_parallelism.reset();
  question.layout.weight_shards = 1;
  question.options.weight_cache = "cache";
  EXPECT_THAT(ways_text(question, available), testing::Not(testing::HasSubstr("fsdp_parallelism")));
}

// A list of shard weights is of one number of ranks.
TEST(Admission, AnotherContextGoesWithoutTheListOfItsWeights) {
  MemoryQuestion question = question_1_3b();
  question.layout.context.ring = 4;
  question.options.strategy.shard_weights.fixed = question.layout.context.shard_weights = {3, 2, 2, 2};
  const auto ways = [&](int64_t bytes) { return ways_text(question, peak(question) - Bytes(bytes)); };
  EXPECT_THAT(ways(1'500'000'000), testing::ContainsRegex("tensor_parallelism=2 shard_weights=even \\([0-9.]+ GB"));
  EXPECT_THAT(ways(1'500'000'000), testing::ContainsRegex("fsdp_parallelism=2 \\([0-9.]+ GB"));
  question.ranks_here = 4;
  EXPECT_THAT(ways(1'500'000'000), testing::ContainsRegex("fsdp_parallelism=[0-9]+( shard_weights=even)? over"));
  question.options.height = 720;
  question.options.width = 1280;
  EXPECT_THAT(ways_text(question, Bytes(8'000'000'000)),
              testing::ContainsRegex("each on a host of its own shard_weights=even"));
}

// A rank that cannot is no reason for the others to wait: all give up, with the same words.
TEST(Admission, AllRanksGiveUpTogether) {
  std::atomic<int> refused{0};
  comm::run_ranks(3, [&](comm::Communicator& world) {
    MemoryQuestion question = question_1_3b();
    if (world.rank() == 1) question.options.memory_limit = 0.5;
    else question.options.memory_limit = 1e6;
    question.options.height = question.options.width = 16;
    question.options.num_frames = 1;
    const std::string text = error_of([&] { admit(question, world); });
    if (text.find("because of memory_limit") != std::string::npos) ++refused;
  });
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace zoetrope::pipeline
