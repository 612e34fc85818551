// A program with an MPI of its own, which lends its communicators: started by mpirun, exits with the number of what
// went wrong on any rank.
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/error.h"
#include "zoetrope/mpi.h"

#include "comm/payload.h"

namespace zoetrope::comm {
namespace {

int g_failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++g_failures;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

template <typename Call>
void expect_refusal_of(const Call& call, const std::string& part) {
  try {
    call();
    expect(false, "no error about " + part);
  } catch (const Error& error) {
    expect(std::string(error.what()).find(part) != std::string::npos, error.what());
  }
}

void expect_refusal(const void* comm, const std::string& part) {
  expect_refusal_of([&] { wrap_mpi(comm); }, part);
}

// Every rank sends every other a message that says where it comes from, 100 kB so that none leaves unasked.
void trade(Communicator& comm, int run) {
  const int n = comm.size(), me = comm.rank();
  std::vector<std::vector<char>> out, in;
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    out.push_back(make_payload({me, peer, run}, 100000));
    in.emplace_back(out.back().size());
  }
  for (int peer = 0; peer < n; ++peer) {
    sends.push_back({peer, out[static_cast<size_t>(peer)].data(), 100000});
    receives.push_back({peer, in[static_cast<size_t>(peer)].data(), 100000});
  }
  comm.exchange(sends, receives, "trade").wait();
  for (int peer = 0; peer < n; ++peer)
    expect(is_payload(in[static_cast<size_t>(peer)], {peer, me, run}), "payload of " + std::to_string(peer));
}

// Communicators made from MPI_COMM_WORLD and not freed: they carry its attributes.
class CommunicatorCount {
 public:
  CommunicatorCount() {
    MPI_Comm_create_keyval(copied, freed, &key_, nullptr);
    MPI_Comm_set_attr(MPI_COMM_WORLD, key_, this);
  }
  int alive() const { return alive_; }

 private:
  static int copied(MPI_Comm, int, void*, void* from, void* to, int* carries) {
    ++static_cast<CommunicatorCount*>(from)->alive_;
    *static_cast<void**>(to) = from;
    *carries = 1;
    return MPI_SUCCESS;
  }
  static int freed(MPI_Comm, int, void* value, void*) {
    --static_cast<CommunicatorCount*>(value)->alive_;
    return MPI_SUCCESS;
  }

  int key_ = MPI_KEYVAL_INVALID;
  std::atomic<int> alive_ = 0;  // duplicates are made by a thread of the library
};

// The first use of all: rank 0 has nothing to wrap. Whoever wrapped and who did not make one world afterwards.
void begin_with_ranks_that_wrap_nothing(int rank) {
  constexpr RankOptions kOptions{.timeout_seconds = 60};
  MPI_Comm others = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 0, rank, &others);
  if (rank == 0) {
    start_mpi();
  } else {
    trade(*wrap_mpi(&others, kOptions), 4);
    MPI_Comm_free(&others);
  }
  trade(*mpi_world(kOptions), 5);
}

// Numbered the other way round: ranks of the communicator are not those of the job.
void trade_over_own_communicators(int rank, int size) {
  MPI_Comm reversed = MPI_COMM_NULL, parity = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &parity);
  const auto all = wrap_mpi(&reversed), half = wrap_mpi(&parity);
  MPI_Comm_free(&reversed);
  expect(all->rank() == size - 1 - rank && all->size() == size, "rank of the reversed communicator");
  expect(all->world_rank(all->rank()) == rank, "rank in the job");
  expect(half->rank() == rank / 2, "rank among those of equal parity");
  trade(*all, 1);
  trade(*half, 2);
  const auto split = all->split(rank % 2, 0);
  trade(*split, 3);
  // The program's own messages go on during that.
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, parity);
  expect(sum >= rank, "sum of ranks");
  MPI_Comm_free(&parity);
}

// At once, and used in another order on every rank.
void wrap_on_two_threads(int rank, int size) {
  for (int round = 0; round < 10; ++round) {
    MPI_Comm lent[2] = {MPI_COMM_NULL, MPI_COMM_NULL};
    for (MPI_Comm& comm : lent) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    std::atomic<int> wrong = 0;
    const auto wrap_and_gather = [&](int thread) {
      const auto comm = wrap_mpi(&lent[thread]);
      std::this_thread::sleep_for(std::chrono::milliseconds(thread == rank % 2 ? 0 : 10));
      std::vector<int> all(static_cast<size_t>(size));
      const int mine = 100 * thread + rank;
      comm->all_gather(&mine, all.data(), sizeof mine);
      for (int peer = 0; peer < size; ++peer) wrong += all[static_cast<size_t>(peer)] != 100 * thread + peer ? 1 : 0;
    };
    {
      const std::jthread other([&] { wrap_and_gather(1); });
      wrap_and_gather(0);
    }
    expect(wrong == 0, std::to_string(wrong) + " values of communicators wrapped at once");
    MPI_Barrier(MPI_COMM_WORLD);
    for (MPI_Comm& comm : lent) MPI_Comm_free(&comm);
  }
}

void refuse_what_is_no_group_of_ranks(int rank, int size) {
  const MPI_Comm none = MPI_COMM_NULL;
  expect_refusal(&none, "MPI_COMM_NULL");
  if (size < 2) return;
  MPI_Comm side = MPI_COMM_NULL, both = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, rank, &side);
  MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, rank == 0 ? 1 : 0, 7, &both);
  expect_refusal(&both, "joins two groups");
  MPI_Comm_free(&both);
  MPI_Comm_free(&side);
}

}  // namespace
}  // namespace zoetrope::comm

int main(int argc, char** argv) {
  using namespace zoetrope::comm;
  const MPI_Comm world = MPI_COMM_WORLD;
  expect_refusal(nullptr, "no communicator was given");
  expect_refusal(&world, "MPI is not initialised");
  int provided = 0, rank = 0, size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const CommunicatorCount made;
  begin_with_ranks_that_wrap_nothing(rank);
  trade_over_own_communicators(rank, size);
  wrap_on_two_threads(rank, size);
  refuse_what_is_no_group_of_ranks(rank, size);
  expect(made.alive() > 0, "no communicator was made");
  std::unique_ptr<Communicator> kept = wrap_mpi(&world, {.timeout_seconds = 2});
  finish_mpi();
  expect(made.alive() == 0, std::to_string(made.alive()) + " communicators are left to the program");
  finish_mpi();
  expect_refusal(&world, "finish_mpi() has ended MPI");
  expect_refusal_of([] { mpi_world(); }, "finish_mpi() has ended MPI");
  expect_refusal_of([] { start_mpi(); }, "finish_mpi() has ended MPI");
  expect_refusal_of([&] { kept->all_reduce_sum(1); }, "'all_reduce_sum': run_mpi() or finish_mpi() has ended MPI");
  kept.reset();
  MPI_Finalize();
  return g_failures;
}
