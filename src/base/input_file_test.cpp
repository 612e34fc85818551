#include "base/input_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

using testing::HasSubstr;

TEST(InputFile, ReadsRegularFilesAndThroughLinks) {
  const TestFolder folder;
  folder.write("f", "0123456789");
  std::filesystem::create_symlink("f", folder / "link");
  const InputFile file(folder / "link");
  char text[4] = {};
  file.read(3, text, 3);
  EXPECT_STREQ(text, "345");
  EXPECT_EQ(file.bytes(), 10u);
  EXPECT_EQ(read_file(folder / "f"), "0123456789");
  EXPECT_THAT(error_of([&] { file.read(8, text, 3); }), HasSubstr("ends before byte 11"));
  EXPECT_THAT(error_of([&] { read_file(folder / "f", 9); }), HasSubstr("10 bytes, more than the 9"));
}

// None of these may wait: for a writer, for input, for ever.
TEST(InputFile, RefusesWhatIsNoRegularFileAtOnce) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(error_of([&] { InputFile{folder / "pipe"}; }), HasSubstr("is a pipe, but a regular file is needed"));
  EXPECT_THAT(error_of([&] { InputFile{folder / "socket"}; }), HasSubstr("is not a regular file"));
  EXPECT_THAT(error_of([&] { InputFile{folder.path()}; }), HasSubstr("is a folder"));
  EXPECT_THAT(error_of([] { InputFile{"/dev/zero"}; }), HasSubstr("is a device"));
  EXPECT_THAT(error_of([&] { InputFile{folder / "none"}; }), HasSubstr("no such file"));
  ::close(socket);
}

TEST(IsFolder, SaysWhyItCannotTell) {
  const TestFolder folder;
  folder.write("file", "");
  std::filesystem::create_symlink(folder.path(), folder / "link");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(is_folder(folder.path()) && is_folder(folder / "link"));
  EXPECT_FALSE(is_folder(folder / "file") || is_folder(folder / "none") || is_folder(folder / "file" / "in it"));
  EXPECT_FALSE(is_folder(std::string(100'000, 'x')));
  EXPECT_THAT(error_of([&] { is_folder(folder / "loop"); }), HasSubstr("loop: cannot be reached: Too many levels"));
}

// A copy over the file that sets its times and its size to what they were is another version all the same.
TEST(InputFile, AReplacedFileHasAnotherStamp) {
  const TestFolder folder;
  const auto path = folder.write("f", "first");
  const FileStamp first = InputFile(path).stamp();
  EXPECT_EQ(InputFile(path).stamp(), first);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  const timespec times[] = {status.st_atim, status.st_mtim};
  FileStamp second = first;
  // A file system's clock may move in ticks; the loop ends with the next one.
  while (second.changed_ns == first.changed_ns) {
    folder.write("f", "later");
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    second = InputFile(path).stamp();
  }
  EXPECT_EQ(second.modified_ns, first.modified_ns);
  EXPECT_EQ(second.bytes, first.bytes);
  EXPECT_NE(second, first);
}

TEST(FileStamp, TimesOfWholeHundredthsOfASecondAreCoarse) {
  FileStamp stamp;
  for (const int64_t changed : {int64_t{0}, int64_t{1'700'000'000'000'000'000}, int64_t{1'700'000'000'010'000'000}}) {
    stamp.changed_ns = changed;
    EXPECT_TRUE(stamp.coarse()) << changed;
    stamp.changed_ns += 4'000'123;
    EXPECT_FALSE(stamp.coarse()) << changed;
  }
}

TEST(FileStamp, AWriteAfterTheWaitHasAnotherTime) {
  const TestFolder folder;
  const std::filesystem::path path = folder.write("a", "0");
  for (int i = 0; i < 20; ++i) {
    folder.write("a", "1");
    const std::optional<FileStamp> stamp = stamp_of(path);
    ASSERT_TRUE(stamp.has_value());
    wait_until_past(*stamp);
    folder.write("a", "2");
    EXPECT_GT(stamp_of(path)->changed_ns, stamp->changed_ns);
  }
  EXPECT_FALSE(stamp_of(folder / "none").has_value());
}

}  // namespace
}  // namespace zoetrope
