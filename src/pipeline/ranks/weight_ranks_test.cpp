#include "pipeline/ranks/weight_ranks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/weights/formula_source.h"
#include "io/weights/weight_loader.h"
#include "io/weights/weights.h"

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;

constexpr int kBlocks = 5, kMatrices = 3;
constexpr int64_t kRows = 40, kColumns = 300, kStep = 8;
constexpr size_t kBytes = kRows * kColumns * sizeof(float);

std::string name_of(int block, int matrix) { return fmt::format("block{}.w{}", block, matrix); }

// Of one rank: the weights of a small model, their places, and a stream of their blocks.
struct Blocks {
  std::shared_ptr<io::Weights> weights;
  std::vector<const std::byte*> places = std::vector<const std::byte*>(kBlocks * kMatrices);
  std::unique_ptr<io::WeightStream> stream;

  Blocks(std::shared_ptr<io::WeightShards> shards, std::atomic<int64_t>& packed_rows, const char* layout = "copy") {
    std::map<std::string, io::Formula> formulas;
    for (int block = 0; block < kBlocks; ++block)
      for (int matrix = 0; matrix < kMatrices; ++matrix)
        formulas[name_of(block, matrix)] = {{kRows, kColumns}, static_cast<float>(block), 1};
    io::Weights::Loading loading;
    loading.shards = std::move(shards);
    weights = std::make_shared<io::Weights>(std::make_shared<io::FormulaSource>("test", 3, formulas), loading);
    io::WeightLoader loader(weights);
    for (int block = 0; block < kBlocks; ++block) {
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        io::PackedWeight weight;
        weight.names = {name_of(block, matrix)};
        weight.shapes = {{kRows, kColumns}};
        weight.layout = layout;
        weight.bytes = kBytes;
        weight.row_step = weight.part_rows = kStep;
        weight.begin = [](int64_t row) { return static_cast<size_t>(row * kColumns) * sizeof(float); };
        weight.pack = [&packed_rows](std::span<const TensorView> stored, int64_t first, std::byte* out) {
          packed_rows += stored[0].extent(0);
          std::memcpy(out + static_cast<size_t>(first * kColumns) * sizeof(float), stored[0].raw(), stored[0].bytes());
        };
        loader.add(std::move(weight), [this, block, matrix](const std::byte* at) {
          places[static_cast<size_t>(block * kMatrices + matrix)] = at;
        });
      }
    }
    loader.run(1);
    std::vector<io::WeightStream::Part> parts;
    for (int block = 0; block < kBlocks; ++block) {
      io::WeightStream::Part part;
      for (int matrix = 0; matrix < kMatrices; ++matrix) part.ranges.push_back({place(block, matrix), kBytes});
      parts.push_back(std::move(part));
    }
    stream = weights->stream(std::move(parts));
  }
  const std::byte* place(int block, int matrix) const {
    return places[static_cast<size_t>(block * kMatrices + matrix)];
  }
  bool is_right(int block) const {
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      const TensorView stored = weights->get(name_of(block, matrix), {kRows, kColumns}, DType::kF32);
      if (std::memcmp(place(block, matrix), stored.raw(), kBytes) != 0) return false;
    }
    return true;
  }
};

void blocks_are_whole(int ranks) {
  std::atomic<int64_t> packed_rows = 0;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    Blocks blocks(weight_shards(world.split(0, world.rank())), packed_rows);
    for (int pass = 0; pass < 3; ++pass) {
      for (int block = 0; block < kBlocks; ++block) {
        const auto use = blocks.stream->use(static_cast<size_t>(block));
        EXPECT_TRUE(blocks.is_right(block)) << "block " << block << ", pass " << pass;
        EXPECT_LE(blocks.stream->resident_bytes(), 2 * kMatrices * kBytes);
      }
    }
    blocks.stream->settle();
  });
  EXPECT_EQ(packed_rows, kBlocks * kMatrices * kRows) << "of all ranks together";
}

TEST(WeightRanks, BlocksAreWholeOn1) { blocks_are_whole(1); }
TEST(WeightRanks, BlocksAreWholeOn2) { blocks_are_whole(2); }
TEST(WeightRanks, BlocksAreWholeOn3) { blocks_are_whole(3); }
TEST(WeightRanks, BlocksAreWholeOn4) { blocks_are_whole(4); }
TEST(WeightRanks, BlocksAreWholeOn7) { blocks_are_whole(7); }

// As on CPUs with other instructions: the sizes may be the same, and the bytes mean something else.
TEST(WeightRanks, RanksThatPackOtherwiseAreRefused) {
  std::atomic<int64_t> packed_rows = 0;
  comm::run_ranks(3, [&](comm::Communicator& world) {
    auto shards = weight_shards(world.split(0, world.rank()));
    const std::string error = [&]() -> std::string {
      try {
        Blocks(std::move(shards), packed_rows, world.rank() == 2 ? "other" : "copy");
      } catch (const Error& refused) {
        return refused.what();
      }
      return "no error";
    }();
    EXPECT_THAT(error, HasSubstr("the first and the 3. pack them for different CPUs"));
  });
  EXPECT_EQ(packed_rows, 0);
}

// A rank that fails does not wait for gathers that others will never join, and ends the run at once.
TEST(WeightRanks, ARankThatFailsEndsTheRun) {
  std::atomic<int64_t> packed_rows = 0;
  const auto begin = std::chrono::steady_clock::now();
  try {
    comm::run_ranks(3, [&](comm::Communicator& world) {
      Blocks blocks(weight_shards(world.split(0, world.rank())), packed_rows);
      for (int block = 0; block < kBlocks; ++block) {
        if (world.rank() == 1 && block == 2) throw Error("rank 1 has enough");
        const auto use = blocks.stream->use(static_cast<size_t>(block));
      }
      world.barrier();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has enough"));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 100) << "comm_timeout is 300 s";
}

}  // namespace
}  // namespace zoetrope::pipeline
