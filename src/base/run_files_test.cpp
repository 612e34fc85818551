#include "base/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

using testing::HasSubstr;

TEST(RunFiles, WhatARunReadsIsNotWrittenUnderAnyName) {
  const TestFolder folder;
  const auto input = folder.write("in", "precious");
  std::filesystem::create_symlink("in", folder / "symbolic");
  std::filesystem::create_hard_link(input, folder / "hard");
  {
    const RunFiles run;
    EXPECT_EQ(read_file(folder / "symbolic"), "precious");
    for (const char* name : {"in", "symbolic", "hard"}) {
      EXPECT_THAT(error_of([&] { AtomicFile{folder / name}; }), HasSubstr("this run reads it")) << name;
      EXPECT_THAT(error_of([&] { check_writable(folder / name); }), HasSubstr("this run reads it")) << name;
    }
    EXPECT_EQ(error_of([&] { check_writable(folder / "other"); }), "no error");
  }
  EXPECT_EQ(file_bytes(input), "precious");
  EXPECT_EQ(error_of([&] { check_writable(input); }), "no error");  // the next run may
}

// File systems give the inode of a file that is gone to the next one.
TEST(RunFiles, WhatIsGoneSparesNoNewFile) {
  const TestFolder folder;
  const RunFiles run;
  for (int i = 0; i < 100; ++i) {
    const auto input = folder.write(fmt::format("in{}", i), "read once");
    read_file(input);
    std::filesystem::remove(input);
    EXPECT_EQ(error_of([&] { check_writable(folder.write(fmt::format("out{}", i), "new")); }), "no error");
  }
}

// An opened model lives on, with what it reads; what a run of it read may be written afterwards.
TEST(RunFiles, ARunTakesItsInputsWithIt) {
  const TestFolder folder;
  const auto weights = folder.write("weights", "precious"), image = folder.write("image", "precious");
  const RunFiles model;
  read_file(weights);
  {
    const RunFiles run;
    read_file(image);
    note_input_folder(folder / ".");
    EXPECT_THAT(error_of([&] { check_writable(image); }), HasSubstr("this run reads it"));
  }
  EXPECT_EQ(error_of([&] { check_writable(image); }), "no error");
  EXPECT_THAT(error_of([&] { check_writable(weights); }), HasSubstr("this run reads it"));
}

// The writer was there first, so it finds out when it is about to replace the file.
TEST(RunFiles, WhatIsReadAfterTheWriterBeganIsNotReplaced) {
  const TestFolder folder;
  const auto path = folder.write("f", "precious");
  const RunFiles run;
  AtomicFile file(path);
  file.write("new", 3);
  EXPECT_EQ(read_file(path), "precious");
  EXPECT_THAT(error_of([&] { file.commit(); }), HasSubstr("this run reads it"));
  EXPECT_EQ(file_bytes(path), "precious");
}

TEST(RunFiles, NothingIsWrittenIntoAFolderThatIsAnInput) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "frames/deeper");
  std::filesystem::create_symlink("frames", folder / "link");
  const RunFiles run;
  note_input_folder(folder / "frames");
  for (const char* name : {"frames/new", "frames/deeper/new", "link/new"}) {
    EXPECT_THAT(error_of([&] { AtomicFile{folder / name}; }), HasSubstr("reads all files of the folder")) << name;
  }
  EXPECT_EQ(error_of([&] { AtomicFile{folder / "new"}; }), "no error");
}

TEST(RunFiles, ACacheMayBeReplacedByWhoReadIt) {
  const TestFolder folder;
  const auto path = folder.write("cache", "old");
  const RunFiles run;
  EXPECT_EQ(read_file(path, kMaxTextBytes, InputFile::Kind::kCache), "old");
  EXPECT_EQ(error_of([&] { AtomicFile(path).commit(); }), "no error");
}

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
