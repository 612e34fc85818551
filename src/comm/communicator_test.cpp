// The contract of Communicator, on every transport: bytes arrive where they belong, in order, in any sizes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "zoetrope/error.h"
#include "zoetrope/mpi.h"

#include "base/test_folder.h"
#include "comm/payload.h"
#include "comm/rank_test.h"

namespace zoetrope::comm {
namespace {

// Uneven, with zeros among them, and no multiple of a word.
size_t uneven_size(int sender, int receiver) {
  return (sender + 2 * receiver) % 3 == 0 ? 0 : static_cast<size_t>(1000 * sender + 37 * receiver + 5);
}

ZT_RANK_TEST(Exchange, AllToAllWithUnevenAndZeroCounts) {
  const int n = comm.size();
  const int me = comm.rank();
  std::vector<std::vector<char>> out, in;
  std::vector<Segment> sends, receives;
  int64_t sent = 0;
  int64_t received = 0;
  for (int peer = 0; peer < n; ++peer) {
    out.push_back(make_payload({me, peer, 0}, uneven_size(me, peer)));
    in.emplace_back(uneven_size(peer, me), char{-1});
    sends.push_back({peer, out.back().data(), out.back().size()});
    receives.push_back({peer, in.back().data(), in.back().size()});
    if (peer == me) continue;
    sent += static_cast<int64_t>(out.back().size());
    received += static_cast<int64_t>(in.back().size());
  }
  Work work = comm.exchange(sends, receives, "all to all");
  EXPECT_TRUE(work.pending());
  work.wait();
  EXPECT_FALSE(work.pending());
  work.wait();  // nothing
  for (int peer = 0; peer < n; ++peer) EXPECT_TRUE(is_payload(in[static_cast<size_t>(peer)], {peer, me, 0}));
  EXPECT_EQ(comm.counters().bytes_sent, sent);
  EXPECT_EQ(comm.counters().bytes_received, received);
  comm.reset_counters();
  EXPECT_EQ(comm.counters().bytes_sent, 0);
}

// Blocks go round while nobody waits for the hop before: two hops are in flight at once.
ZT_RANK_TEST(Exchange, RingPassesEveryBlockToEveryRank) {
  const int n = comm.size();
  const int me = comm.rank();
  constexpr size_t kBytes = 30'011;
  std::vector<std::vector<char>> blocks(static_cast<size_t>(n), std::vector<char>(kBytes));
  blocks[0] = make_payload({me, 0, 7}, kBytes);
  for (int hop = 1; hop < n; ++hop) {
    const auto index = static_cast<size_t>(hop);
    const Segment send{(me + 1) % n, blocks[index - 1].data(), kBytes};
    const Segment receive{(me + n - 1) % n, blocks[index].data(), kBytes};
    comm.exchange({&send, 1}, {&receive, 1}, "ring hop").wait();
    EXPECT_TRUE(is_payload(blocks[index], {(me - hop + n) % n, 0, 7}));
  }
}

// Messages of a pair match in the order they were posted, whatever order they are waited for.
ZT_RANK_TEST(Exchange, ManySmallMessagesKeepTheirOrder) {
  const int n = comm.size();
  const int me = comm.rank();
  const int to = (me + 1) % n;
  const int from = (me + n - 1) % n;
  constexpr int kMessages = 1000;
  std::vector<std::vector<char>> out, in;
  std::vector<Work> works;
  for (int message = 0; message < kMessages; ++message) {
    const auto size = static_cast<size_t>(8 + message % 50);
    out.push_back(make_payload({me, to, message}, size));
    in.emplace_back(size);
    const Segment send{to, out.back().data(), size};
    const Segment receive{from, in.back().data(), size};
    works.push_back(comm.exchange({&send, 1}, {&receive, 1}, "small"));
  }
  for (size_t i = works.size(); i-- > 0;) works[i].wait();
  for (int message = 0; message < kMessages; ++message)
    EXPECT_TRUE(is_payload(in[static_cast<size_t>(message)], {from, me, message}));
}

ZT_RANK_TEST(Exchange, ManyPiecesInOneExchange) {
  const int n = comm.size();
  const int me = comm.rank();
  constexpr int kPieces = 300;
  std::vector<std::vector<char>> out, in;
  std::vector<Segment> sends, receives;
  for (int piece = 0; piece < kPieces; ++piece)
    for (int peer = 0; peer < n; ++peer) {
      out.push_back(make_payload({me, peer, piece}, static_cast<size_t>(16 + piece)));
      in.emplace_back(static_cast<size_t>(16 + piece));
    }
  for (int i = 0; i < kPieces * n; ++i) {
    const auto index = static_cast<size_t>(i);
    sends.push_back({i % n, out[index].data(), out[index].size()});
    receives.push_back({i % n, in[index].data(), in[index].size()});
  }
  comm.exchange(sends, receives, "pieces").wait();
  for (int i = 0; i < kPieces * n; ++i) EXPECT_TRUE(is_payload(in[static_cast<size_t>(i)], {i % n, me, i / n}));
}

// Large enough for several chunks, rendezvous and helping: 64 MB in all.
ZT_RANK_TEST(Exchange, LargeMessages) {
  const int n = comm.size();
  const int me = comm.rank();
  const size_t bytes = (size_t{64} << 20) / static_cast<size_t>(n) + 3;
  const std::vector<char> out = make_payload({me, 0, 1}, bytes);
  std::vector<char> in(bytes);
  const Segment send{(me + 1) % n, const_cast<char*>(out.data()), bytes};
  const Segment receive{(me + n - 1) % n, in.data(), bytes};
  comm.exchange({&send, 1}, {&receive, 1}, "large").wait();
  EXPECT_TRUE(is_payload(in, {(me + n - 1) % n, 0, 1}));
}

// A message may be posted long before the other side thinks of it.
ZT_RANK_TEST(Exchange, EitherSideMayPostFirst) {
  const int n = comm.size();
  const int me = comm.rank();
  std::vector<char> out = make_payload({me, 0, 2}, 100'000);
  std::vector<char> in(out.size());
  const Segment send{(me + 1) % n, out.data(), out.size()};
  const Segment receive{(me + n - 1) % n, in.data(), in.size()};
  Work first, second;
  // Messages of one communicator match in order, so the barrier between the posts needs one of its own.
  const std::unique_ptr<Communicator> other = comm.split(0, me);
  if (me % 2 == 0) {
    first = comm.exchange({&send, 1}, {}, "send first");
    other->barrier();
    second = comm.exchange({}, {&receive, 1}, "receive later");
  } else {
    first = comm.exchange({}, {&receive, 1}, "receive first");
    other->barrier();
    second = comm.exchange({&send, 1}, {}, "send later");
  }
  second.wait();
  first.wait();
  EXPECT_TRUE(is_payload(in, {(me + n - 1) % n, 0, 2}));
}

// What is in the background lets others go first, but not for ever: here rank 0's other exchange waits for ranks that
// need its background message before they come to that exchange. Under MPI the message is held for 8 ns for each byte
// of the exchange that it lets go first.
ZT_RANK_TEST(Background, IsSentThoughAnotherExchangeWaitsForIt) {
  const int n = comm.size();
  const int me = comm.rank();
  const std::unique_ptr<Communicator> background = comm.split(0, me);
  background->set_background();
  std::vector<char> all(static_cast<size_t>(n) << 20), mine(size_t{1} << 20), weights = make_payload({0, 0, 3}, 50'000);
  const auto gather = [&] {
    std::vector<Segment> sends, receives;
    for (int rank = 0; rank < n; ++rank) {
      if (rank == me) continue;
      sends.push_back({rank, mine.data(), mine.size()});
      receives.push_back({rank, all.data() + static_cast<size_t>(rank) * mine.size(), mine.size()});
    }
    return comm.exchange(sends, receives, "gather");
  };
  for (int round = 0; round < 3; ++round) {
    if (me == 0) {
      const auto posted = std::chrono::steady_clock::now();
      Work others = gather();
      background->broadcast(0, weights.data(), weights.size());
      const std::chrono::duration<double> held = std::chrono::steady_clock::now() - posted;
      const double bytes = 2.0 * static_cast<double>(mine.size()) * (n - 1);
      EXPECT_GE(held.count(), launched_by_mpi() ? 8e-9 * bytes : 0);
      others.wait();
    } else {
      std::fill(weights.begin(), weights.end(), '\0');
      background->broadcast(0, weights.data(), weights.size());
      EXPECT_TRUE(is_payload(weights, {0, 0, 3}));
      gather().wait();
    }
  }
}

ZT_RANK_TEST(Split, GroupsByColorOrderedByKey) {
  const int n = comm.size();
  const int me = comm.rank();
  const int color = me % 2;
  const std::unique_ptr<Communicator> half = comm.split(color, -me);  // in reverse
  const int expected_size = (n + 1 - color) / 2;
  ASSERT_EQ(half->size(), expected_size);
  EXPECT_EQ(comm.ranks_in_this_process(), launched_by_mpi() ? 1 : n);
  EXPECT_EQ(half->ranks_in_this_process(), launched_by_mpi() ? 1 : expected_size);
  EXPECT_EQ(half->rank(), expected_size - 1 - me / 2);
  for (int rank = 0; rank < half->size(); ++rank)
    EXPECT_EQ(half->world_rank(rank), comm.world_rank(color + 2 * (expected_size - 1 - rank)));
  std::vector<int> all(static_cast<size_t>(half->size()));
  half->all_gather(&me, all.data(), sizeof me);
  for (int rank = 0; rank < half->size(); ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)], half->world_rank(rank));
  EXPECT_EQ(half->counters().bytes_received, static_cast<int64_t>(sizeof me) * (half->size() - 1));
}

// Messages of a communicator and of those split from it never match each other, in whatever order they are posted.
ZT_RANK_TEST(Split, MessagesStayInTheirCommunicator) {
  const int n = comm.size();
  const int me = comm.rank();
  const std::unique_ptr<Communicator> one = comm.split(0, me);
  const std::unique_ptr<Communicator> two = one->split(0, me);
  std::vector<Communicator*> comms = {&comm, one.get(), two.get()};
  std::vector<std::vector<char>> out, in(3, std::vector<char>(64));
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) out.push_back(make_payload({me, 0, i}, 64));
  for (const int i : {2, 0, 1}) {
    const Segment send{(me + 1) % n, out[static_cast<size_t>(i)].data(), 64};
    works.push_back(comms[static_cast<size_t>(i)]->exchange({&send, 1}, {}, "send"));
  }
  for (const int i : {0, 1, 2}) {
    const Segment receive{(me + n - 1) % n, in[static_cast<size_t>(i)].data(), 64};
    works.push_back(comms[static_cast<size_t>(i)]->exchange({}, {&receive, 1}, "receive"));
  }
  for (Work& work : works) work.wait();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_payload(in[static_cast<size_t>(i)], {(me + n - 1) % n, 0, i}));
}

