// The comparisons of n_against_one_test.cpp must notice one wrong byte: for every U × R up to seven ranks, each piece
// that one rank receives is spoiled in turn, and each time the result has to leave its bound.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

// Inverts the leading byte (sign and most of the exponent) of the middle element of the `index`-th non-empty piece
// received in exchanges named `operation`. The last bits of an element are below every tolerance; these are not.
class SpoiledCommunicator final : public comm::WrappedCommunicator {
 public:
  struct State {
    std::string operation;
    int index = 0;
    size_t element_bytes = 4;
    int seen = 0;
    bool spoiled = false;
  };

  SpoiledCommunicator(comm::Communicator& inner, std::shared_ptr<State> state)
      : WrappedCommunicator(inner), state_(std::move(state)) {}
  SpoiledCommunicator(std::unique_ptr<comm::Communicator> inner, std::shared_ptr<State> state)
      : WrappedCommunicator(std::move(inner)), state_(std::move(state)) {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<SpoiledCommunicator>(inner().split(color, key), state_);
  }

  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    comm::Work work = inner().exchange(sends, receives, operation);
    if (operation != state_->operation) return work;
    for (const comm::Segment& piece : receives) {
      if (piece.bytes == 0 || state_->seen++ != state_->index) continue;
      const size_t middle = piece.bytes / state_->element_bytes / 2;
      unsigned char* byte = static_cast<unsigned char*>(piece.data) + (middle + 1) * state_->element_bytes - 1;
      return comm::Work(std::make_unique<Spoil>(std::move(work), byte, state_));
    }
    return work;
  }

 private:
  class Spoil final : public comm::Work::Operation {
   public:
    Spoil(comm::Work inner, unsigned char* byte, std::shared_ptr<State> state)
        : inner_(std::move(inner)), byte_(byte), state_(std::move(state)) {}
    void wait() override {
      inner_.wait();
      *byte_ ^= 0xff;
      state_->spoiled = true;
    }

   private:
    comm::Work inner_;
    unsigned char* byte_;
    std::shared_ptr<State> state_;
  };

  std::shared_ptr<State> state_;
};

// How many pieces were spoiled, one run each, and noticed.
int spoil_each_piece(comm::Communicator& comm, const Case& whole, const Tensor& reference, const Strategy& strategy,
                     const char* operation) {
  const int victim = comm.size() - 1;
  for (int index = 0;; ++index) {
    auto state = std::make_shared<SpoiledCommunicator::State>();
    state->operation = comm.rank() == victim ? operation : "";
    state->index = index;
    state->element_bytes = dtype_size(whole.problem.dtype);
    SpoiledCommunicator spoiled(comm, state);
    ContextAttention attention = plan(whole.problem, strategy, spoiled, 1);
    const IndexRange own = attention.tokens();
    Shard shard(whole, own);
    attention.run(shard.q, shard.k, shard.v, {}, shard.o);
    const double error = distance(comm, shard.o, reference.view().slice(1, own.begin, own.end));
    if (comm.all_reduce_max(state->spoiled ? 1 : 0) == 0) {
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
    const Strategy strategy{.ulysses = ulysses, .ring = ring};
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ulysses exchange"), 2 * (ulysses - 1));
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ring hop"), ring - 1);
    EXPECT_EQ(spoil_each_piece(comm, whole, reference, strategy, "ulysses return"), ulysses - 1);
  }
}

const bool kRegistered = [] {
  for (int ranks = 2; ranks <= 7; ++ranks) {
    for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
      if (ranks % ulysses != 0) continue;
      const int ring = ranks / ulysses;
      comm::register_rank_test("FlippedByte", fmt::format("U{}R{}", ulysses, ring), {ranks}, __FILE__, __LINE__,
                               [=](comm::Communicator& comm) { run_topology(comm, ulysses, ring); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope::attention::testing
