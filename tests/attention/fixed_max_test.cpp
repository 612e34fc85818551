// Fixed-max over ranks: offsets come from statistics of all keys, gathered over the ring, so that every block meets the
// same ones. Compared with online softmax and with float64, with keys whose mean matters, and with a statistic gone
// wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_case.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

struct Outcome {
  Shard shard;
  Counters counters;
  IndexRange tokens;
};

Outcome run(comm::Communicator& comm, const Case& whole, const Strategy& strategy) {
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  Outcome outcome{Shard(whole, attention.tokens()), {}, attention.tokens()};
  const Shard& shard = outcome.shard;
  attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
  outcome.counters = attention.counters();
  return outcome;
}

double sum(comm::Communicator& comm, int64_t value) { return comm.all_reduce_sum(static_cast<double>(value)); }

// What is asked of fixed-max: 2^-8 from online in bf16 (the output's floor), and an error of at most twice online's, or
// the output's own rounding where that is more. Uniform keys are safe: ‖q‖, ρ ≤ 2√D, so β ≤ 4√D·log₂e ≤ 33 at D = 32,
// far below the 200 of the gate.
void expect_as_good_as_online(comm::Communicator& comm, const Case& whole, Strategy strategy) {
  const bool bf16 = whole.problem.dtype == DType::kBF16;
  const Tensor reference = whole.reference();
  strategy.softmax = Softmax::kOnline;
  const Outcome online = run(comm, whole, strategy);
  strategy.softmax = Softmax::kFixedMax;
  const Outcome fixed = run(comm, whole, strategy);
  const TensorView own = reference.view().slice(1, fixed.tokens.begin, fixed.tokens.end);
  const double online_error = distance(comm, online.shard.o, own), error = distance(comm, fixed.shard.o, own);
  EXPECT_LE(error, std::max(2 * online_error, bf16 ? 0x1p-9 : 0x1p-22));
  EXPECT_LE(distance(comm, fixed.shard.o, online.shard.o), bf16 ? 0x1p-8 : 1e-5);
  EXPECT_EQ(online.counters.tiles_fixed, 0);
  EXPECT_GT(sum(comm, online.counters.tiles_online), 0);
  EXPECT_GT(sum(comm, fixed.counters.tiles_fixed), 0);
  EXPECT_EQ(sum(comm, fixed.counters.tiles_online), 0);
}

void run_beside_online(comm::Communicator& comm, int ulysses, int ring) {
  uint64_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const MaskKind mask : {MaskKind::kNone, MaskKind::kKeyLengths, MaskKind::kKeyMask}) {
      for (const Direction direction : parallel::kDirections) {
        if (ring == 1 && direction != Direction::kForward) continue;
        SCOPED_TRACE(fmt::format("{} mask {} direction {}", dtype_name(dtype), static_cast<int>(mask),
                                 static_cast<int>(direction)));
        Case whole({2, 131, int64_t{ulysses} + (ulysses > 1 ? 1 : 0), 32, dtype}, seed++);
        // Whole ring blocks without a valid key: they contribute nothing to the statistics.
        if (mask == MaskKind::kKeyLengths) whole.set_key_lengths({131 / ring, 3});
        if (mask == MaskKind::kKeyMask) whole.set_key_mask(seed);
        expect_as_good_as_online(
            comm, whole,
            {.layout = {.ulysses = ulysses, .ring = ring, .direction = direction, .head_chunks = ulysses % 3 + 1}});
      }
    }
  }
}

// Keys far from the origin, with a mean that wanders: about their common mean they are near. Without centring the bound
// is ‖k‖ ≥ 30·√16 instead, β ≥ 100, and twice that is beyond the gate for most rows.
void run_shifted_keys(comm::Communicator& comm, int ulysses, int ring) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    Case whole({1, 97, ulysses, 16, dtype}, 11);
    whole.shift_keys([](int64_t s, int64_t d) {
      return (d % 2 == 0 ? 30.0 : -30.0) + (s < 40 ? 2.0 : -1.0);  // the blocks' own means differ
    });
    const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring}};
    expect_as_good_as_online(comm, whole, strategy);
    Strategy uncentred = strategy;
    uncentred.softmax = Softmax::kFixedMax;
    uncentred.k_smoothing = false;
    const Outcome fallback = run(comm, whole, uncentred);
    EXPECT_GT(sum(comm, fallback.counters.tiles_online), 0);
    const Tensor reference = whole.reference();
    EXPECT_LE(distance(comm, fallback.shard.o, reference.view().slice(1, fallback.tokens.begin, fallback.tokens.end)),
              bound(dtype));
  }
}

// Groups of rows with huge queries go online next to groups that stay fixed, in one call.
void run_mixed_rows(comm::Communicator& comm, int ulysses, int ring) {
  Case whole({1, 256 * int64_t{ring}, ulysses, 16, DType::kF32}, 13);
  for (int64_t s = 0; s < whole.problem.tokens; s += 256) {
    const TensorView huge = whole.q.view().slice(1, s, s + 64);
    for (int64_t i = 0; i < huge.extent(1) * huge.stride(1); ++i) huge.data<float>()[i] *= 64;
  }
  const Outcome mixed = run(comm, whole, {.layout = {.ulysses = ulysses, .ring = ring}, .softmax = Softmax::kFixedMax});
  EXPECT_GT(sum(comm, mixed.counters.tiles_fixed), 0);
  EXPECT_GT(sum(comm, mixed.counters.tiles_online), 0);
  const Tensor reference = whole.reference();
  // Scores of up to 64·4·√16 = 1024 in float32: their rounding, 1024·2^-24·log₂e, is that of the weights.
  EXPECT_LE(distance(comm, mixed.shard.o, reference.view().slice(1, mixed.tokens.begin, mixed.tokens.end)),
            1024 * 0x1p-24 * 2);
}

// The offset drops out of softmax, so a wrong mean of another rank's keys does not make the result wrong, but it makes
// it another one: rounded elsewhere, or on the other path. The middle of a record of one head is a part of the mean.
void run_flipped_byte(comm::Communicator& comm, int ulysses, int ring) {
  const Case whole({1, 67, ulysses, 16, DType::kF32}, 17);
  const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring}, .softmax = Softmax::kFixedMax};
  const Outcome clean = run(comm, whole, strategy);
  const int victim = comm.size() - 1;
  for (int index = 0; index < ring; ++index) {
    comm::FaultyCommunicator spoiled(comm, comm.rank() == victim ? "ring statistics" : "", index);
    const Outcome wrong = run(spoiled, whole, strategy);
    const bool noticed =
        !same_bits(wrong.shard.o, clean.shard.o) || wrong.counters.tiles_online != clean.counters.tiles_online;
    const double spoilt = index < ring - 1 ? 1 : 0;  // there is no piece after the last
    EXPECT_EQ(comm.all_reduce_max(spoiled.flipped() ? 1 : 0), spoilt);
    EXPECT_EQ(comm.all_reduce_max(noticed ? 1 : 0), spoilt) << "piece " << index;
  }
}

const std::vector<int> kRanks = {1, 2, 3, 4, 7};
const bool kRegistered = register_layouts("FixedMaxBesideOnline", kRanks, run_beside_online) &&
                         register_layouts("FixedMaxShiftedKeys", kRanks, run_shifted_keys) &&
                         register_layouts("FixedMaxMixedRows", kRanks, run_mixed_rows) &&
                         register_layouts("FixedMaxFlippedByte", kRanks, run_flipped_byte, {.ring = 2});

}  // namespace
}  // namespace zoetrope::attention::testing
