// A program for run_mpi_test.cpp to start under mpirun: each scenario ends a run in its own way. `driver SCENARIO`.
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/error.h"
#include "zoetrope/mpi.h"

#include "comm/finish_failed.h"
#include "comm/stall.h"

namespace {

using zoetrope::Error;
using zoetrope::comm::Communicator;
using zoetrope::comm::Segment;

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Rank 1 disappears in the way `vanish` says; the others wait for their left neighbour's block.
void ring_without(Communicator& comm, int missing, const std::function<void()>& vanish) {
  comm.set_step("step 3");
  comm.barrier();
  if (comm.rank() == missing) vanish();
  char out = 0;
  char in = 0;
  const Segment send{(comm.rank() + 1) % comm.size(), &out, 1};
  const Segment receive{(comm.rank() + comm.size() - 1) % comm.size(), &in, 1};
  for (int hop = 1; hop < comm.size(); ++hop) comm.exchange({&send, 1}, {&receive, 1}, "ring hop").wait();
}

void stop_this_process() {
  std::printf("stopped %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  raise(SIGSTOP);
}

// Of one job: the file says that a rank's thread does not go on any more.
std::string stuck_file() { return "/tmp/zoetrope_stuck_" + std::to_string(getppid()); }
char stuck_path[64];

// A rank's thread does not go on behind its body, before MPI_Finalize; the body of its neighbour ends after that.
void stop_thread_behind_body(Communicator& comm, int stopped) {
  comm.barrier();
  if (comm.rank() == stopped) {
    std::snprintf(stuck_path, sizeof stuck_path, "%s", stuck_file().c_str());
    std::signal(SIGUSR1, [](int) {
      close(open(stuck_path, O_CREAT | O_WRONLY, 0600));
      for (;;) pause();
    });
    std::thread([rank = pthread_self()] {
      sleep_for(0.5);  // then it waits for the others; where it has not come so far, the run ends in another way
      pthread_kill(rank, SIGUSR1);
    }).detach();
  }
  if (comm.rank() != 1 - stopped) return;
  while (access(stuck_file().c_str(), F_OK) != 0) sleep_for(0.05);
  unlink(stuck_file().c_str());
}

bool g_stops_in_finalise = false;  // this process

// Longer than the deadline, but never so long without a new step.
void begin_steps(Communicator& comm) {
  for (int step = 4; step < 24; ++step) {
    comm.set_step("step " + std::to_string(step));
    sleep_for(0.2);
  }
}

const std::map<std::string, std::function<void(Communicator&)>> kScenarios = {
    {"well", [](Communicator& comm) { comm.barrier(); }},
    // The one that ends last keeps the others waiting for longer than the deadline, which is no failure.
    {"late",
     [](Communicator& comm) {
       comm.barrier();
       if (comm.rank() == 0) sleep_for(3);
     }},
    {"all_fail", [](Communicator&) { throw Error("ulysses_shards=3 does not divide 4"); }},
    {"one_fails",
     [](Communicator& comm) {
       comm.barrier();
       if (comm.rank() == 1) throw Error("shard 2 is missing");
       while (true) comm.barrier();
     }},
    {"rank_0_fails",
     [](Communicator& comm) {
       if (comm.rank() == 0) throw Error("the output is not writable");
       comm.barrier();
     }},
    {"one_fails_at_the_end",
     [](Communicator& comm) {
       comm.barrier();
       if (comm.rank() == comm.size() - 1) {
         sleep_for(0.3);
         throw Error("too late");
       }
     }},
    {"all_fail_differently",
     [](Communicator& comm) { throw Error("rank " + std::to_string(comm.rank()) + " is unhappy"); }},
    {"no_std_exception",
     [](Communicator& comm) {
       if (comm.rank() == 1) throw 7;
       comm.barrier();
     }},
    // Buffers of a failed rank are freed while a peer still sends to them.
    {"fails_amid_transfers",
     [](Communicator& comm) {
       std::vector<char> out(16 << 20), in(16 << 20);
       const Segment send{(comm.rank() + 1) % comm.size(), out.data(), out.size()};
       const Segment receive{(comm.rank() + comm.size() - 1) % comm.size(), in.data(), in.size()};
       auto work = comm.exchange({&send, 1}, {&receive, 1}, "large");
       if (comm.rank() == 1) throw Error("given up");
       work.wait();
       comm.barrier();
     }},
    {"sizes_differ",
     [](Communicator& comm) {
       char data[16] = {};
       const Segment send{1, data, 5};
       const Segment receive{0, data, 7};
       if (comm.rank() == 0) comm.exchange({&send, 1}, {}, "pack").wait();
       if (comm.rank() == 1) comm.exchange({}, {&receive, 1}, "unpack").wait();
       comm.barrier();
     }},
    {"more_than_expected",
     [](Communicator& comm) {
       std::vector<char> data(1 << 20);
       const Segment send{1, data.data(), data.size()};
       const Segment receive{0, data.data(), 7};
       if (comm.rank() == 0) comm.exchange({&send, 1}, {}, "pack").wait();
       if (comm.rank() == 1) comm.exchange({}, {&receive, 1}, "unpack").wait();
       comm.barrier();
     }},
    {"process_stops", [](Communicator& comm) { ring_without(comm, 1, stop_this_process); }},
    {"process_0_stops", [](Communicator& comm) { ring_without(comm, 0, stop_this_process); }},
    {"process_stops_at_the_end",
     [](Communicator& comm) {
       comm.barrier();
       if (comm.rank() == 1) stop_this_process();
     }},
    {"process_is_killed", [](Communicator& comm) { ring_without(comm, 2, [] { raise(SIGKILL); }); }},
    {"rank_is_slow", [](Communicator& comm) { ring_without(comm, 1, [&] { begin_steps(comm); }); }},
    {"rank_is_slow_and_waited_for", [](Communicator& comm) { ring_without(comm, 1, [&] { begin_steps(comm); }); }},
    // Rank 0 is stopped in a wait for longer than the deadline, which does not count.
    {"waiting_process_pauses",
     [](Communicator& comm) {
       char byte = 0;
       const Segment piece{1 - comm.rank(), &byte, 1};
       comm.barrier();
       if (comm.rank() == 1) {
         sleep_for(5);
         comm.exchange({&piece, 1}, {}, "late").wait();
         return;
       }
       std::thread stopper([] {
         sleep_for(0.5);
         const std::string go_on = "(sleep 4; kill -CONT " + std::to_string(getpid()) + ") &";
         if (std::system(go_on.c_str()) == 0) kill(getpid(), SIGSTOP);
       });
       comm.exchange({}, {&piece, 1}, "late").wait();
       stopper.join();
     }},
    {"thread_stops_behind_its_body", [](Communicator& comm) { stop_thread_behind_body(comm, 1); }},
    {"thread_0_stops_behind_its_body", [](Communicator& comm) { stop_thread_behind_body(comm, 0); }},
    {"thread_stops_behind_its_body_and_one_fails",
     [](Communicator& comm) {
       stop_thread_behind_body(comm, 1);
       if (comm.rank() == 0) throw Error("the output is not writable");
     }},
    // Every rank but the stopped one is in MPI_Finalize then.
    {"process_stops_in_finalise", [](Communicator& comm) { g_stops_in_finalise = comm.rank() == 1; }},
    {"process_0_stops_in_finalise", [](Communicator& comm) { g_stops_in_finalise = comm.rank() == 0; }},
    {"thread_stalls", [](Communicator& comm) { ring_without(comm, 1, [] { sleep_for(1000); }); }},
    {"thread_stalls_and_is_watched",
     [](Communicator& comm) {
       const auto watched = comm.split(0, comm.rank());
       const std::jthread watch([&] {
         const zoetrope::comm::WatchingThread watching;
         std::vector<char> all(static_cast<size_t>(comm.size()));
         const char mine = 0;
         try {
           for (;; sleep_for(0.1)) watched->all_gather(&mine, all.data(), 1, "watch");
         } catch (const Error&) {
         }
       });
       ring_without(comm, 1, [] { sleep_for(1000); });
     }},
    {"leaves_without_mpi",
     [](Communicator& comm) {
       comm.barrier();
       if (comm.rank() == 1) std::_Exit(3);
       comm.barrier();
     }},
};

}  // namespace

// In front of MPI's own.
extern "C" int MPI_Finalize() {
  if (g_stops_in_finalise) stop_this_process();
  return PMPI_Finalize();
}

// Ranks that do not end together come to finish_mpi() when they like, here much later than any deadline.
int finish_apart() {
  const std::unique_ptr<Communicator> world = zoetrope::comm::mpi_world({.timeout_seconds = 1});
  if (world->rank() == 1) sleep_for(14);
  zoetrope::comm::finish_mpi();
  return 0;
}

// Rank 0 has failed outside of a run, in a program with an MPI of its own, in which the others wait for it.
int fail_in_a_lent_mpi() {
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const MPI_Comm world = MPI_COMM_WORLD;
  zoetrope::comm::wrap_mpi(&world)->barrier();
  if (rank == 0) zoetrope::comm::finish_failed_mpi();
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "finish_apart") return finish_apart();
  if (argc == 2 && std::string(argv[1]) == "fails_in_a_lent_mpi") return fail_in_a_lent_mpi();
  const auto scenario = kScenarios.find(argc == 2 ? argv[1] : "");
  if (scenario == kScenarios.end()) {
    std::fprintf(stderr, "no such scenario\n");
    return 2;
  }
  const bool extends =
      scenario->first == "rank_is_slow_and_waited_for" || scenario->first == "thread_stalls_and_is_watched";
  return zoetrope::comm::run_mpi(scenario->second, {.timeout_seconds = 2, .extends = extends});
}
