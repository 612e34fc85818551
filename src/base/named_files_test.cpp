#include "base/named_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/test_folder.h"

namespace zoetrope {
namespace {

using ::testing::HasSubstr;

const std::string kNone;

std::string refusal(const std::string& a, const std::string& b) {
  return error_of([&] { check_files_differ({{"json", a}, {"report", kNone}, {"trace", b}}); });
}

TEST(NamedFiles, EachNeedsOneOfItsOwn) {
  EXPECT_EQ(refusal("a.json", "b.json"), "no error");
  EXPECT_EQ(refusal("", ""), "no error");
  EXPECT_EQ(refusal("a.json", "a.json"), "trace=a.json is the same file as json=a.json; each needs a file of its own");
  EXPECT_THAT(refusal("a.json", "./b/../a.json"), HasSubstr("the same file"));
  EXPECT_THAT(refusal((std::filesystem::current_path() / "a.json").string(), "a.json"), HasSubstr("the same file"));
}

TEST(NamedFiles, LinksAreFollowed) {
  const TestFolder folder;
  const std::filesystem::path file = folder.write("a", "text"), link = folder / "b";
  std::filesystem::create_symlink(file, link);
  EXPECT_THAT(refusal(file.string(), link.string()), HasSubstr("the same file"));
  EXPECT_EQ(if_exists(link.string()), link.string());
  EXPECT_EQ(if_exists((folder / "c").string()), "");
}

}  // namespace
}  // namespace zoetrope
