#include "base/atomic_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/test_folder.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

int64_t entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(AtomicFolder, AppearsWhole) {
  const TestFolder folder;
  AtomicFolder out(folder / "model/");
  out.write("index.json", "{}");
  out.write("part/config.json", "[]");
  out.write("part/other.json", "[1]");
  EXPECT_FALSE(fs::exists(folder / "model"));
  EXPECT_GT(out.free_bytes(), 0u);
  out.commit();
  EXPECT_EQ(file_bytes(folder / "model/index.json"), "{}");
  EXPECT_EQ(file_bytes(folder / "model/part/other.json"), "[1]");
  EXPECT_EQ(entries(folder.path()), 1);
  EXPECT_EQ(entries(folder / "model"), 2);
}

TEST(AtomicFolder, GivenUpLeavesNothing) {
  const TestFolder folder;
  {
    AtomicFolder out(folder / "model");
    out.write("part/config.json", "[]");
  }
  EXPECT_EQ(entries(folder.path()), 0);
}

TEST(AtomicFolder, RefusesWhatIsThere) {
  const TestFolder folder;
  fs::create_directory(folder / "model");
  EXPECT_THAT(error_of([&] { AtomicFolder out(folder / "model"); }), HasSubstr("exists already"));
  EXPECT_THAT(error_of([&] { AtomicFolder out(folder / "model/"); }), HasSubstr("exists already"));
  EXPECT_THAT(error_of([&] { AtomicFolder out(folder / "no" / "model"); }), HasSubstr("there is no folder"));
}

// In a process of its own, because nothing can be written after it.
TEST(AtomicFolder, SignalsRemoveIt) {
  const TestFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFolder out(folder / "model");
    out.write("part/config.json", "[]");
    out.write("index.json", "{}");
    remove_unfinished_files();
    ::_exit(entries(folder.path()) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(entries(folder.path()), 0);
}

}  // namespace
}  // namespace zoetrope
