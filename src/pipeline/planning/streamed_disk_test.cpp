// What a run streams from. How fast that is depends on the machine: only what follows from it is held here.
#include "pipeline/planning/streamed_disk.h"

#include <gmock/gmock.h>

#include "pipeline/model_files/weight_cache_name.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using planner::Bytes;
using testing::ElementsAre;

TEST(StreamedDisk, ReadsPackedWeightsWhereThereAreSome) {
  const ModelFolder model = ModelFolder::open(recorded_model("wan21_t2v"));
  const std::vector<std::filesystem::path> own = streamed_files(model, "");
  ASSERT_FALSE(own.empty());
  EXPECT_EQ(own.front().extension(), ".safetensors");
  const TestFolder cache;
  EXPECT_EQ(streamed_files(model, cache.path().string()), own);
  const auto packed = cache.write(weight_cache_name(model, 0) + "-0123.weights", "packed");
  cache.write("another-model-0123.weights", "packed");
  cache.write(weight_cache_name(model, 0) + "-0123.unfinished", "packed");
  EXPECT_THAT(streamed_files(model, cache.path().string()), ElementsAre(packed));
}

TEST(StreamedDisk, OfNoFilesNothingIsKnown) {
  const TestFolder folder;
  for (const auto& files : {std::vector<std::filesystem::path>{}, {folder.path() / "missing"}}) {
    const StreamedDisk disk = streamed_disk(files, Bytes::most());
    EXPECT_FALSE(disk.in_memory);
    EXPECT_EQ(disk.bytes_per_second, 0);
    EXPECT_EQ(disk.note, "");
  }
}

// Pages that the run needs itself do not stay.
TEST(StreamedDisk, FilesThatDoNotFitBesideTheRunComeFromTheDisk) {
  const TestFolder folder;
  const auto file = folder.write("file", std::string(1 << 20, 'w'));
  EXPECT_FALSE(streamed_disk({file}, Bytes((1 << 20) - 1)).in_memory);
  EXPECT_FALSE(streamed_disk({file, file}, Bytes(1 << 20)).in_memory);
}

}  // namespace
}  // namespace zoetrope::pipeline
