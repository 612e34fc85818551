// The log-sum-exp over ranks: every U × R up to seven ranks against float64 and against one rank, with every direction,
// softmax, head chunk and mask, fewer tokens than ranks, models that write the slots, and cross-attention. Asking for
// it changes no bit of o, and one wrong byte on its way home is noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

Tensor make_logs(const Problem& p, int64_t tokens) { return Tensor(DType::kF32, {p.batch, tokens, p.heads}); }

// The largest difference on any rank, of [B, S_l, H] tensors; infinite where −∞ or NaN meets a number. Collective.
double largest_difference(comm::Communicator& comm, const TensorView& ours, const TensorView& theirs) {
  const auto value = [](const TensorView& x, int64_t b, int64_t s, int64_t h) {
    const int64_t at = b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
    return x.dtype() == DType::kF64 ? x.data<double>()[at] : static_cast<double>(x.data<float>()[at]);
  };
  double largest = 0;
  for (int64_t b = 0; b < ours.extent(0); ++b)
    for (int64_t s = 0; s < ours.extent(1); ++s)
      for (int64_t h = 0; h < ours.extent(2); ++h) {
        const double x = value(ours, b, s, h), y = value(theirs, b, s, h);
        if (x == y) continue;
        const double difference = std::abs(x - y);
        largest = std::isfinite(difference) ? std::max(largest, difference) : std::numeric_limits<double>::infinity();
      }
  return comm.all_reduce_max(largest);
}

Tensor logs_alone(comm::Communicator& comm, const Case& whole) {
  const auto alone = comm.split(comm.rank(), 0);
  ContextAttention attention = plan(whole.problem, {.softmax = Softmax::kOnline}, *alone, 1);
  Tensor o(whole.problem.dtype, whole.q.shape()), logs = make_logs(whole.problem, whole.problem.tokens);
  attention.run(whole.q, whole.k, whole.v, whole.mask(), o, logs);
  return logs;
}

struct Expected {
  Tensor reference;  // F64
  Tensor alone;
};

Expected expect_of(comm::Communicator& comm, const Case& whole) {
  Expected expected{Tensor(DType::kF64, {whole.problem.batch, whole.problem.tokens, whole.problem.heads}), {}};
  whole.reference(expected.reference);
  expected.alone = logs_alone(comm, whole);
  return expected;
}

void expect_logs(comm::Communicator& comm, const Case& whole, const Expected& expected, const Strategy& strategy) {
  const int ring = strategy.layout.ring.value_or(1);
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  const IndexRange own = attention.tokens();
  Shard shard(whole, own);
  const Tensor logs = make_logs(whole.problem, own.size());
  attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o, logs);
  const double bound = log_sum_bound(whole, ring);
  EXPECT_LE(largest_difference(comm, logs, expected.reference.view().slice(1, own.begin, own.end)), bound);
  EXPECT_LE(largest_difference(comm, logs, expected.alone.view().slice(1, own.begin, own.end)), 2 * bound);

  // A model that writes the slots, into a tensor with the heads outside.
  Shard again(whole, own);
  write_slots(attention.input_slots(), again);
  const Tensor outside(DType::kF32, {whole.problem.batch, whole.problem.heads, own.size()});
  const TensorView strided = outside.view().permute({0, 2, 1});
  attention.run(whole.mask(), again.o, strided);
  EXPECT_EQ(largest_difference(comm, strided, logs), 0);

  Problem without = whole.problem;
  without.log_sum_exp = false;
  ContextAttention plain = plan(without, strategy, comm, 1);
  Shard same(whole, own);
  plain.run(same.q, same.k, same.v, whole.mask(), same.o);
  EXPECT_TRUE(same_bits(same.o, shard.o));
  EXPECT_LE(plain.workspace_bytes(), attention.workspace_bytes());
}

