// What must not change a bit: how many ranks share the heads, how many threads a rank has, who packs. (How many ring
// blocks there are does change bits: it is another order of summation.)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_case.h"
#include "device/stream.h"

namespace zoetrope::attention::testing {
namespace {

// The whole o of a run over U × R ranks.
Tensor run_grid(const Case& whole, int ulysses, int ring, int threads) {
  const Problem& p = whole.problem;
  Tensor all(p.dtype, {p.batch, p.tokens, p.heads, p.head_dim});
  comm::run_ranks(ulysses * ring, [&](comm::Communicator& comm) {
    Stream stream(threads);
    ContextAttention attention = plan(p, {.ulysses = ulysses, .ring = ring}, comm, stream);
    const IndexRange own = attention.tokens();
    Shard shard(whole, own);
    attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
    copy(stream, all.view().slice(1, own.begin, own.end), shard.o);
  });
  return all;
}

TEST(SameBits, ForAnyUlyssesDegreeAndThreadCount) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const MaskKind mask : {MaskKind::kNone, MaskKind::kKeyLengths}) {
      Case whole({2, 301, 7, 64, dtype}, 5);
      if (mask == MaskKind::kKeyLengths) whole.set_key_lengths({250, 77});
      for (const int ring : {1, 2, 3}) {
        const Tensor expected = run_grid(whole, 1, ring, 1);
        for (const int ulysses : {1, 2, 3}) {
          for (const int threads : {1, 2, 3}) {
            EXPECT_TRUE(same_bits(run_grid(whole, ulysses, ring, threads), expected))
                << fmt::format("{} U{} R{} with {} threads", dtype_name(dtype), ulysses, ring, threads);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zoetrope::attention::testing