// Threads of a rank split communicators of their own at once, and go on in another order on every rank.
ZT_RANK_TEST(Split, ThreadsMaySplitAtOnce) {
  const int n = comm.size();
  const int me = comm.rank();
  const std::unique_ptr<Communicator> parents[] = {comm.split(0, me), comm.split(0, me)};
  const auto split_and_gather = [&](int thread) {
    const std::unique_ptr<Communicator> made = parents[thread]->split(0, me);
    std::this_thread::sleep_for(std::chrono::milliseconds(thread == me % 2 ? 0 : 10));
    std::vector<int> all(static_cast<size_t>(n));
    const int mine = 100 * thread + me;
    made->all_gather(&mine, all.data(), sizeof mine);
    for (int rank = 0; rank < n; ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)], 100 * thread + rank);
  };
  for (int round = 0; round < 10; ++round) {
    {
      const std::jthread other([&] { split_and_gather(1); });
      split_and_gather(0);
    }
    comm.barrier();
  }
}

ZT_RANK_TEST(Collectives, GiveEveryRankTheSame) {
  const int n = comm.size();
  const int me = comm.rank();
  comm.barrier();
  EXPECT_EQ(comm.all_reduce_max(me == n / 2 ? 100.0 : -me), 100.0);
  EXPECT_EQ(comm.all_reduce_min(me == n / 2 ? -100.0 : me), -100.0);
  EXPECT_EQ(comm.all_reduce_sum(me + 1), n * (n + 1) / 2);
  int value = me == n - 1 ? 42 : 0;
  comm.broadcast(n - 1, &value, sizeof value);
  EXPECT_EQ(value, 42);

  std::vector<std::vector<char>> all;
  std::vector<Segment> receives;
  for (int rank = 0; rank < n; ++rank) {
    all.emplace_back(static_cast<size_t>(10 * rank));
    receives.push_back({rank, all.back().data(), all.back().size()});
  }
  std::vector<char> mine = make_payload({me, 0, 3}, static_cast<size_t>(10 * me));
  comm.all_gather_v({me, mine.data(), mine.size()}, receives);
  for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(is_payload(all[static_cast<size_t>(rank)], {rank, 0, 3}));

  for (int rank = 0; rank < n; ++rank)
    if (rank != me) std::fill(all[static_cast<size_t>(rank)].begin(), all[static_cast<size_t>(rank)].end(), '\0');
  const Counters before = comm.counters();
  comm.all_gather_in_place(receives);
  for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(is_payload(all[static_cast<size_t>(rank)], {rank, 0, 3}));
  EXPECT_EQ(comm.counters().bytes_sent - before.bytes_sent, 10 * me * (n - 1));
}

