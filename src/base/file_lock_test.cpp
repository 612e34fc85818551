#include "base/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "zoetrope/error.h"

#include "base/test_folder.h"

namespace zoetrope {
namespace {

std::string refusal(const std::filesystem::path& file) {
  try {
    const FileLock lock(file, "the folder", "another one uses it");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(FileLock, IsOfOneAtATime) {
  const TestFolder folder;
  const auto file = folder.path() / "lock";
  std::optional<FileLock> lock(std::in_place, file, "the folder", "another one uses it");
  EXPECT_EQ(refusal(file), "the folder: another one uses it");
  lock.reset();
  EXPECT_EQ(refusal(file), "");
}

TEST(FileLock, IsGivenUpByAProcessThatEnds) {
  const TestFolder folder;
  const auto file = folder.path() / "lock";
  const pid_t other = ::fork();
  if (other == 0) {
    [[maybe_unused]] const auto* lock = new FileLock(file, "the folder", "another one uses it");
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(refusal(file), "");
}

TEST(FileLock, NamesWhatCannotBeWritten) {
  const TestFolder folder;
  EXPECT_THAT(refusal(folder.path() / "none" / "lock"), testing::StartsWith("the folder: cannot be written: "));
}

}  // namespace
}  // namespace zoetrope
