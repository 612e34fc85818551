// A program with a race between ranks: rank 0 writes into what it has sent and not waited for. For the test
// planted_race_is_seen, which expects the thread sanitizer to report it and other builds to run through.
#include <chrono>
#include <cstdio>
#include <thread>

#include "zoetrope/communicator.h"

int main() {
  using namespace zoetrope::comm;
  run_ranks(2, [](Communicator& comm) {
    int out = 1;
    int in = 0;
    const Segment send{1, &out, sizeof out};
    const Segment receive{0, &in, sizeof in};
    if (comm.rank() == 0) {
      Work work = comm.exchange({&send, 1}, {}, "ring hop");
      // Long enough for rank 1 to copy meanwhile: nothing but wait() puts the copy before this write.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      out = 2;
      work.wait();
    } else {
      comm.exchange({}, {&receive, 1}, "ring hop").wait();
    }
  });
  std::puts("ran through");
}
