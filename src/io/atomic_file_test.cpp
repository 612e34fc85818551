#include "io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "io/disk_limit.h"
#include "io/test_files.h"

namespace zoetrope::io {
namespace {

using testing::HasSubstr;

TEST(AtomicFile, AppearsOnCommitOnly) {
  const TestFolder folder;
  const auto path = folder.write("out.bin", "old");
  {
    AtomicFile file(path);
    file.write("new ", 4);
    file.write("text", 4);
    EXPECT_EQ(file_bytes(path), "old");
    file.commit();
  }
  EXPECT_EQ(file_bytes(path), "new text");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, AbandonedLeavesNothing) {
  const TestFolder folder;
  {
    AtomicFile file(folder / "out.bin");
    file.write("half", 4);
    AtomicFile moved = std::move(file);
    EXPECT_EQ(folder.entries(), 1u);
  }
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(AtomicFile, CommitsUnderAnotherNameAndWithTheLongestName) {
  const TestFolder folder;
  const std::string longest(255, 'x');
  AtomicFile file(folder / longest);
  file.write("1", 1);
  file.close();
  file.commit_as(folder / "other");
  EXPECT_EQ(file_bytes(folder / "other"), "1");
  AtomicFile(folder / longest).commit();
  EXPECT_TRUE(std::filesystem::exists(folder / longest));
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(AtomicFile, RefusesPlacesAtOnce) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "sub");
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "none/out"); }), HasSubstr("none/out"));
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "sub"); }), HasSubstr("a folder"));
  EXPECT_THAT(error_of([&] { AtomicFile(folder / ""); }), HasSubstr("file name is needed"));
  EXPECT_THAT(error_of([] { AtomicFile("/dev/full"); }), HasSubstr("not a regular file"));
  folder.write("file", "");
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "file/out"); }), HasSubstr("file/out"));
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(AtomicFile, NoSpaceIsAnErrorAndLeavesNothing) {
  const TestFolder folder;
  const DiskLimit limit(1000);
  const std::string data(1001, 'x');
  EXPECT_THAT(error_of([&] {
                AtomicFile file(folder / "out");
                file.write(data.data(), data.size());
                file.commit();
              }),
              HasSubstr("cannot be written"));
  EXPECT_EQ(folder.entries(), 0u);
}

}  // namespace
}  // namespace zoetrope::io
