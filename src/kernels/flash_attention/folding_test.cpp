// The running state: blocks in any order and partition against one block, reuse, and what must not change a bit.
#include <cstring>

#include "kernels/flash_attention/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers

class FlashFolding : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashFolding, ::testing::ValuesIn(softmax_variants()), variant_name);

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.data<void>(), b.data<void>(), a.view().bytes()) == 0;
}

TEST_P(FlashFolding, AnyOrderAndPartitionOfBlocks) {
  const std::vector<std::vector<IndexRange>> partitions{
      {{0, 401}},
      {{200, 401}, {0, 200}},
      {{0, 1}, {1, 2}, {2, 401}},
      {{400, 401}, {0, 400}},
      {{300, 401}, {100, 200}, {0, 100}, {200, 300}},
      {{0, 57}, {57, 57}, {57, 114}, {114, 171}, {171, 229}, {229, 286}, {286, 343}, {343, 401}},
  };
  Case c(GetParam(), 2, 70, 401, 3, 40);
  for (const auto& blocks : partitions) {
    c.fold(blocks);
    EXPECT_TRUE(matches_reference(c)) << blocks.size();
  }
}

// Two foldings of float32 differ by less than ranks may: 1e-5 relative L2.
TEST_P(FlashFolding, FoldingsAgreeWithEachOther) {
  Case one(GetParam(), 1, 64, 1000, 2, 64), many(GetParam(), 1, 64, 1000, 2, 64);
  one.attend();
  many.fold({{875, 1000}, {0, 125}, {125, 250}, {250, 375}, {375, 500}, {500, 625}, {625, 750}, {750, 875}});
  const Deviation d = deviation(many.o, one.o);
  EXPECT_LE(d.relative_l2, GetParam().dtype == DType::kF32 ? 1e-5 : 0x1p-8);
}

TEST_P(FlashFolding, AttendIsOneBlockOfAState) {
  Case c(GetParam(), 2, 70, 300, 3, 40), state(GetParam(), 2, 70, 300, 3, 40);
  c.attend();
  state.fold({{0, 300}});
  EXPECT_TRUE(same_bits(c.o, state.o));
}

TEST_P(FlashFolding, TeamsAndNeighboursDoNotChangeABit) {
  Case one(GetParam(), 2, 300, 300, 3, 40), other(GetParam(), 2, 300, 300, 3, 40);
  one.attend(1);
  for (const int threads : {2, 3, 7}) {
    other.attend(threads);
    EXPECT_TRUE(same_bits(one.o, other.o)) << threads;
  }
  // The same rows as a problem of their own: a head alone, queries alone.
  Case part(GetParam(), 1, 41, 300, 1, 40);
  Stream stream(1);
  KeyBlock block;
  block.k = one.k.view().slice(0, 1, 2).slice(2, 2, 3);
  block.v = one.v.view().slice(0, 1, 2).slice(2, 2, 3);
  FlashAttention(part.problem)
      .attend(stream, one.q.view().slice(0, 1, 2).slice(2, 2, 3).slice(1, 100, 141), block, part.o);
  for (int64_t i = 0; i < 41; ++i) {
    for (int64_t d = 0; d < 40; ++d) {
      ASSERT_EQ(element(part.o, 0, i, 0, d), element(one.o, 1, 100 + i, 2, d));
    }
  }
}

TEST_P(FlashFolding, InitForgets) {
  Case c(GetParam(), 1, 33, 100, 2, 40);
  c.know_statistics({{0, 100}});
  Stream stream(2);
  const FlashAttention attention(c.problem);
  const auto state = attention.make_state();
  for (int round = 0; round < 2; ++round) {
    attention.init(stream, *state);
    attention.accumulate(stream, *state, c.q, c.block());
    attention.finish(stream, *state, c.o);
    EXPECT_TRUE(matches_reference(c));
  }
}

// What earlier calls left in the scratch memory does not matter: NaN everywhere, sizes that fill no tile.
TEST_P(FlashFolding, DirtyScratch) {
  for (const int64_t head_dim : {1, 13, 40, 129}) {
    Case c(GetParam(), 2, 37, 301, 2, head_dim);
    c.use_key_lengths({301, 70});
    Stream stream(2);
    {
      const Arena::Scope scope(stream.scratch());
      constexpr size_t kBytes = size_t{16} << 20;
      std::memset(stream.scratch().allocate(kBytes), 0xff, kBytes);
    }
    const FlashAttention attention(c.problem);
    attention.attend(stream, c.q, c.block(), c.o);
    EXPECT_TRUE(matches_reference(c));
  }
}

// Calls after the first take no memory from the system.
TEST_P(FlashFolding, ScratchIsBookedOnce) {
  Case c(GetParam(), 2, 70, 300, 3, 40);
  Stream stream(2);
  const FlashAttention attention(c.problem);
  attention.attend(stream, c.q, c.block(), c.o);
  const size_t reserved = stream.scratch().reserved();
  for (int i = 0; i < 3; ++i) attention.attend(stream, c.q, c.block(), c.o);
  EXPECT_EQ(stream.scratch().reserved(), reserved);
}

}  // namespace
}  // namespace zoetrope::kernels
