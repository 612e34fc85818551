// Which kept weights a run takes, and which it reads again.
#include "pipeline/stages/model_weights.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/test_folder.h"
#include "pipeline/run.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpertWeights, AreReadAgainWhereTheRunIsPlannedWithOtherMemory) {
  GenerateOptions options = small_run();
  options.keep_weights = KeepWeights::kTransformer;
  OpenModel model(options);
  const auto loads = [&](std::optional<double> weight_memory) {
    options.weight_memory = weight_memory;
    const Loads of_run;
    pipeline::Run(model, {options}).run_on_threads({{}}, of_run.callbacks);
    return of_run.components;
  };
  EXPECT_THAT(loads({}), ElementsAre("transformer"));
  EXPECT_THAT(loads({}), ElementsAre());
  EXPECT_THAT(loads(0.001), ElementsAre("transformer"));
  EXPECT_THAT(loads(0.001), ElementsAre());
  EXPECT_THAT(loads(0.002), ElementsAre());
  EXPECT_THAT(loads({}), ElementsAre("transformer"));
}

// A comparison that loads all of them would have both in memory, and nobody planned for that.
TEST(ExpertWeights, KeptPartsAreGivenUpBeforeOneRankIsCompared) {
  GenerateOptions options = small_run();
  options.ranks = 2;
  options.keep_weights = KeepWeights::kTransformer;
  options.compare_one_rank = true;
  for (const int tensor : {1, 2}) {
    SCOPED_TRACE(tensor);
    options.tensor_parallelism = tensor;
    OpenModel model(options);
    std::vector<bool> others_in_memory;  // when a transformer begins to load
    Callbacks callbacks;
    callbacks.load = [&](const std::string& component, int64_t, int64_t total) {
      if (component == "transformer" && total == 0) others_in_memory.push_back(model.experts.known());
    };
    pipeline::Run(model, {options}).run_on_threads({{}}, callbacks);
    if (tensor == 1) EXPECT_THAT(others_in_memory, ElementsAre(false));  // compared with what was kept
    else EXPECT_THAT(others_in_memory, ElementsAre(false, false));
    EXPECT_EQ(model.experts.known(), tensor == 1);
  }
}

constexpr int64_t kMegabyte = 1 << 20;

MemoryQuestion of_larger_weights(const OpenModel& model) {
  MemoryQuestion larger = model.memory;
  larger.configs.experts.front().num_layers = 1000;
  larger.configs.experts.front().ffn_dim = 8192;
  return larger;
}

// Next to what the run that read the weights said of them.
TEST(ExpertWeights, WhatOthersAllocateIsCounted) {
  GenerateOptions options = small_run();
  options.keep_weights = KeepWeights::kTransformer;
  OpenModel model(options);
  const auto run = [&] { pipeline::Run(model, {options}).run_on_threads({{}}, {}); };
  run();
  const std::vector<char> of_caller(64 * kMegabyte, 1);
  EXPECT_GT(model.of_others(), 60 * kMegabyte);
  const MemoryQuestion larger = of_larger_weights(model);
  ASSERT_GT(kept_bytes(larger, {.experts = true}).count(), 1000 * kMegabyte);
  model.note_loaded(larger);
  EXPECT_EQ(model.of_others(), 0);
  model.release_weights();
  run();
  EXPECT_GT(model.of_others(), 60 * kMegabyte);
}

// Given back to the system only when it is asked, it would be taken from what others allocate.
TEST(ExpertWeights, WhatWasFreedBeforeTheModelOpenedHidesNothing) {
  std::vector<std::string> pieces(32 * 1024, std::string(1024, 'x'));
  pieces.erase(pieces.begin(), pieces.end() - 1);  // below one that is in use
  OpenModel model(small_run());
  const std::vector<char> of_caller(64 * kMegabyte, 1);
  EXPECT_GT(model.of_others(), 60 * kMegabyte);
}

