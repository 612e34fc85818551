#include "base/file_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

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
  EXPECT_THAT(refusal(file),
              testing::StartsWith(fmt::format("the folder: another one uses it (process {} on ", ::getpid())));
  lock.reset();
  EXPECT_EQ(refusal(file), "");
}

// Of another host the text is all that is known.
TEST(FileLock, NamesAHolderThatTheFileNames) {
  const TestFolder folder;
  const auto file = folder.path() / "lock";
  std::ofstream(file) << std::string(1000, 'x');  // replaced
  const FileLock lock(file, "the folder", "another one uses it");
  const std::string unnamed = "the folder: another one uses it";
  const auto with = [&](const std::string& text) {
    std::ofstream(file) << text;
    return refusal(file);
  };
  EXPECT_EQ(with("12 node-1.cluster\n"), unnamed + " (process 12 on node-1.cluster)");
  for (const char* text :
       {"", "\n", "12", "12 ", " node", "-1 node", "0 node", "12x node", "99999999999 node", "12 a b", "12 a\nb"})
    EXPECT_EQ(with(text), unnamed) << text;
  EXPECT_EQ(with(std::string(1000, '1')), unnamed);
}

TEST(FileLock, DoesNotNameAProcessThatHasEnded) {
  const TestFolder folder;
  const auto file = folder.path() / "lock";
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  const FileLock lock(file, "the folder", "another one uses it");
  std::string process, host;
  std::ifstream(file) >> process >> host;
  std::ofstream(file) << ended << " " << host << "\n";
  EXPECT_EQ(refusal(file), "the folder: another one uses it");
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
