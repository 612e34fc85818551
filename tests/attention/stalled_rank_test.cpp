// A rank that does not answer ends the run of all with a sentence, wherever in the attention it stops; the memory of a
// plan is given back while transfers into it are still posted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "attention_case.h"
#include "base/error.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string error_of_stall(const char* operation, int ulysses, int ring) {
  try {
    comm::run_ranks(ulysses * ring,
                    [&](comm::Communicator& inner) {
                      comm::StalledCommunicator comm(inner, operation, /*stalled=*/1);
                      const Case whole({1, 40, 4, 16, DType::kF32});
                      const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring},
                                              .softmax = Softmax::kFixedMax};
                      ContextAttention attention = plan(whole.problem, strategy, comm, 1);
                      Shard shard(whole, attention.tokens());
                      attention.run(shard.q, shard.k, shard.v, {}, shard.o);
                    },
                    {.timeout_seconds = 2});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(StalledRank, IsNamedWithTheOperation) {
  EXPECT_THAT(error_of_stall("ring hop", 1, 2), HasSubstr("rank 0 waited 2 s for rank 1 in 'ring hop'"));
  // The stalled rank goes on to the hop, its 20 keys and values of 4 heads, which meets the statistics of 4 heads on
  // the other side, 3 + 16 float32 each: seen at the send or at the receive, whichever is matched last.
  EXPECT_THAT(error_of_stall("ring statistics", 1, 2),
              AnyOf("rank 1 sends 10240 bytes in 'ring hop' where rank 0 expects 304 bytes in 'ring statistics'",
                    "rank 0 sends 304 bytes in 'ring statistics' where rank 1 expects 10240 bytes in 'ring hop'"));
  EXPECT_THAT(error_of_stall("ulysses output exchange", 2, 1),
              HasSubstr("rank 0 waited 2 s for rank 1 in 'ulysses output exchange'"));
  // The stalled rank goes on to the output exchange, where it waits as well: either may be first to give up.
  EXPECT_THAT(error_of_stall("ulysses exchange", 2, 1), HasSubstr("in 'ulysses "));
}

// Whichever rank notices first, by waiting or by a later message that does not fit.
TEST(StalledRank, EndsAllOfALargerGrid) {
  for (const char* operation : {"ulysses exchange", "ring statistics", "ring hop", "ulysses output exchange"})
    EXPECT_NE(error_of_stall(operation, 2, 3), "no error") << operation;
}

}  // namespace
}  // namespace zoetrope::attention::testing
