// What is recorded on every transport: transfers next to the waits, gathered from all ranks; and how clocks are
// compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "comm/gather_trace.h"
#include "comm/payload.h"
#include "comm/rank_test.h"

namespace zoetrope::comm {
namespace {

using std::chrono::nanoseconds;

// One for the ranks that are threads of this process; each MPI rank has its own.
trace::Trace& shared_trace(Communicator& comm) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<trace::Trace>> traces;
  const std::lock_guard lock(mutex);
  std::unique_ptr<trace::Trace>& trace = traces[comm.size()];
  if (trace == nullptr) trace = std::make_unique<trace::Trace>();
  return *trace;
}

void hop(Communicator& comm, size_t bytes) {
  const int from = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<char> out = make_payload({comm.rank(), 0, 0}, bytes), in(bytes);
  const Segment send{(comm.rank() + 1) % comm.size(), out.data(), out.size()};
  const Segment receive{from, in.data(), in.size()};
  comm.exchange({&send, 1}, {&receive, 1}, "ring hop").wait();
  EXPECT_TRUE(is_payload(in, {from, 0, 0}));
}

// A span as it is in the file, and the name of its row.
struct Span {
  int rank = 0;
  std::string name, lane;
};

std::string field(const std::string& line, const std::string& key) {
  const size_t begin = line.find("\"" + key + "\":");
  if (begin == std::string::npos) return "";
  const std::string rest = line.substr(begin + key.size() + 3);
  return rest.front() == '"' ? rest.substr(1, rest.find('"', 1) - 1) : rest.substr(0, rest.find_first_of(",}"));
}

std::vector<Span> spans_of(const trace::Trace& trace, int ranks) {
  const std::string path = testing::TempDir() + "gathered_" + std::to_string(ranks) + ".json";
  trace.write(path);
  std::map<std::pair<int, int>, std::string> lanes;
  std::vector<Span> spans;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"pid\"") == std::string::npos) continue;
    const std::pair row(std::stoi(field(line, "pid")), std::stoi(field(line, "tid")));
    if (field(line, "ph") == "X") spans.push_back({row.first, field(line, "name"), lanes[row]});
    else if (field(line, "name") == "thread_name") lanes[row] = field(line.substr(line.find("args")), "name");
  }
  return spans;
}

ZT_RANK_TEST(Recording, Rank0HoldsTheLanesOfAllRanks) {
  trace::Trace& trace = shared_trace(comm);
  const std::unique_ptr<Communicator> part = [&] {
    const RecordingScope scope(comm, &trace);
    return comm.split(0, comm.rank());
  }();
  trace.record("block", comm.rank(), trace::kComputeLane, trace::Clock::now(), trace::Clock::now());
  hop(*part, 3 << 20);
  comm.barrier();  // not recorded any more
  gather_trace(comm, trace);
  comm.barrier();
  if (comm.rank() != 0) return;
  const std::vector<Span> spans = spans_of(trace, comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto count = [&](const char* name, const std::string& lane) {
      return std::count_if(spans.begin(), spans.end(),
                           [&](const Span& s) { return s.rank == rank && s.name == name && s.lane == lane; });
    };
    EXPECT_EQ(count("block", trace::kComputeLane), 1) << rank;
    EXPECT_EQ(count("ring hop", trace::kTransferLane), 1) << rank;
    EXPECT_EQ(count("ring hop", trace::kWaitLane), 1) << rank;
    EXPECT_EQ(count("barrier", trace::kTransferLane), 0) << rank;
  }
}

// In a ring every rank sends to the next and receives from the one before, on two communicators of the same ranks.
ZT_RANK_TEST(Recording, ArrowsGoFromTheSenderToTheReceiver) {
  if (comm.size() == 1) return;
  static std::mutex mutex;
  static std::unique_ptr<trace::Trace> made;
  trace::Trace* trace = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (made == nullptr) made = std::make_unique<trace::Trace>();
    trace = made.get();
  }
  const std::unique_ptr<Communicator> one = comm.split(0, comm.rank()), two = comm.split(0, -comm.rank());
  one->set_trace(trace);
  two->set_trace(trace);
  for (int hops = 0; hops < 3; ++hops) hop(hops == 1 ? *two : *one, 1000);
  one->set_trace(nullptr);
  comm.barrier();
  gather_trace(comm, *trace);
  comm.barrier();
  if (comm.rank() == 0) {
    const std::string path = testing::TempDir() + "arrows_" + std::to_string(comm.size()) + ".json";
    trace->write(path);
    std::map<std::string, int> begun;
    std::map<std::pair<int, int>, int> arrows;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (field(line, "ph") == "s") begun[field(line, "id")] = std::stoi(field(line, "pid"));
      if (field(line, "ph") == "f") ++arrows[{begun.at(field(line, "id")), std::stoi(field(line, "pid"))}];
    }
    std::map<std::pair<int, int>, int> expected;
    for (int rank = 0; rank < comm.size(); ++rank) {
      const int next = (rank + 1) % comm.size();
      expected[{rank, next}] += 2;  // of `one`
      expected[{next, rank}] += 1;  // of `two`, whose ranks are in reverse
    }
    EXPECT_EQ(arrows, expected);
    made.reset();
  }
  comm.barrier();
}

// Two clocks that tell the same time: whatever the round trips take, the offset is within the stated error. And an
// hour ahead.
ZT_RANK_TEST(Recording, ClocksAreComparedToWithinHalfARoundTrip) {
  if (comm.size() == 1) return;
  for (const nanoseconds ahead : {nanoseconds(0), nanoseconds(std::chrono::hours(1))}) {
    const auto clock = [&] { return trace::Clock::now() + (comm.rank() == 0 ? nanoseconds(0) : ahead); };
    const int last = comm.size() - 1;
    if (comm.rank() != 0 && comm.rank() != last) continue;
    const ClockOffset found = clock_offset(comm, last, clock);
    if (comm.rank() != 0) continue;
    EXPECT_GT(found.uncertainty.count(), 0);
    EXPECT_LE(std::abs((found.offset - ahead).count()), found.uncertainty.count());
  }
}

}  // namespace
}  // namespace zoetrope::comm
