#include "base/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/disk_limit.h"
#include "base/error.h"
#include "base/test_folder.h"

namespace zoetrope {
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
  folder.write("file", "");
  EXPECT_THAT(error_of([&] { AtomicFile(folder / "file/out"); }), HasSubstr("file/out"));
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(AtomicFile, FollowsLinksToWhatTheyLeadTo) {
  const TestFolder folder;
  folder.write("real", "precious");
  std::filesystem::create_symlink("real", folder / "link");
  std::filesystem::create_symlink("link", folder / "far");
  std::filesystem::create_symlink("not yet", folder / "open");
  const auto write = [&](const char* name) {
    AtomicFile file(folder / name);
    file.write("new", 3);
    EXPECT_NE(file_bytes(folder / "real"), "new") << "replaced before commit";
    file.commit();
  };
  write("far");
  EXPECT_EQ(file_bytes(folder / "real"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link") && std::filesystem::is_symlink(folder / "far"));
  folder.write("real", "");
  write("open");
  EXPECT_EQ(file_bytes(folder / "not yet"), "new");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(error_of([&] { AtomicFile{folder / "loop"}; }), HasSubstr("a link that leads"));
}

TEST(AtomicFile, StreamsGetTheWholeWhenItIsComplete) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  check_writable(folder / "pipe");
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, 1), 0) << "a byte before the file";
  {
    AtomicFile file(folder / "pipe");
    file.write("all", 3);
    EXPECT_EQ(::read(reader, text, 8), -1) << "sent before commit";
    EXPECT_EQ(errno, EAGAIN);
    file.commit();
  }
  EXPECT_EQ(::read(reader, text, 8), 3);
  EXPECT_STREQ(text, "all");
  EXPECT_EQ(::read(reader, text, 8), 0);
  const auto by_number = [&](int descriptor) { return fmt::format("/dev/fd/{}", descriptor); };
  EXPECT_THAT(error_of([&] { check_writable(by_number(reader)); }), HasSubstr("not open for writing"));
  ::close(reader);
  const int file = ::open((folder / "f").c_str(), O_CREAT | O_RDWR, 0600);
  AtomicFile(by_number(file)).commit();
  AtomicFile stream(by_number(file));
  stream.write("one", 3);
  stream.commit();
  EXPECT_EQ(file_bytes(folder / "f"), "one");
  ::close(file);
  EXPECT_EQ(folder.entries(), 2u);
  AtomicFile("/dev/null").commit();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(error_of([] {
                AtomicFile full("/dev/full");
                full.write("x", 1);
                full.commit();
              }),
              HasSubstr("No space left"));
}

// As from a signal handler, in a process of its own: afterwards it writes nothing any more.
TEST(AtomicFileDeathTest, RemovedInTheMiddleIsNeitherPutInPlaceNorMadeAgain) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto scenario = [] {
    const TestFolder folder;
    const auto path = folder.write("out.bin", "old");
    AtomicFile(folder / "done").commit();
    std::filesystem::create_directory(folder / "made");
    const UnfinishedPath made((folder / "made").string(), UnfinishedPath::Kind::kFolder);
    AtomicFile file(path), inside(folder / "made/frame");
    AtomicFile moved = std::move(file);
    moved.write("new ", 4);
    remove_unfinished_files();
    const size_t left = folder.entries();
    moved.write("text", 4);
    const std::string in_place = error_of([&] { moved.commit(); });
    const std::string again = error_of([&] { AtomicFile(folder / "other"); });
    const bool kept = file_bytes(path) == "old" && std::filesystem::exists(folder / "done");
    const bool good = left == 2 && folder.entries() == 2 && kept && in_place.find("interrupted") != std::string::npos &&
                      again.find("interrupted") != std::string::npos;
    std::filesystem::remove_all(folder.path());
    std::_Exit(good ? 0 : 1);
  };
  EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "");
}

TEST(AtomicFile, KeepsManyUnfinishedAndForgetsThem) {
  const TestFolder folder;
  for (int round = 0; round < 2; ++round) {
    std::vector<AtomicFile> files;
    for (int i = 0; i < 100; ++i) files.emplace_back(folder / std::to_string(i));
    EXPECT_EQ(folder.entries(), 100u + (round == 0 ? 0 : 50));
    for (int i = 0; i < 50; ++i) files[static_cast<size_t>(i)].commit();
  }
  EXPECT_EQ(folder.entries(), 50u);
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
}  // namespace zoetrope
