// N ranks against one rank and against float64, for every U × R up to seven ranks: uneven tokens, uneven heads, fewer
// tokens than ranks, shard weights, masks, batches, both dtypes, callers with buffers of their own and models that
// write the slots. Each (n, U, R) is a test of its own name, on threads and, with the same text, under mpirun.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "parallel/test_program.h"

namespace zoetrope::attention::testing {
namespace {

enum class MaskOf { kNone, kLengths, kKeys };

struct Shape {
  int64_t batch, tokens, heads, head_dim;
  DType dtype;
  MaskOf mask;
};

// Tokens that divide by nothing, one token, fewer than ranks, exactly the ranks; heads U, U + 1 and 2U − 1.
std::vector<Shape> shapes(int ulysses, int ring) {
  const int64_t ranks = int64_t{ulysses} * ring;
  return {
      {1, 2 * ranks + 3, ulysses, 24, DType::kF32, MaskOf::kNone},
      {2, 61, ulysses + 1, 16, DType::kF32, MaskOf::kLengths},
      {2, 53, 2 * ulysses - 1, 20, DType::kF32, MaskOf::kKeys},
      {2, std::max<int64_t>(1, ranks - 1), 2 * ulysses - 1, 9, DType::kF32, MaskOf::kNone},
      {1, 1, ulysses, 8, DType::kF32, MaskOf::kNone},
      {2, ranks, ulysses + 1, 8, DType::kF32, MaskOf::kKeys},
      {1, 67, ulysses + 2, 32, DType::kBF16, MaskOf::kNone},
      {2, 59, 2 * ulysses - 1, 16, DType::kBF16, MaskOf::kLengths},
      {2, 3, ulysses, 16, DType::kBF16, MaskOf::kNone},
  };
}

Case make_case(const Shape& shape, uint64_t seed) {
  Case whole({shape.batch, shape.tokens, shape.heads, shape.head_dim, shape.dtype}, seed);
  if (shape.mask == MaskOf::kLengths) {
    // The first entry ends inside the sequence, the second has no key at all: its rows are zeros.
    std::vector<int64_t> lengths{std::max<int64_t>(1, shape.tokens / 2), 0};
    lengths.resize(static_cast<size_t>(shape.batch));
    whole.set_key_lengths(lengths);
  }
  if (shape.mask == MaskOf::kKeys) whole.set_key_mask(seed);
  return whole;
}

std::string describe(const Shape& s) {
  return fmt::format("B{} S{} H{} D{} {} mask {}", s.batch, s.tokens, s.heads, s.head_dim, dtype_name(s.dtype),
                     static_cast<int>(s.mask));
}

struct Expected {
  Tensor reference;  // F64
  Tensor alone;
};

void expect_results(comm::Communicator& comm, const Case& whole, const Expected& expected, const Strategy& strategy) {
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  const IndexRange own = attention.tokens();
  Shard shard(whole, own);
  const TensorView reference = expected.reference.view().slice(1, own.begin, own.end);
  const TensorView alone = expected.alone.view().slice(1, own.begin, own.end);
  attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
  EXPECT_LE(distance(comm, shard.o, reference), bound(whole.problem.dtype));
  EXPECT_LE(distance(comm, shard.o, alone), bound(whole.problem.dtype));

  // A model that writes the slots gets the same bits, also in a second run over the same memory.
  for (int repeat = 0; repeat < 2; ++repeat) {
    Shard again(whole, own);
    write_slots(attention.input_slots(), again);
    attention.run(whole.mask(), again.o);
    EXPECT_TRUE(same_bits(again.o, shard.o));
  }
}

void run_topology(comm::Communicator& comm, int ulysses, int ring) {
  uint64_t seed = 1;
  for (const Shape& shape : shapes(ulysses, ring)) {
    SCOPED_TRACE(describe(shape));
    const Case whole = make_case(shape, seed++);
    const Expected expected{whole.reference(), run_alone(comm, whole)};
    for (const parallel::ContextLayout& layout : parallel::in_shards({ulysses, ring})) {
      SCOPED_TRACE(text(layout, Softmax::kOnline));
      expect_results(comm, whole, expected, {.layout = parallel::ContextRequest::exactly(layout)});
    }
  }
}

// Topology × direction × softmax × head chunks × mask. Other directions fold the blocks in another order, so they agree
// within rounding; head chunks change no bit.
void run_other_strategies(comm::Communicator& comm, int ulysses, int ring) {
  uint64_t seed = 100;
  for (const Shape& shape : {Shape{2, 61, ulysses + 1, 16, DType::kF32, MaskOf::kLengths},
                             Shape{1, 2 * ulysses * ring + 1, 2 * ulysses - 1, 8, DType::kF32, MaskOf::kNone},
                             Shape{2, std::max(1, ring - 1), ulysses, 8, DType::kF32, MaskOf::kKeys},
                             Shape{2, 61, ulysses + 1, 16, DType::kBF16, MaskOf::kKeys}}) {
    const Case whole = make_case(shape, seed++);
    const Expected expected{whole.reference(), run_alone(comm, whole)};
    for (const Direction direction : parallel::kDirections) {
      for (const Softmax softmax : parallel::kSoftmaxes) {
        SCOPED_TRACE(fmt::format("{} direction {} softmax {}", describe(shape), static_cast<int>(direction),
                                 static_cast<int>(softmax)));
        for (const parallel::ContextLayout& layout : parallel::in_shards({ulysses, ring, direction, 2})) {
          if (layout.shard_weights.empty()) continue;  // below
          expect_results(comm, whole, expected,
                         {.layout = parallel::ContextRequest::exactly(layout), .softmax = softmax});
        }
        Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring, .direction = direction},
                          .softmax = softmax,
                          .deterministic = true};
        ContextAttention whole_heads = plan(whole.problem, strategy, comm, 1);
        Shard one(whole, whole_heads.tokens());
        whole_heads.run(one.q, one.k, one.v, whole.mask(), one.o);
        for (const int chunks : {2, 3, ulysses + 2}) {  // the last leaves empty chunks for a share of one or two heads
          strategy.layout.head_chunks = chunks;
          expect_results(comm, whole, expected, strategy);
          ContextAttention chunked = plan(whole.problem, strategy, comm, 1);
          Shard shard(whole, chunked.tokens());
          chunked.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
          EXPECT_TRUE(same_bits(shard.o, one.o)) << chunks << " head chunks";
        }
      }
    }
  }
}

void run_gather(comm::Communicator& comm) {
  uint64_t seed = 200;
  for (const Softmax softmax : parallel::kSoftmaxes) {
    for (const Shape& shape : shapes(1, comm.size())) {
      SCOPED_TRACE(fmt::format("{} softmax {}", describe(shape), static_cast<int>(softmax)));
      const Case whole = make_case(shape, seed++);
      const Expected expected{whole.reference(), run_alone(comm, whole)};
      for (const parallel::ContextLayout& layout : parallel::in_shards({.gather = comm.size()}))
        expect_results(comm, whole, expected,
                       {.layout = parallel::ContextRequest::exactly(layout), .softmax = softmax});
    }
  }
}

const bool kRegistered = [] {
  for (const int ranks : {2, 3, 4, 7})
    comm::register_rank_test("NAgainstOne", "gather", {ranks}, __FILE__, __LINE__, run_gather);
  const std::vector<int> up_to_seven = {1, 2, 3, 4, 5, 6, 7};
  return register_layouts("NAgainstOne", up_to_seven, run_topology) &&
         register_layouts("AllStrategies", up_to_seven, run_other_strategies);
}();

}  // namespace
}  // namespace zoetrope::attention::testing
