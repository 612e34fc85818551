#include "trace/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "zoetrope/error.h"

#include "base/disk_limit.h"
#include "base/test_folder.h"
#include "trace/timing.h"

namespace zoetrope::trace {
namespace {

TEST(Trace, WritesEverySpanAsJson) {
  Trace trace;
  { const Span span({&trace, 3, "comm"}, "hop \"2\""); }
  const std::filesystem::path path = testing::TempDir() + "trace.json";
  trace.write(path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find(R"("name":"hop \"2\"","pid":3,"tid":"comm")"), std::string::npos) << text.str();
}

TEST(Trace, WithoutATraceNothingIsRecorded) {
  const Span span(Lane{}, "nothing");
  SUCCEED();
}

TEST(Trace, RefusesAFolderThatIsNotThere) { EXPECT_THROW(Trace().write("/nowhere/at/all.json"), Error); }

TEST(Trace, RefusesTheNameOfAFolderAndAFullDiskAndLeavesNothing) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "made");
  EXPECT_NE(error_of([&] { Trace().write(folder / "made"); }).find("made: exists and is a folder"), std::string::npos);
  Trace trace;
  { const Span span({&trace, 0, "compute"}, "step"); }
  {
    const DiskLimit limit(20);
    EXPECT_NE(error_of([&] { trace.write(folder / "t.json"); }).find("t.json: cannot be written"), std::string::npos);
  }
  EXPECT_EQ(folder.entries(), 1u);
}

// What is written in several pieces is whole.
TEST(Trace, WritesManySpans) {
  Trace trace;
  for (int i = 0; i < 20000; ++i) trace.record("step", 0, "compute", Clock::now(), Clock::now());
  const TestFolder folder;
  trace.write(folder / "t.json");
  const std::string text = file_bytes(folder / "t.json");
  size_t found = 0;
  for (size_t at = text.find("\"ph\""); at != std::string::npos; at = text.find("\"ph\"", at + 1)) ++found;
  EXPECT_EQ(found, 20000u);
  EXPECT_GT(text.size(), size_t{1} << 20);
}

TEST(Timing, NestsChildrenUnderTheirParentWhicheverEndsFirst) {
  Timing timing;
  timing.declare("Load");
  timing.add("Inference/Denoise", 0);
  timing.add("Load", 1);
  timing.add("Inference/Denoise", 2);
  timing.add("Inference/Denoise", 2);
  timing.add("Inference", 5);
  EXPECT_EQ(timing.seconds("Inference/Denoise"), 4);
  const std::string text = timing.to_string();
  EXPECT_LT(text.find("Load"), text.find("Inference"));
  EXPECT_LT(text.find("Inference"), text.find("  Denoise"));
  EXPECT_NE(text.find("3 x 1.333 s"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::trace
