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
  EXPECT_NE(text.str().find(R"("ph":"X","name":"hop \"2\"","pid":3,"tid":0,)"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(R"("name":"process_name","pid":3,"tid":0,"args":{"name":"rank 3"})"), std::string::npos);
  EXPECT_NE(text.str().find(R"("name":"thread_name","pid":3,"tid":0,"args":{"name":"comm"})"), std::string::npos);
}

// The text of a trace, and of it the row ("tid") on which a span of this name is drawn.
std::string written(const Trace& trace) {
  const TestFolder folder;
  trace.write(folder / "t.json");
  return file_bytes(folder / "t.json");
}

int row_of(const std::string& text, const std::string& name) {
  const std::string key = "\"ph\":\"X\",\"name\":\"" + name + "\"";
  const size_t span = text.find(key);
  if (span == std::string::npos) return -1;
  const std::string tid = "\"tid\":";
  return std::stoi(text.substr(text.find(tid, span) + tid.size()));
}

Clock::time_point at(int milliseconds) { return Clock::time_point(std::chrono::milliseconds(milliseconds)); }

TEST(Trace, ComputeIsOnTopAndEachRankHasRowsOfItsOwn) {
  Trace trace;
  trace.record("wait", 0, kWaitLane, at(1), at(2));
  trace.record("copy", 0, kCopyLane, at(1), at(2));
  trace.record("block", 0, kComputeLane, at(0), at(1));
  trace.record("other", 1, kWaitLane, at(0), at(1));
  const std::string text = written(trace);
  EXPECT_EQ(row_of(text, "block"), 0);
  EXPECT_EQ(row_of(text, "copy"), 1);
  EXPECT_EQ(row_of(text, "wait"), 2);
  EXPECT_EQ(row_of(text, "other"), 0);
  EXPECT_NE(text.find(R"("name":"block","pid":0,"tid":0,"ts":0.000,"dur":1000.000})"), std::string::npos) << text;
}

// Calls within calls share a row; what overlaps without lying inside gets one of its own, and so does every transfer.
TEST(Trace, SpansThatCrossAreDrawnBelowEachOther) {
  Trace trace;
  trace.record("outer", 0, kComputeLane, at(0), at(10));
  trace.record("inner", 0, kComputeLane, at(0), at(4));
  trace.record("next", 0, kComputeLane, at(4), at(10));
  trace.record("crosses", 0, kComputeLane, at(8), at(12));
  trace.record("after", 0, kComputeLane, at(10), at(11));
  trace.record_transfer("hop 1", 0, at(0), at(9), 1000);
  trace.record_transfer("hop 2", 0, at(1), at(3), 2000);
  trace.record_transfer("hop 3", 0, at(3), at(12), 3000);
  const std::string text = written(trace);
  for (const char* name : {"outer", "inner", "next", "after"}) EXPECT_EQ(row_of(text, name), 0) << name;
  EXPECT_EQ(row_of(text, "crosses"), 1);
  EXPECT_EQ(row_of(text, "hop 1"), 2);
  EXPECT_EQ(row_of(text, "hop 2"), 3);
  EXPECT_EQ(row_of(text, "hop 3"), 3);
  EXPECT_NE(text.find(R"("name":"thread_name","pid":0,"tid":3,"args":{"name":"comm: transfer 2"})"), std::string::npos);
  EXPECT_NE(text.find(R"("args":{"bytes":2000})"), std::string::npos);
}

TEST(Trace, ShowsOperationsAndTheirRate) {
  Trace trace, other;
  trace.record("product", 0, kComputeLane, at(0), at(2), 5e9);
  trace.record("norm", 0, kComputeLane, at(2), at(3));
  other.record("theirs", 1, kComputeLane, at(0), at(4), 1e9);
  trace.add_packed(other.pack(), {});
  const std::string text = written(trace);
  EXPECT_NE(text.find(R"("dur":2000.000,"args":{"gflop":5,"gflop_per_s":2500}})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("name":"norm","pid":0,"tid":0,"ts":2000.000,"dur":1000.000})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("dur":4000.000,"args":{"gflop":1,"gflop_per_s":250}})"), std::string::npos) << text;
}

