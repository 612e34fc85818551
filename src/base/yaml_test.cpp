#include "base/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReadYaml : public testing::Test {
 protected:
  std::string error(const std::string& text) {
    const auto path = folder_.write("f.yml", text);
    return error_of([&] { read_yaml(path); });
  }
  const TestFolder folder_;
};

TEST_F(ReadYaml, ReadsOneDocument) {
  EXPECT_EQ(read_yaml(folder_.write("f.yml", "---\na: 1\nb: [2, {c: 3}]\n"))["b"][1]["c"].as<int>(), 3);
  EXPECT_TRUE(read_yaml(folder_.write("f.yml", "")).IsNull());
  EXPECT_EQ(error("a: &x {b: 1}\nc: *x\n"), "no error");
}

TEST_F(ReadYaml, RefusesAnotherDocument) {
  EXPECT_THAT(error("a: 1\n---\nb: 2\n"),
              AllOf(HasSubstr("f.yml"), HasSubstr("2 documents or more"), HasSubstr("line 2")));
}

TEST_F(ReadYaml, RefusesAKeyGivenTwice) {
  EXPECT_THAT(error("a: 1\nb: 2\na: 3\n"), AllOf(HasSubstr("line 3"), HasSubstr("a is given again, after line 1")));
  EXPECT_THAT(error("a:\n  - c: 1\n    c: 1\n"), HasSubstr("c is given again"));
}

TEST_F(ReadYaml, RefusesWhatHasNoEnd) {
  EXPECT_THAT(error("a: &x\n  b: *x\n"), HasSubstr("line"));
  std::string bombs = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 10; ++i) {
    bombs +=
        fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  EXPECT_THAT(error(bombs), HasSubstr("nested too deeply"));
  // Found by fuzzing: a comma that opens nothing.
  EXPECT_THAT(error("# a comment\n, columns: 4}\nsigmas: {8: 0.5}\n"), HasSubstr("f.yml line 2: not YAML"));
  EXPECT_THAT(error("a: 1\n---\n, b\n"), HasSubstr("the second from line 2"));
  EXPECT_THAT(error(std::string(100'000, '[')), HasSubstr("line"));
  EXPECT_THAT(error(std::string(100'000, '{')), HasSubstr("line"));
}

TEST_F(ReadYaml, RefusesWhatIsNoTextFile) {
  EXPECT_THAT(error_of([&] { read_yaml(folder_.path()); }), HasSubstr("is a folder, but a regular file is needed"));
  EXPECT_THAT(error_of([&] { read_yaml(folder_ / "none"); }), HasSubstr("no such file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { read_yaml(folder_ / "pipe"); }), HasSubstr("is a pipe"));
  EXPECT_THAT(error("a: [1\n"), HasSubstr("not YAML"));
  // yaml-cpp takes these for whole where a line feed is the last byte.
  for (const char* text : {"a: \"b", "a: \"b\n", "a: 'b\nc: 1\n", "a: \"b\nc: 1\n\n  \n"})
    EXPECT_THAT(error(text), HasSubstr("f.yml: not YAML: a quote is opened and not closed")) << text;
  EXPECT_EQ(error("a: |\n  \"b\n\n"), "no error");
}

// Found by fuzzing: the first of these kept yaml-cpp busy for ever.
TEST_F(ReadYaml, RefusesWhatIsNotUtf8) {
  using namespace std::string_literals;
  EXPECT_THAT(error(",\0\0\1\0\0\0\0013ion: \x82\n"s),
              AllOf(HasSubstr("f.yml"), HasSubstr("0x82"), HasSubstr("UTF-8")));
  EXPECT_THAT(error("a: 1\n,\0\0\0b"s), AllOf(HasSubstr("line 2"), HasSubstr("byte 0x00 is a control character")));
  EXPECT_THAT(error("\xff\xfe"
                    "a\0:\0"s),
              HasSubstr("UTF-8"));
  EXPECT_EQ(error("\xef\xbb\xbf"
                  "a: \xc3\xa9\t# caf\xc3\xa9\r\n"),
            "no error");
}

}  // namespace
}  // namespace zoetrope