ZT_RANK_TEST(Collectives, RefuseAnotherNumberOfPiecesThanRanks) {
  std::vector<char> bytes(static_cast<size_t>(comm.size()));
  std::vector<Segment> parts;
  for (int rank = 1; rank < comm.size(); ++rank) parts.push_back({rank, &bytes[static_cast<size_t>(rank)], 1});
  const Segment mine{comm.rank(), bytes.data(), 1};
  const std::string one_less = fmt::format("has {} piece", comm.size() - 1);
  EXPECT_THAT(
      error_of([&] { comm.all_gather_v(mine, parts, "few"); }),
      ::testing::AllOf(::testing::StartsWith("'few' " + one_less), ::testing::HasSubstr("give one of each rank")));
  EXPECT_THAT(error_of([&] { comm.all_gather_in_place(parts); }), ::testing::StartsWith("'all_gather' " + one_less));
  comm.barrier();
}

// Large pieces that begin anywhere, several at once from the same peer: chunks and the copy past the caches.
ZT_RANK_TEST(Exchange, LargePiecesAtOddPlaces) {
  const int n = comm.size();
  const int me = comm.rank();
  const int to = (me + 1) % n, from = (me + n - 1) % n;
  const std::vector<size_t> sizes = {(size_t{1} << 20) - 1, size_t{1} << 20, (size_t{2} << 20) + 1,
                                     (size_t{5} << 20) + 77};
  std::vector<std::vector<char>> out, in;
  std::vector<Segment> sends, receives;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<char> payload = make_payload({me, to, static_cast<int>(i)}, sizes[i]);
    out.emplace_back(i).insert(out[i].end(), payload.begin(), payload.end());  // i bytes into its memory
    in.emplace_back(sizes[i] + 2 * i + 1, 'x');
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    sends.push_back({to, out[i].data() + i, sizes[i]});
    receives.push_back({from, in[i].data() + 2 * i + 1, sizes[i]});
  }
  comm.exchange(sends, receives, "large").wait();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto begin = in[i].begin() + static_cast<int64_t>(2 * i + 1);
    EXPECT_TRUE(is_payload({begin, in[i].end()}, {from, me, static_cast<int>(i)}));
    EXPECT_EQ(std::count(in[i].begin(), begin, 'x'), static_cast<int64_t>(2 * i + 1));
  }
}

