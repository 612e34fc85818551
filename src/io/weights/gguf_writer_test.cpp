#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "io/weights/gguf.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::io {
namespace {

TEST(GgufWriter, WhatItWritesIsReadAgain) {
  const TestFolder folder;
  const auto path = folder.path() / "a.gguf";
  std::vector<std::byte> numbers(3 * 5 * 4), blocks(2 * 34);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::byte>(i);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(3 * i);
  {
    GgufStream stream(path, {{"odd", "F32", {3, 5}}, {"five", "BF16", {1, 2, 1, 1, 3}}, {"blocks", "Q8_0", {2, 32}}},
                      {gguf_entry("general.architecture", "wan"), gguf_entry("general.file_type", 7)});
    stream.write(numbers.data(), 10);
    stream.write(numbers.data() + 10, numbers.size() - 10);
    stream.write(numbers.data(), 12);
    stream.write(blocks.data(), blocks.size());
    EXPECT_FALSE(std::filesystem::exists(path));
    stream.commit();
  }
  const auto file = TensorFile::open(path);
  EXPECT_EQ(file->container(), "GGUF 3");
  EXPECT_EQ(file->metadata().at("general.architecture"), "wan");
  EXPECT_EQ(file->metadata().at("general.file_type"), "7");
  EXPECT_EQ(file->metadata_entry("general.file_type"), gguf_entry("general.file_type", 7));
  EXPECT_EQ(file->info("odd").shape, (Shape{3, 5}));
  EXPECT_EQ(file->info("five").shape, (Shape{1, 2, 1, 1, 3}));
  EXPECT_EQ(file->info("blocks").dtype_name, "Q8_0");
  EXPECT_EQ(std::memcmp(file->bytes("odd"), numbers.data(), numbers.size()), 0);
  EXPECT_EQ(std::memcmp(file->bytes("five"), numbers.data(), 12), 0);
  EXPECT_EQ(std::memcmp(file->bytes("blocks"), blocks.data(), blocks.size()), 0);
}

}  // namespace
}  // namespace zoetrope::io
