// Keys of their own, whole on every rank: the queries are attended where they are, and nothing is sent, whatever the
// strategy says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_case.h"
#include "comm/rank_test.h"

namespace zoetrope::attention::testing {
namespace {

void expect_no_traffic(const Counters& counters) {
  EXPECT_EQ(counters.ulysses.bytes_sent + counters.ulysses.bytes_received, 0);
  EXPECT_EQ(counters.ring.bytes_sent + counters.ring.bytes_received, 0);
}

void expect_rows_of_one_rank(comm::Communicator& comm, const Case& whole, const Strategy& strategy) {
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  const IndexRange own = attention.tokens();
  Shard shard(whole, own);
  attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
  expect_no_traffic(attention.counters());
  EXPECT_EQ(attention.counters().bytes_copied, 0);
  const Tensor reference = whole.reference();
  EXPECT_LE(distance(comm, shard.o, reference.view().slice(1, own.begin, own.end)), bound(whole.problem.dtype));

  Shard again(whole, own);
  write_slots(attention.input_slots(), again);
  attention.run(whole.mask(), again.o);
  EXPECT_TRUE(same_bits(again.o, shard.o));
  expect_no_traffic(attention.counters());
}

// Keys fewer and more than the tokens, as many, one; fewer tokens than ranks; more U than a strategy needs.
ZT_RANK_TEST(CrossAttention, ComputesWhatOneRankDoes) {
  uint64_t seed = 1;
  for (const int64_t tokens : {61, 3}) {
    for (const int64_t keys : {1, 61, 130}) {
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kKeyLengths, MaskKind::kKeyMask}) {
        for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
          const DType dtype = seed % 2 == 0 ? DType::kF32 : DType::kBF16;
          SCOPED_TRACE(fmt::format("S{} keys {} mask {} softmax {}", tokens, keys, static_cast<int>(mask),
                                   static_cast<int>(softmax)));
          Problem problem{2, tokens, comm.size() + 1, 16, dtype};
          problem.key_tokens = keys;
          Case whole(problem, seed++);
          if (mask == MaskKind::kKeyLengths) whole.set_key_lengths({(keys + 1) / 2, 0});
          if (mask == MaskKind::kKeyMask) whole.set_key_mask(seed);
          expect_rows_of_one_rank(comm, whole,
                                  {.layout = {.head_chunks = static_cast<int>(seed % 3) + 1}, .softmax = softmax});
          if (mask == MaskKind::kNone)
            expect_rows_of_one_rank(comm, whole, {.layout = {.ring = comm.size(), .direction = Direction::kOpen}});
        }
      }
    }
  }
}

// Tile sizes of all kinds, rounded to what the kernel can do, compute the same.
ZT_RANK_TEST(TileSizes, OfAnyKindComputeTheSame) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case whole({1, 149, comm.size(), 24, dtype}, 3);
    const Tensor reference = whole.reference();
    for (const int64_t block_q : {0, 1, 17, 64, 4096}) {
      for (const int64_t block_kv : {0, 65, 8192}) {
        for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
          ContextAttention attention =
              plan(whole.problem, {.softmax = softmax, .block_q = block_q, .block_kv = block_kv}, comm, 1);
          const IndexRange own = attention.tokens();
          Shard shard(whole, own);
          attention.run(shard.q, shard.k, shard.v, {}, shard.o);
          EXPECT_LE(distance(comm, shard.o, reference.view().slice(1, own.begin, own.end)), bound(dtype))
              << fmt::format("block_q {} block_kv {}", block_q, block_kv);
        }
      }
    }
  }
}

}  // namespace
}  // namespace zoetrope::attention::testing
