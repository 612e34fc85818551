// Counted bytes against the program's sums: equal exactly, for every U × R up to seven ranks, uneven cases included.
#include <gtest/gtest.h>

#include "attention/plan.h"
#include "attention_case.h"
#include "comm/rank_test.h"
#include "device/stream.h"
#include "parallel/test_program.h"
#include "parallel/traffic.h"

namespace zoetrope::attention::testing {
namespace {

void expect_sums(comm::Communicator& comm, const Problem& problem, const Strategy& strategy) {
  const Case whole(problem);
  Stream stream(1);
  ContextAttention attention = plan(problem, strategy, comm, stream);
  Shard shard(whole, attention.tokens());
  parallel::Sizes sizes{problem.batch, problem.tokens, problem.heads, problem.head_dim,
                        static_cast<int64_t>(dtype_size(problem.dtype))};
  sizes.log_sum_exp = problem.log_sum_exp;
  sizes.kv_vector_bytes = parallel::kv_vector_bytes(strategy.kv_exchange, problem.head_dim);
  const Tensor logs =
      problem.log_sum_exp ? Tensor(DType::kF32, {problem.batch, attention.tokens().size(), problem.heads}) : Tensor();
  const parallel::Traffic sum = traffic(attention_program(sizes, attention.layout(), attention.softmax(), comm.rank()));
  attention.run(shard.q, shard.k, shard.v, {}, shard.o, logs);
  const Counters first = attention.counters();
  EXPECT_EQ(first.ulysses.bytes_sent, sum.exchange_sent + sum.output_sent);
  EXPECT_EQ(first.ulysses.bytes_received, sum.exchange_received + sum.output_received);
  EXPECT_EQ(first.ring.bytes_sent, sum.ring_sent + sum.statistics_sent);
  EXPECT_EQ(first.ring.bytes_received, sum.ring_received + sum.statistics_received);
  EXPECT_EQ(first.gather.bytes_sent, sum.gather_sent);
  EXPECT_EQ(first.gather.bytes_received, sum.gather_received);
  EXPECT_EQ(first.bytes_copied, sum.packed + sum.unpacked);
  // The stream counts every copy of tensor data, so nothing was copied without being counted.
  EXPECT_EQ(stream.copied_bytes(), sum.packed + sum.unpacked);

  // A model that writes the slots copies nothing on the way out; and counters add up over runs.
  write_slots(attention.input_slots(), shard);
  attention.run({}, shard.o, logs);
  EXPECT_EQ(attention.counters().bytes_copied, sum.packed + 2 * sum.unpacked);
  EXPECT_EQ(attention.counters().ring.bytes_sent, 2 * first.ring.bytes_sent);
  attention.reset_counters();
  EXPECT_EQ(attention.counters().ulysses.bytes_sent, 0);
}

void run_topology(comm::Communicator& comm, int ulysses, int ring) {
  for (const int64_t tokens : {1, comm.size(), 61, 64})
    for (const int64_t heads : {ulysses, 2 * ulysses - 1})
      for (const Direction direction : parallel::kDirections)
        for (const int chunks : {1, 2})
          for (const Softmax softmax : parallel::kSoftmaxes)
            for (const parallel::ContextLayout& layout : parallel::in_shards({ulysses, ring, direction, chunks}))
              for (const KVExchange exchange : parallel::kKVExchanges)
                expect_sums(
                    comm, {.batch = 2, .tokens = tokens, .heads = heads, .head_dim = 8, .log_sum_exp = chunks == 2},
                    {.layout = parallel::ContextRequest::exactly(layout), .softmax = softmax, .kv_exchange = exchange});
}

const bool kRegistered = [] {
  for (const int ranks : {2, 3, 4, 7})
    comm::register_rank_test("Counters", "gather", {ranks}, __FILE__, __LINE__, [=](comm::Communicator& comm) {
      for (const int64_t tokens : {1, ranks, 61})
        for (const Softmax softmax : parallel::kSoftmaxes)
          for (const KVExchange exchange : parallel::kKVExchanges)
            expect_sums(comm, {.batch = 2, .tokens = tokens, .heads = 3, .head_dim = 8, .log_sum_exp = tokens == 61},
                        {.layout = {.gather = ranks}, .softmax = softmax, .kv_exchange = exchange});
    });
  return register_layouts("Counters", {1, 2, 3, 4, 5, 6, 7}, run_topology);
}();

// Workspace is booked by plan(): the scratch of the stream does not grow after the first run either.
ZT_RANK_TEST(Counters, NothingIsBookedAfterTheFirstRun) {
  const Problem problem{2, 61, int64_t{comm.size()}, 16, DType::kF32};
  const Case whole(problem);
  Stream stream(1);
  ContextAttention attention =
      plan(problem, {.layout = {.ring = comm.size()}, .softmax = Softmax::kFixedMax}, comm, stream);
  Shard shard(whole, attention.tokens());
  attention.run(shard.q, shard.k, shard.v, {}, shard.o);
  const size_t workspace = attention.workspace_bytes(), scratch = stream.scratch().reserved();
  for (int repeat = 0; repeat < 3; ++repeat) attention.run(shard.q, shard.k, shard.v, {}, shard.o);
  EXPECT_EQ(attention.workspace_bytes(), workspace);
  EXPECT_EQ(stream.scratch().reserved(), scratch);
}

}  // namespace
}  // namespace zoetrope::attention::testing
