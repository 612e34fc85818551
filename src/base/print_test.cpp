#include "base/print.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/test_folder.h"

namespace zoetrope {
namespace {

TEST(Printable, KeepsTextAndEscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("ein Kätzchen, 猫, 🐈 and \\x1b"), "ein Kätzchen, 猫, 🐈 and \\x1b");
  EXPECT_EQ(printable("a\x1b[2Jb\a\r"), "a\\x1b[2Jb\\x07\\x0d");
  EXPECT_EQ(printable("one\ntwo\tthree"), "one\\ntwo\\tthree");
  EXPECT_EQ(printable("\x7f"), "\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\x9b");        // U+009B, which some terminals take for ESC [
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\u202e");  // right to left from here on
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
}

TEST(Printable, EscapesEachByteThatIsNotUtf8) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // a long way to write '/'
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a surrogate pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last code point
  EXPECT_EQ(printable("\xe7\x8c"), "\\xe7\\x8c");                    // cut in the middle
  EXPECT_EQ(printable("\x9bm"), "\\x9bm");
}

// A process of its own, whose standard output is a full device.
TEST(PrintDeathTest, WhatStandardOutputDoesNotTakeIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto scenario = [] {
    const int full = ::open("/dev/full", O_WRONLY);
    ::dup2(full, STDOUT_FILENO);
    print("lost {}\n", 1);
    const std::string error = error_of([] { finish_output(); });
    std::_Exit(error.find("No space left") != std::string::npos ? 0 : 1);
  };
  EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "");
}

TEST(PrintDeathTest, MissingDescriptorsAreTakenAndStillRefuse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto scenario = [] {
    const TestFolder folder;
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
    take_standard_descriptors();
    const int file = ::open((folder / "f").c_str(), O_CREAT | O_WRONLY, 0600);
    print_error("nobody sees this\n");
    print("lost\n");
    const bool reported = error_of([] { finish_output(); }) != "no error";
    const bool good = file > STDERR_FILENO && reported && file_bytes(folder / "f").empty();
    std::filesystem::remove_all(folder.path());
    std::_Exit(good ? 0 : 1);
  };
  EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace zoetrope
