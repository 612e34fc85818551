#include "base/folders.h"

#include <gtest/gtest.h>

#include <fstream>

#include "zoetrope/error.h"

#include "base/test_folder.h"

namespace zoetrope {
namespace {

TEST(MadeFolder, StaysWhereSomethingWasWrittenOrItWasThere) {
  const TestFolder folder;
  { const MadeFolder made(folder / "empty"); }
  EXPECT_EQ(folder.entries(), 0u);
  {
    const MadeFolder made(folder / "full");
    std::ofstream(folder / "full" / "file") << "x";
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "full" / "file"));
  std::filesystem::create_directory(folder / "there");
  { const MadeFolder made(folder / "there"); }
  EXPECT_TRUE(std::filesystem::exists(folder / "there"));
}

TEST(Folders, ALastSlashHidesNoName) {
  EXPECT_EQ(without_last_slash("a/frames/").filename(), "frames");
  EXPECT_EQ(without_last_slash("a/frames"), "a/frames");
  EXPECT_EQ(without_last_slash("frames/"), "frames");
  EXPECT_EQ(without_last_slash("/"), "/");
  EXPECT_EQ(without_last_slash(""), "");
}

TEST(MadeFolder, RefusesAFileAndAFolderWithoutAParent) {
  const TestFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(MadeFolder(folder / "file"), Error);
  EXPECT_THROW(MadeFolder(folder / "nowhere" / "made"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "nowhere"));
}

}  // namespace
}  // namespace zoetrope
