#include "trace/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "zoetrope/error.h"

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
