// What the planner says that an attention plan books, against what it books: on every rank, for every U × R up to six
// ranks, uneven cases included.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "device/stream.h"
#include "planner/memory_model.h"

namespace zoetrope::attention {
namespace {

void compare(comm::Communicator& comm, const Problem& problem, const Strategy& strategy) {
  Stream stream(1);
  const ContextAttention attention = plan(problem, strategy, comm, stream);
  const parallel::ContextLayout& layout = attention.layout();
  const parallel::Sizes sizes{problem.batch, problem.tokens, problem.heads, problem.head_dim,
                              static_cast<int64_t>(dtype_size(problem.dtype))};
  const auto planned = planner::attention_workspace(sizes, layout, attention.softmax(), comm.rank()).count();
  const auto booked = static_cast<int64_t>(attention.workspace_bytes());
  // A region without bytes is booked with one, so that it has an address: at most four a chunk.
  EXPECT_GE(booked, planned);
  EXPECT_LE(booked, planned + 4 * layout.head_chunks)
      << fmt::format("rank {} of U{} R{}, {} tokens, {} heads, {} chunks", comm.rank(), layout.ulysses, layout.ring,
                     problem.tokens, problem.heads, layout.head_chunks);
}

TEST(AttentionBooking, IsWhatThePlannerSays) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    comm::run_ranks(ranks, [&](comm::Communicator& comm) {
      for (const int64_t tokens : {1, ranks, 61})
        for (const Softmax softmax : parallel::kSoftmaxes)
          compare(comm, {.batch = 2, .tokens = tokens, .heads = 3, .head_dim = 24},
                  {.layout = {.gather = ranks}, .softmax = softmax});
    });
    for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
      if (ranks % ulysses != 0) continue;
      comm::run_ranks(ranks, [&](comm::Communicator& comm) {
        for (const int64_t tokens : {1, ranks, 61})
          for (const int64_t heads : {ulysses, 2 * ulysses + 1})
            for (const Direction direction : parallel::kDirections)
              for (const int chunks : {1, 3})
                for (const Softmax softmax : parallel::kSoftmaxes)
                  for (const DType dtype : {DType::kF32, DType::kBF16})
                    compare(comm, {.batch = 2, .tokens = tokens, .heads = heads, .head_dim = 24, .dtype = dtype},
                            {.layout = {ulysses, ranks / ulysses, direction, chunks}, .softmax = softmax});
      });
    }
  }
}

}  // namespace
}  // namespace zoetrope::attention
