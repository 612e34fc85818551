#include "comm/testing.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

namespace zoetrope::comm {

namespace {

using Clock = std::chrono::steady_clock;

// Runs `after` once the inner work is done.
class ThenOperation final : public Work::Operation {
 public:
  ThenOperation(Work inner, std::function<void()> after) : inner_(std::move(inner)), after_(std::move(after)) {}
  void wait() override {
    inner_.wait();
    after_();
  }

 private:
  Work inner_;
  std::function<void()> after_;
};

bool from_others(const Communicator& comm, const Segment& piece) {
  return piece.peer != comm.rank() && piece.bytes > 0;
}

}  // namespace

// ---- delayed ----

struct DelayedCommunicator::State {
  std::string operation;
  Clock::duration delay;
  double injected_seconds = 0;
  std::vector<double> waits;
};

DelayedCommunicator::DelayedCommunicator(Communicator& inner, std::string operation,
                                         std::chrono::duration<double> delay)
    : WrappedCommunicator(inner), state_(std::make_shared<State>()), extra_wait_seconds_(std::make_shared<double>(0)) {
  state_->operation = std::move(operation);
  state_->delay = std::chrono::duration_cast<Clock::duration>(delay);
}

DelayedCommunicator::DelayedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state)
    : WrappedCommunicator(std::move(inner)),
      state_(std::move(state)),
      extra_wait_seconds_(std::make_shared<double>(0)) {}

Work DelayedCommunicator::exchange(std::span<const Segment> sends, std::span<const Segment> receives,
                                   const char* operation) {
  const bool delayed =
      operation == state_->operation &&
      std::any_of(receives.begin(), receives.end(), [&](const Segment& piece) { return from_others(*this, piece); });
  Work work = inner().exchange(sends, receives, operation);
  if (!delayed) return work;
  const Clock::time_point due = Clock::now() + state_->delay;
  state_->injected_seconds += std::chrono::duration<double>(state_->delay).count();

  // Times the whole wait, the inner one included.
  class DelayedOperation final : public Work::Operation {
   public:
    DelayedOperation(Work inner_work, Clock::time_point due_at, std::shared_ptr<State> state,
                     std::shared_ptr<double> extra)
        : inner_(std::move(inner_work)), due_(due_at), state_(std::move(state)), extra_(std::move(extra)) {}
    void wait() override {
      const Clock::time_point begin = Clock::now();
      inner_.wait();
      const Clock::time_point arrived = Clock::now();
      std::this_thread::sleep_until(due_);
      const Clock::time_point end = Clock::now();
      if (due_ > arrived) *extra_ += std::chrono::duration<double>(end - arrived).count();
      state_->waits.push_back(std::chrono::duration<double>(end - begin).count());
    }

   private:
    Work inner_;
    Clock::time_point due_;
    std::shared_ptr<State> state_;
    std::shared_ptr<double> extra_;
  };
  return Work(std::make_unique<DelayedOperation>(std::move(work), due, state_, extra_wait_seconds_));
}

std::unique_ptr<Communicator> DelayedCommunicator::split(int color, int key) {
  return std::make_unique<DelayedCommunicator>(inner().split(color, key), state_);
}

Counters DelayedCommunicator::counters() const {
  Counters counters = inner().counters();
  counters.wait_seconds += *extra_wait_seconds_;
  return counters;
}

void DelayedCommunicator::reset_counters() {
  inner().reset_counters();
  *extra_wait_seconds_ = 0;
}

double DelayedCommunicator::injected_seconds() const { return state_->injected_seconds; }
const std::vector<double>& DelayedCommunicator::waits() const { return state_->waits; }

// ---- late ----

Work LateCommunicator::exchange(std::span<const Segment> sends, std::span<const Segment> receives,
                                const char* operation) {
  if (operation != operation_) return inner().exchange(sends, receives, operation);
  class LateOperation final : public Work::Operation {
   public:
    LateOperation(std::function<Work()> post, std::shared_ptr<std::vector<double>> waits)
        : post_(std::move(post)), waits_(std::move(waits)) {}
    void wait() override {
      const Clock::time_point begin = Clock::now();
      post_().wait();
      waits_->push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }

   private:
    std::function<Work()> post_;
    std::shared_ptr<std::vector<double>> waits_;
  };
  return Work(std::make_unique<LateOperation>(
      [&to = inner(), operation, out = std::vector(sends.begin(), sends.end()),
       in = std::vector(receives.begin(), receives.end())] { return to.exchange(out, in, operation); },
      waits_));
}

std::unique_ptr<Communicator> LateCommunicator::split(int color, int key) {
  return std::make_unique<LateCommunicator>(inner().split(color, key), operation_, waits_);
}

// ---- faulty ----

struct FaultyCommunicator::State {
  std::string operation;
  int index = 0;
  int seen = 0;
  bool flipped = false;
};

FaultyCommunicator::FaultyCommunicator(Communicator& inner, std::string operation, int index)
    : WrappedCommunicator(inner), state_(std::make_shared<State>()) {
  state_->operation = std::move(operation);
  state_->index = index;
}

FaultyCommunicator::FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state)
    : WrappedCommunicator(std::move(inner)), state_(std::move(state)) {}

Work FaultyCommunicator::exchange(std::span<const Segment> sends, std::span<const Segment> receives,
                                  const char* operation) {
  std::optional<Segment> target;
  if (operation == state_->operation)
    for (const Segment& piece : receives)
      if (piece.bytes > 0 && from_others(*this, piece) && state_->seen++ == state_->index) target = piece;
  Work work = inner().exchange(sends, receives, operation);
  if (!target) return work;
  return Work(std::make_unique<ThenOperation>(std::move(work), [state = state_, piece = *target] {
    static_cast<unsigned char*>(piece.data)[FaultyCommunicator::flipped_byte(piece.bytes)] ^= 0xff;
    state->flipped = true;
  }));
}

std::unique_ptr<Communicator> FaultyCommunicator::split(int color, int key) {
  return std::make_unique<FaultyCommunicator>(inner().split(color, key), state_);
}

size_t FaultyCommunicator::flipped_byte(size_t bytes) { return std::min(bytes - 1, bytes / 2 / 4 * 4 + 3); }

bool FaultyCommunicator::flipped() const { return state_->flipped; }

// ---- stalled ----

StalledCommunicator::StalledCommunicator(Communicator& inner, std::string operation, int stalled)
    : WrappedCommunicator(inner), operation_(std::move(operation)), stalled_(stalled) {}

StalledCommunicator::StalledCommunicator(std::unique_ptr<Communicator> inner, std::string operation, int stalled)
    : WrappedCommunicator(std::move(inner)), operation_(std::move(operation)), stalled_(stalled) {}

Work StalledCommunicator::exchange(std::span<const Segment> sends, std::span<const Segment> receives,
                                   const char* operation) {
  if (operation == operation_ && world_rank(rank()) == stalled_) return Work();
  return inner().exchange(sends, receives, operation);
}

std::unique_ptr<Communicator> StalledCommunicator::split(int color, int key) {
  return std::make_unique<StalledCommunicator>(inner().split(color, key), operation_, stalled_);
}

}  // namespace zoetrope::comm