void run_strategies(comm::Communicator& comm, int ulysses, int ring) {
  struct Shape {
    int64_t tokens, heads, head_dim;
    DType dtype;
    MaskKind mask;
  };
  uint64_t seed = 1;
  for (const Shape& s : {Shape{61, ulysses + 1, 16, DType::kF32, MaskKind::kNone},
                         Shape{53, 2 * ulysses - 1, 24, DType::kF32, MaskKind::kKeyLengths},
                         Shape{std::max(1, ulysses * ring - 1), ulysses, 8, DType::kF32, MaskKind::kKeyMask},
                         Shape{67, ulysses + 1, 16, DType::kBF16, MaskKind::kKeyMask}}) {
    Problem problem{2, s.tokens, s.heads, s.head_dim, s.dtype};
    problem.log_sum_exp = true;
    Case whole(problem, seed++);
    // The second entry has no valid key.
    if (s.mask == MaskKind::kKeyLengths) whole.set_key_lengths({s.tokens / 2, 0});
    if (s.mask == MaskKind::kKeyMask) whole.set_key_mask(seed);
    const Expected expected = expect_of(comm, whole);
    for (const Direction direction : parallel::kDirections) {
      for (const Softmax softmax : parallel::kSoftmaxes) {
        if (ring == 1 && direction != Direction::kForward) continue;
        const int chunks = static_cast<int>(seed + static_cast<uint64_t>(direction)) % 3 + 1;
        SCOPED_TRACE(fmt::format("S{} H{} D{} {} mask {} {} {} chunks {}", s.tokens, s.heads, s.head_dim,
                                 dtype_name(s.dtype), static_cast<int>(s.mask), direction_name(direction),
                                 softmax_name(softmax), chunks));
        expect_logs(comm, whole, expected,
                    {.layout = {.ulysses = ulysses, .ring = ring, .direction = direction, .head_chunks = chunks},
                     .softmax = softmax,
                     .deterministic = true});
      }
    }
  }
}

// Each piece that the last rank receives of the output exchange is spoiled in turn: o or the log-sum-exp is another.
void run_flipped_byte(comm::Communicator& comm, int ulysses, int ring) {
  Problem problem{2, 29, 2 * int64_t{ulysses} - 1, 16, DType::kF32};
  problem.log_sum_exp = true;
  const Case whole(problem, 7);
  const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring}, .deterministic = true};
  const auto run = [&](comm::Communicator& over, Shard& shard, const Tensor& logs) {
    plan(problem, strategy, over, 1).run(shard.q, shard.k, shard.v, {}, shard.o, logs);
  };
  const IndexRange own = plan(problem, strategy, comm, 1).tokens();
  Shard clean(whole, own);
  const Tensor clean_logs = make_logs(problem, own.size());
  run(comm, clean, clean_logs);
  const int pieces = 2 * (ulysses - 1);  // of o and of the log-sum-exp
  int wrong_logs = 0;
  for (int index = 0; index <= pieces; ++index) {
    comm::FaultyCommunicator spoiled(comm, comm.rank() == comm.size() - 1 ? "ulysses output exchange" : "", index);
    Shard shard(whole, own);
    const Tensor logs = make_logs(problem, own.size());
    run(spoiled, shard, logs);
    const bool wrong_o = comm.all_reduce_max(same_bits(shard.o, clean.o) ? 0 : 1) > 0;
    const bool wrong_log = largest_difference(comm, logs, clean_logs) > 0;
    wrong_logs += wrong_log ? 1 : 0;
    EXPECT_EQ(wrong_o || wrong_log, index < pieces) << "piece " << index;
    EXPECT_FALSE(wrong_o && wrong_log) << "piece " << index;
  }
  EXPECT_EQ(wrong_logs, ulysses - 1);
}

ZT_RANK_TEST(LogSumExp, OfCrossAttention) {
  for (const int64_t tokens : {61, 3}) {
    for (const Softmax softmax : parallel::kSoftmaxes) {
      Problem problem{2, tokens, comm.size() + 1, 16, DType::kF32};
      problem.key_tokens = 77;
      problem.log_sum_exp = true;
      Case whole(problem, 3);
      whole.set_key_lengths({40, 0});
      expect_logs(comm, whole, expect_of(comm, whole), {.layout = {.head_chunks = 2}, .softmax = softmax});
    }
  }
}

const std::vector<int> kRanks = {1, 2, 3, 4, 5, 6, 7};
const bool kRegistered = register_layouts("LogSumExpStrategies", kRanks, run_strategies) &&
                         register_layouts("LogSumExpFlippedByte", kRanks, run_flipped_byte, {.ulysses = 2});

}  // namespace
}  // namespace zoetrope::attention::testing
