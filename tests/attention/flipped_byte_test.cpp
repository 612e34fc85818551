// The comparisons of n_against_one_test.cpp must notice one wrong byte: for every U × R up to seven ranks, each piece
// that one rank receives is spoiled in turn, and each time the result has to leave its bound.
#include <gtest/gtest.h>

#include "attention_case.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

// How many pieces were spoiled, one run each, and noticed.
int spoil_each_piece(comm::Communicator& comm, const Case& whole, const Tensor& reference, const Strategy& strategy,
                     const char* operation) {
  const int victim = comm.size() - 1;
  for (int index = 0;; ++index) {
    comm::FaultyCommunicator spoiled(comm, comm.rank() == victim ? operation : "", index);
    ContextAttention attention = plan(whole.problem, strategy, spoiled, 1);
    const IndexRange own = attention.tokens();
    Shard shard(whole, own);
    attention.run(shard.q, shard.k, shard.v, {}, shard.o);
    const double error = distance(comm, shard.o, reference.view().slice(1, own.begin, own.end));
    if (comm.all_reduce_max(spoiled.flipped() ? 1 : 0) == 0) {
      EXPECT_LE(error, bound(whole.problem.dtype));
      return index;
    }
    EXPECT_GT(error, bound(whole.problem.dtype)) << operation << ", piece " << index;
  }
}

void run_topology(comm::Communicator& comm, int ulysses, int ring) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const Case whole({2, 29, 2 * int64_t{ulysses} - 1, 16, dtype}, 7);
    const Tensor reference = whole.reference();
    const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring}};
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ulysses exchange"), 2 * (ulysses - 1));
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ring hop"), ring - 1);
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ulysses output exchange"), ulysses - 1);
  }
}

const bool kRegistered = register_layouts("FlippedByte", {2, 3, 4, 5, 6, 7}, run_topology);

}  // namespace
}  // namespace zoetrope::attention::testing