// What is mapped from a cache is not allocated, so none of what is can be weights.
TEST(ExpertWeights, OfACacheTakeNothingFromWhatOthersAllocate) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer keeps what is freed, and others get it";
#endif
  const TestFolder folder;
  GenerateOptions options = small_run();
  options.keep_weights = KeepWeights::kTransformer;
  options.weight_cache = folder.path().string();
  for (const bool mapped : {false, true}) {  // the first run writes the file
    OpenModel model(options);
    pipeline::Run(model, {options}).run_on_threads({{}}, {});
    const std::vector<char> of_caller(64 * kMegabyte, 1);
    model.note_loaded(of_larger_weights(model));
    if (mapped) EXPECT_GT(model.of_others(), 60 * kMegabyte);
    else EXPECT_EQ(model.of_others(), 0);
  }
}

// The file of a cache is a pipe, so that it is written for as long as nobody reads it.
class CacheOnAPipe : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kDeadline{4}, kUnread{6};

  // Of the files of `tensor` ranks, the last.
  explicit CacheOnAPipe(int tensor = 1) : tensor_(tensor) {
    finish_on_ranks(tensor, {});  // which tells its name
    fs::path file;
    for (const auto& entry : fs::directory_iterator(folder_.path())) file = std::max(file, entry.path());
    fs::remove(file);
    EXPECT_EQ(::mkfifo(file.c_str(), 0600), 0);
    pipe_.emplace(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ::fcntl(pipe_->value(), F_SETPIPE_SZ, 4096);
  }

  // All ranks load, wait for the cache, and meet. `cancelled(rank)`: asked there.
  void finish_on_ranks(int count, const std::function<bool(int)>& cancelled) const {
    SharedExperts experts;
    const parallel::ParallelLayout layout{.context = {.ulysses = count / tensor_}, .tensor = tensor_};
    const Callbacks callbacks;
    comm::run_ranks(count,
                    [&](comm::Communicator& world) {
                      ExpertWeights weights({.model = model_,
                                             .experts = experts,
                                             .dtype = DType::kBF16,
                                             .threads = 1,
                                             .every_rank_loads = false,
                                             .weight_cache = folder_.path().string(),
                                             .weight_memory = 0,
                                             .layout = layout,
                                             .callbacks = callbacks},
                                            world);
                      const auto loaded = weights.load(0, {});
                      weights.finish_cache(0, [&] { return cancelled && cancelled(world.rank()); });
                      world.barrier();
                    },
                    {.timeout_seconds = static_cast<double>(kDeadline.count())});
  }

  // Reads to the end what is written, from `begin` on or when kUnread is over.
  std::jthread reader(const std::function<bool()>& begin) const {
    return std::jthread([this, begin] {
      const auto end = std::chrono::steady_clock::now() + kUnread;
      while (!begin() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ::fcntl(pipe_->value(), F_SETFL, 0);
      std::array<char, 4096> bytes;
      while (::read(pipe_->value(), bytes.data(), bytes.size()) > 0) {
      }
    });
  }

 private:
  const ModelFolder model_ = ModelFolder::open(recorded_model("wan21_t2v"));
  const int tensor_;
  const TestFolder folder_;
  std::optional<Descriptor> pipe_;
};

TEST_F(CacheOnAPipe, RanksWaitForAsLongAsItIsWritten) {
  const std::jthread reads = reader([] { return false; });
  EXPECT_NO_THROW(finish_on_ranks(3, [](int) { return false; }));
}

TEST_F(CacheOnAPipe, ACancelEndsTheWait) {
  std::atomic<bool> asked = false;
  const std::jthread reads = reader([&] { return asked.load(); });
  EXPECT_THAT(error_of([&] { finish_on_ranks(2, [&](int) { return asked = true; }); }),
              HasSubstr("interrupted while writing the weight cache"));
  EXPECT_TRUE(asked);
}

class CacheOfPartsOnAPipe : public CacheOnAPipe {
 protected:
  CacheOfPartsOnAPipe() : CacheOnAPipe(2) {}
};

// Rank 1 writes, and only rank 0 knows that the run is cancelled.
TEST_F(CacheOfPartsOnAPipe, ACancelEndsTheWaitForAnotherRank) {
  std::atomic<bool> asked = false;
  const std::jthread reads = reader([&] { return asked.load(); });
  const auto cancelled = [&](int rank) { return rank == 0 && (asked = true); };
  EXPECT_THAT(error_of([&] { finish_on_ranks(2, cancelled); }),
              HasSubstr("interrupted while writing the weight cache"));
  EXPECT_TRUE(asked);
}

}  // namespace
}  // namespace zoetrope::pipeline