// What another process recorded, on a clock that is 5 ms behind.
TEST(Trace, TakesInTheSpansOfAnotherProcess) {
  Trace trace, other;
  trace.record("mine", 0, kComputeLane, at(5), at(6));
  other.record("theirs", 1, kComputeLane, at(1), at(3));
  other.record_transfer("hop", 1, at(1), at(2), 77);
  trace.add_packed(other.pack(), std::chrono::milliseconds(5));
  trace.set_label(1, "aligned");
  EXPECT_EQ(trace.size(), 3u);
  const std::string text = written(trace);
  EXPECT_NE(text.find(R"("name":"mine","pid":0,"tid":0,"ts":0.000,"dur":1000.000})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("name":"theirs","pid":1,"tid":0,"ts":1000.000,"dur":2000.000})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("name":"hop","pid":1,"tid":1,"ts":1000.000,"dur":1000.000,"args":{"bytes":77}})"),
            std::string::npos);
  EXPECT_NE(text.find(R"("name":"process_labels","pid":1,"tid":0,"args":{"labels":"aligned"})"), std::string::npos);
  EXPECT_NE(text.find(R"("otherData":{"ts_zero_ns":"5000000","version":"zoetrope )"), std::string::npos) << text;
  EXPECT_EQ(Trace().pack().size(), 0u);
}

TEST(Trace, ArrowsGoFromSendToReceiveOverProcesses) {
  const auto at = [](int64_t us) { return Clock::time_point(std::chrono::microseconds(us)); };
  Trace mine, other;
  // Both ranks send and receive in each exchange; two of them, and one message whose receiver recorded nothing.
  mine.record_transfer("hop", 0, at(1000), at(1500), 8, {{0, 1, 7}, {1, 0, 7}});
  mine.record_transfer("hop", 0, at(2000), at(2500), 8, {{0, 1, 8}, {0, 2, 1}});
  other.record_transfer("hop", 1, at(1100), at(1600), 8, {{1, 0, 7}, {0, 1, 7}});
  other.record_transfer("hop", 1, at(2100), at(2700), 4, {{0, 1, 8}});
  mine.add_packed(other.pack(), {});
  mine.set_metadata("command", "zoetrope \"x\"");
  const TestFolder folder;
  mine.write(folder / "t.json");
  const std::string text = file_bytes(folder / "t.json");
  const auto arrow = [&](const std::string& from, const std::string& to) {
    const size_t begin = text.find(R"("ph":"s")"), count = text.find(from, begin);
    const size_t id = text.rfind(R"("id":)", count);
    const std::string number = text.substr(id, text.find(',', id) - id + 1);
    return count != std::string::npos && text.find(number + to) != std::string::npos;
  };
  EXPECT_TRUE(arrow(R"("pid":0,"tid":0,"ts":0.000})", R"("pid":1,"tid":0,"ts":599.999,"bp":"e"})")) << text;
  EXPECT_TRUE(arrow(R"("pid":1,"tid":0,"ts":100.000})", R"("pid":0,"tid":0,"ts":499.999,"bp":"e"})")) << text;
  EXPECT_TRUE(arrow(R"("pid":0,"tid":0,"ts":1000.000})", R"("pid":1,"tid":0,"ts":1699.999,"bp":"e"})")) << text;
  EXPECT_EQ(text.find(R"("id":3)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("otherData":{"command":"zoetrope \"x\"","ts_zero_ns":)"), std::string::npos) << text;
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
  for (size_t position = text.find("\"ph\":\"X\""); position != std::string::npos;
       position = text.find("\"ph\":\"X\"", position + 1))
    ++found;
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
