#include "io/weights/safetensors_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_folder.h"
#include "io/weights/checkpoint.h"

namespace zoetrope::io {
namespace {

using testing::HasSubstr;

// Tensors of 16 and 8 bytes, of which a shard of 32 holds two to four; each filled with its number.
class SafetensorsShardsTest : public testing::Test {
 protected:
  static std::vector<SafetensorsStream::Entry> entries() {
    return {{"a", DType::kBF16, {4}}, {"b", DType::kF32, {4}}, {"c", DType::kF32, {4}}, {"d", DType::kBF16, {4}}};
  }

  void write(uint64_t shard_bytes) {
    AtomicFolder out(folder_ / "model");
    SafetensorsShards shards(out, "part", "weights", entries(), shard_bytes);
    EXPECT_EQ(shards.bytes(), 48u);
    for (const auto& entry : shards.entries()) {
      const std::vector<char> bytes(entry.bytes(), entry.name[0]);
      shards.write(bytes.data(), 3);
      shards.write(bytes.data() + 3, bytes.size() - 3);
    }
    shards.finish();
    out.commit();
  }
  void expect_all() const {
    const Checkpoint checkpoint = Checkpoint::open(folder_ / "model" / "part", "weights");
    EXPECT_EQ(checkpoint.names().size(), 4u);
    for (const auto& entry : entries()) {
      const TensorView stored = checkpoint.view(entry.name);
      EXPECT_EQ(stored.shape(), entry.shape);
      EXPECT_EQ(std::string(static_cast<const char*>(stored.raw()), stored.bytes()),
                std::string(entry.bytes(), entry.name[0]));
    }
  }
  size_t files() const {
    size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "model" / "part")) {
      EXPECT_THAT(file.path().filename().string(), HasSubstr("weights"));
      ++count;
    }
    return count;
  }

  TestFolder folder_;
};

TEST_F(SafetensorsShardsTest, WhatFitsIsOneFile) {
  write(48);
  EXPECT_EQ(files(), 1u);
  expect_all();
}

TEST_F(SafetensorsShardsTest, ShardsAreAsFullAsTheyGo) {
  write(32);
  EXPECT_EQ(files(), 3u);  // {a, b}, {c, d} and the index
  expect_all();
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "model" / "part", "weights");
  EXPECT_THAT(checkpoint.file("b").string(), HasSubstr("weights-00001-of-00002.safetensors"));
  EXPECT_THAT(checkpoint.file("c").string(), HasSubstr("weights-00002-of-00002.safetensors"));
}

TEST_F(SafetensorsShardsTest, ATensorThatIsLargerIsAShard) {
  write(1);
  EXPECT_EQ(files(), 5u);
  expect_all();
}

TEST_F(SafetensorsShardsTest, NothingMayBeMissing) {
  AtomicFolder out(folder_ / "model");
  SafetensorsShards shards(out, "", "weights", entries(), 16);
  const std::vector<char> bytes(8);
  shards.write(bytes.data(), bytes.size());
  EXPECT_DEATH(shards.finish(), "1 of 4 shards");  // as a mistake of the program
}

}  // namespace
}  // namespace zoetrope::io
