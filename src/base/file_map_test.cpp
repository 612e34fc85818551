#include "base/file_map.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "base/descriptor.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

TEST(FileMap, HasTheContentsAndKnowsTheName) {
  const TestFolder folder;
  const std::string one = (folder / "one").string(), two = (folder / "t\nwo").string();
  std::ofstream(one) << "contents";
  std::ofstream(two) << "others";
  const Descriptor file(::open(one.c_str(), O_RDWR)), other(::open(two.c_str(), O_RDONLY));
  const std::byte* gone = nullptr;
  {
    const FileMap map(file.value(), 8, one);
    FileMap writes(file.value(), 8, one, FileMap::Access::kReadWrite), moved = std::move(writes);
    const FileMap second(other.value(), 6, two);
    std::memcpy(moved.data(), "CO", 2);
    EXPECT_EQ(std::memcmp(map.data(), "COntents", 8), 0);
    EXPECT_STREQ(name_of_file_mapped_at(map.data()), one.c_str());
    EXPECT_STREQ(name_of_file_mapped_at(moved.data() + 7), one.c_str());
    EXPECT_EQ(name_of_file_mapped_at(map.data() + 8), nullptr);
    EXPECT_STREQ(name_of_file_mapped_at(second.data()), (folder / "t\\nwo").string().c_str());
    EXPECT_EQ(writes.data(), nullptr);
    gone = map.data();
  }
  EXPECT_EQ(name_of_file_mapped_at(gone), nullptr);
  const FileMap again(other.value(), 6, two);
  EXPECT_STREQ(name_of_file_mapped_at(again.data()), (folder / "t\\nwo").string().c_str());
  EXPECT_EQ(name_of_file_mapped_at(&folder), nullptr);
}

TEST(FileMap, WhatCannotBeMappedIsAnErrorWithTheName) {
  EXPECT_EQ(error_of([] { FileMap(-1, 8, "weights"); }), "weights: cannot be mapped: Bad file descriptor");
}

}  // namespace
}  // namespace zoetrope