// What is on its way when all ranks stop holds nobody up: not the senders of messages that nobody receives, which would
// be waited for one after another, and not what comes afterwards on other communicators.
ZT_RANK_TEST(Stop, EndsWaitsAndLeavesOtherCommunicatorsUsable) {
  const int n = comm.size();
  const int me = comm.rank();
  const int to = (me + 1) % n, from = (me + n - 1) % n;
  constexpr size_t kBytes = size_t{1} << 20;
  for (int round = 0; round < 2; ++round) {
    const std::unique_ptr<Communicator> root = comm.split(0, me);
    const std::unique_ptr<Communicator> early = root->split(0, me), late = early->split(0, -me);
    std::unique_ptr<Communicator> gone = root->split(0, me);
    std::vector<char> out(kBytes), in(kBytes);
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      const Segment send{to, out.data(), kBytes};
      works.push_back((i % 2 == 0 ? *root : *early).exchange({&send, 1}, {}, "send that nobody receives"));
    }
    const Segment send{to, out.data(), kBytes};
    works.push_back(gone->exchange({&send, 1}, {}, "send on what goes first"));
    gone.reset();
    const Segment receive{n - 1 - from, in.data(), 8};
    works.push_back(late->exchange({}, {&receive, 1}, "receive that nobody sends"));
    std::thread stopper([&] { root->stop(); });
    EXPECT_EQ(error_of([&] { works.back().wait(); }), "'receive that nobody sends' was stopped");
    stopper.join();
    EXPECT_EQ(error_of([&] {
                static_cast<void>(late->exchange({}, {&receive, 1}, "receive after the stop"));
              }),
              "'receive after the stop' was stopped");
    EXPECT_THROW(static_cast<void>(root->split(0, me)), Error);
    works.clear();
    comm.barrier();
  }
  const std::unique_ptr<Communicator> next = comm.split(0, me);
  const std::vector<char> out = make_payload({me, to, 1}, kBytes);
  std::vector<char> in(kBytes);
  const Segment send{to, const_cast<char*>(out.data()), kBytes}, receive{from, in.data(), kBytes};
  next->exchange({&send, 1}, {&receive, 1}, "exchange").wait();
  EXPECT_TRUE(is_payload(in, {from, me, 1}));
}

}  // namespace
}  // namespace zoetrope::comm
