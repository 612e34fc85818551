// Keys and values that travel in fewer bits: N ranks give what one rank gives for the rounded keys and values, which
// ever rank computes and however the work is shared, and are as far from the exact result as the rounding allows. A
// broken scale and a swapped piece must show.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "comm/testing.h"
#include "device/stream.h"
#include "kernels/narrow/narrow.h"
#include "parallel/exchange.h"
#include "tensor/element.h"

namespace zoetrope::attention::testing {
namespace {

kernels::NarrowFormat format_of(KVExchange exchange) {
  return exchange == KVExchange::kInt8 ? kernels::NarrowFormat::kInt8 : kernels::NarrowFormat::kBFloat16;
}

// As it comes out of an exchange. Returns the relative L2 of the change.
double round_in_place(const TensorView& x, KVExchange exchange) {
  Stream stream(1);
  const kernels::NarrowFormat format = format_of(exchange);
  const Tensor narrowed(DType::kU8,
                        {x.extent(0), x.extent(1), x.extent(2), kernels::narrow_bytes(format, x.extent(3))});
  const double change = kernels::narrow(stream, format, x, narrowed, "reference").relative_l2();
  kernels::widen(stream, format, narrowed, x, "reference");
  return change;
}

Case make_case(const Problem& problem, uint64_t seed, KVExchange exchange) {
  Case whole(problem, seed);
  if (problem.mask == MaskKind::kKeyLengths) whole.set_key_lengths({problem.tokens / 2 + 1, problem.tokens});
  if (problem.mask == MaskKind::kKeyMask) whole.set_key_mask(seed);
  if (exchange != KVExchange::kAsComputed) {
    round_in_place(whole.k, exchange);
    round_in_place(whole.v, exchange);
  }
  return whole;
}

double largest(const TensorView& x, const std::function<double(int64_t at)>& of) {
  double most = 0;
  for (int64_t b = 0; b < x.extent(0); ++b)
    for (int64_t s = 0; s < x.extent(1); ++s)
      for (int64_t h = 0; h < x.extent(2); ++h) {
        const double value = of(b * x.stride(0) + s * x.stride(1) + h * x.stride(2));
        if (std::isfinite(value)) most = std::max(most, value);
      }
  return most;
}
double largest_norm(const TensorView& x) {
  return largest(x, [&](int64_t at) {
    double sum = 0;
    for (int64_t d = 0; d < x.extent(3); ++d) sum += element(x, at + d) * element(x, at + d);
    return std::sqrt(sum);
  });
}
double largest_value(const TensorView& x) {
  return largest(x, [&](int64_t at) {
    double most = 0;
    for (int64_t d = 0; d < x.extent(3); ++d) most = std::max(most, std::abs(element(x, at + d)));
    return most;
  });
}

// The bound on a value of o: rounding moves a value by at most u·|x|, with u = 2^-8 in bf16, and in int8 by half a
// step, u·max|x| of the block with u = 1/254, and a few units of float32. So a score moves by at most δ =
// scale·‖q‖·√D·u·max|k|, a weight by a factor of at most e^2δ, and o by (e^2δ − 1)·max|v| + u·max|v|.
double bound_of_rounding(const Case& whole, KVExchange exchange) {
  const double u = exchange == KVExchange::kInt8 ? 1.0 / 254 + 0x1p-21 : 0x1p-8;
  const double score = static_cast<double>(whole.problem.scale) * largest_norm(whole.q) *
                       std::sqrt(static_cast<double>(whole.problem.head_dim)) * u * largest_value(whole.k);
  return (std::expm1(2 * score) + u) * largest_value(whole.v);
}

double largest_difference(comm::Communicator& comm, const TensorView& a, const TensorView& b) {
  double most = 0;
  for (int64_t i = 0; i < a.extent(0); ++i)
    for (int64_t s = 0; s < a.extent(1); ++s)
      for (int64_t h = 0; h < a.extent(2); ++h)
        for (int64_t d = 0; d < a.extent(3); ++d)
          most = std::max(most, std::abs(element(a, i * a.stride(0) + s * a.stride(1) + h * a.stride(2) + d) -
                                         element(b, i * b.stride(0) + s * b.stride(1) + h * b.stride(2) + d)));
  return comm.all_reduce_max(most);
}

struct Runs {
  Case whole, rounded;
  Tensor exact, expected;  // of one rank: of the keys as they are, and as they come out of an exchange
};

Runs make_runs(comm::Communicator& comm, const Problem& problem, uint64_t seed, KVExchange exchange,
               bool deterministic) {
  Case whole = make_case(problem, seed, KVExchange::kAsComputed), rounded = make_case(problem, seed, exchange);
  const auto alone = comm.split(comm.rank(), 0);
  const auto run = [&](const Case& one) {
    ContextAttention attention =
        plan(one.problem, {.deterministic = deterministic, .kv_exchange = exchange}, *alone, 1);
    Tensor o(problem.dtype, {problem.batch, problem.tokens, problem.heads, problem.head_dim});
    attention.run(one.q, one.k, one.v, one.mask(), o);
    return o;
  };
  Tensor exact = run(whole), expected = run(rounded);
  return {std::move(whole), std::move(rounded), std::move(exact), std::move(expected)};
}

void expect_rounded(comm::Communicator& comm, const Runs& runs, const Strategy& strategy) {
  ContextAttention attention = plan(runs.whole.problem, strategy, comm, 1);
  const IndexRange own = attention.tokens();
  Shard shard(runs.whole, own);
  attention.run(shard.q, shard.k, shard.v, runs.whole.mask(), shard.o);
  const TensorView expected = runs.expected.view().slice(1, own.begin, own.end);
  EXPECT_LE(distance(comm, shard.o, expected), bound(runs.whole.problem.dtype));
  // Where no ring folds block after block, ranks compute what one rank does, bit by bit.
  if (attention.layout().ring == 1 && strategy.deterministic) {
    EXPECT_TRUE(same_bits(shard.o, expected));
  }
  const double rounding = runs.whole.problem.dtype == DType::kBF16 ? 0x1p-8 * largest_value(runs.whole.v) : 1e-5;
  EXPECT_LE(largest_difference(comm, shard.o, runs.exact.view().slice(1, own.begin, own.end)),
            bound_of_rounding(runs.whole, strategy.kv_exchange) + rounding);

  const Counters counters = attention.counters();
  if (own.empty()) {
    EXPECT_EQ(counters.key_rounding + counters.value_rounding, 0);
  } else if (runs.whole.problem.mask == MaskKind::kNone) {
    const Shard copy(runs.whole, own);
    EXPECT_NEAR(counters.key_rounding, round_in_place(copy.k, strategy.kv_exchange), 1e-5);
    EXPECT_NEAR(counters.value_rounding, round_in_place(copy.v, strategy.kv_exchange), 1e-5);
    EXPECT_GT(counters.key_rounding, 1e-5);
  }
  // A model that writes the slots gets the same bits, also in a second run over the same memory.
  for (int repeat = 0; repeat < 2; ++repeat) {
    Shard again(runs.whole, own);
    write_slots(attention.input_slots(), again);
    attention.run(runs.whole.mask(), again.o);
    EXPECT_TRUE(same_bits(again.o, shard.o));
  }
}

struct Choice {
  KVExchange exchange;
  DType dtype;
};
constexpr Choice kChoices[] = {
    {KVExchange::kBFloat16, DType::kF32}, {KVExchange::kInt8, DType::kF32}, {KVExchange::kInt8, DType::kBF16}};

std::vector<Problem> problems(DType dtype, int ulysses, int ring) {
  const int64_t ranks = int64_t{ulysses} * ring;
  return {{2, 61, ulysses + 1, 40, dtype, 0, MaskKind::kKeyLengths},
          {1, 2 * ranks + 3, 2 * ulysses - 1, 9, dtype},
          {2, std::max<int64_t>(1, ranks - 1), ulysses, 16, dtype, 0, MaskKind::kKeyMask}};
}

void run_topology(comm::Communicator& comm, int ulysses, int ring) {
  uint64_t seed = 1;
  for (const Choice& choice : kChoices)
    for (const Problem& problem : problems(choice.dtype, ulysses, ring)) {
      const Runs runs = make_runs(comm, problem, seed++, choice.exchange, true);
      for (const Direction direction : parallel::kDirections)
        for (const int chunks : {1, 3})
          for (const Softmax softmax : parallel::kSoftmaxes) {
            if (ring == 1 && (direction != Direction::kForward || softmax == Softmax::kFixedMax)) continue;
            SCOPED_TRACE(fmt::format("{} {} tokens {}, {}, {} chunks, {}", kv_exchange_name(choice.exchange),
                                     dtype_name(choice.dtype), problem.tokens, direction_name(direction), chunks,
                                     softmax_name(softmax)));
            expect_rounded(comm, runs,
                           {.layout = {ulysses, ring, direction, chunks},
                            .softmax = softmax,
                            .deterministic = true,
                            .kv_exchange = choice.exchange});
          }
    }
}

void run_gather(comm::Communicator& comm) {
  uint64_t seed = 100;
  for (const Choice& choice : kChoices)
    for (const Problem& problem : problems(choice.dtype, 1, comm.size()))
      expect_rounded(comm, make_runs(comm, problem, seed++, choice.exchange, true),
                     {.layout = {.gather = comm.size()}, .deterministic = true, .kv_exchange = choice.exchange});
}

// ---- spoiled pieces ----

// Changes every piece that is received in `operation`, after it has arrived.
class SpoilingCommunicator final : public comm::WrappedCommunicator {
 public:
  using Spoil = std::function<void(const comm::Segment&)>;
  SpoilingCommunicator(comm::Communicator& inner, std::string operation, Spoil spoil)
      : WrappedCommunicator(inner), operation_(std::move(operation)), spoil_(std::move(spoil)) {}
  SpoilingCommunicator(std::unique_ptr<comm::Communicator> inner, std::string operation, Spoil spoil)
      : WrappedCommunicator(std::move(inner)), operation_(std::move(operation)), spoil_(std::move(spoil)) {}

  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    comm::Work work = inner().exchange(sends, receives, operation);
    if (operation != operation_) return work;
    struct Then final : comm::Work::Operation {
      void wait() override {
        work.wait();
        for (const comm::Segment& piece : pieces) spoil(piece);
      }
      comm::Work work;
      std::vector<comm::Segment> pieces;
      Spoil spoil;
    };
    auto then = std::make_unique<Then>();
    then->work = std::move(work);
    then->pieces.assign(receives.begin(), receives.end());
    then->spoil = spoil_;
    return comm::Work(std::move(then));
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<SpoilingCommunicator>(inner().split(color, key), operation_, spoil_);
  }

 private:
  std::string operation_;
  Spoil spoil_;
};

void run_spoiled(comm::Communicator& comm, int ulysses, int ring) {
  for (const KVExchange exchange : {KVExchange::kBFloat16, KVExchange::kInt8}) {
    const Problem problem{1, 29, ulysses, 40, DType::kF32};
    const Runs runs = make_runs(comm, problem, 7, exchange, false);
    const int64_t vector = kernels::narrow_bytes(format_of(exchange), problem.head_dim);
    const auto error_with = [&](const char* operation, const SpoilingCommunicator::Spoil& spoil) {
      SpoilingCommunicator spoiled(comm, operation, spoil);
      ContextAttention attention =
          plan(problem, {.layout = {.ulysses = ulysses, .ring = ring}, .kv_exchange = exchange}, spoiled, 1);
      const IndexRange own = attention.tokens();
      Shard shard(runs.whole, own);
      attention.run(shard.q, shard.k, shard.v, {}, shard.o);
      return distance(comm, shard.o, runs.expected.view().slice(1, own.begin, own.end));
    };
    const auto nothing = [](const comm::Segment&) {};
    // The first scale of the piece, doubled; in bf16 the first two values.
    const auto scale = [](const comm::Segment& piece) {
      uint32_t bits = 0;
      std::memcpy(&bits, piece.data, sizeof bits);
      bits += 1U << 23;
      std::memcpy(piece.data, &bits, sizeof bits);
    };
    // The first key and the first value change places; a row of one head has one of each.
    const auto swapped = [&](const comm::Segment& piece) {
      auto* bytes = static_cast<char*>(piece.data);
      std::swap_ranges(bytes, bytes + vector, bytes + vector);
    };
    for (const char* operation : {"ring hop", "ulysses exchange"}) {
      if ((operation == std::string("ring hop") ? ring : ulysses) == 1) continue;
      EXPECT_LE(error_with(operation, nothing), bound(DType::kF32)) << operation;
      EXPECT_GT(error_with(operation, scale), bound(DType::kF32)) << operation;
      EXPECT_GT(error_with(operation, swapped), bound(DType::kF32)) << operation;
    }
  }
}

const std::vector<int> kRanks = {2, 3, 4, 7};
const bool kRegistered = [] {
  for (const int ranks : kRanks)
    comm::register_rank_test("KVExchange", "gather", {ranks}, __FILE__, __LINE__, run_gather);
  return register_layouts("KVExchange", kRanks, run_topology) &&
         register_layouts("KVExchangeSpoiled", kRanks, run_spoiled);
}();

// What is priced is what is sent, for every head size.
TEST(KVExchange, BytesAreThoseOfTheKernels) {
  for (int64_t head_dim = 1; head_dim <= 257; ++head_dim)
    for (const KVExchange exchange : {KVExchange::kBFloat16, KVExchange::kInt8})
      EXPECT_EQ(parallel::kv_vector_bytes(exchange, head_dim), kernels::narrow_bytes(format_of(exchange), head_dim));
  EXPECT_EQ(parallel::kv_vector_bytes(KVExchange::kAsComputed, 128), 0);
}

// Nothing leaves the rank in cross-attention, so that nothing is rounded.
ZT_RANK_TEST(CrossAttention, KeysAreNotRounded) {
  Problem problem{2, 21, 4, 16, DType::kF32};
  problem.key_tokens = 9;
  const Case whole(problem);
  const auto run = [&](KVExchange exchange) {
    ContextAttention attention = plan(problem, {.kv_exchange = exchange}, comm, 1);
    Shard shard(whole, attention.tokens());
    attention.run(shard.q, shard.k, shard.v, {}, shard.o);
    EXPECT_EQ(attention.counters().key_rounding, 0);
    return shard;
  };
  EXPECT_TRUE(same_bits(run(KVExchange::kInt8).o, run(KVExchange::kAsComputed).o));
}

}  // namespace
}  // namespace zoetrope::attention::testing
