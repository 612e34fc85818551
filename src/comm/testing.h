// Communicators that misbehave on purpose, for tests of what is built on communicators. Each wraps another one, on any
// transport, and wraps what is split from it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::comm {

// Passes everything on; the base of the others.
class WrappedCommunicator : public Communicator {
 public:
  explicit WrappedCommunicator(Communicator& inner) : inner_(&inner) {}
  explicit WrappedCommunicator(std::unique_ptr<Communicator> inner) : inner_(inner.get()), owned_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int world_rank(int rank) const override { return inner_->world_rank(rank); }
  int ranks_in_this_process() const override { return inner_->ranks_in_this_process(); }
  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override {
    return inner_->exchange(sends, receives, operation);
  }
  Counters counters() const override { return inner_->counters(); }
  void reset_counters() override { inner_->reset_counters(); }
  void set_step(std::string step) override { inner_->set_step(std::move(step)); }
  void set_timeout(double seconds) override { inner_->set_timeout(seconds); }
  void set_background() override { inner_->set_background(); }
  void set_trace(trace::Trace* trace) override { inner_->set_trace(trace); }

 protected:
  Communicator& inner() const { return *inner_; }

 private:
  Communicator* inner_;
  std::unique_ptr<Communicator> owned_;
};

// Each exchange named `operation` that receives from another rank ends no earlier than its post + delay. The message
// itself moves as usual, and nothing else is delayed: the delay passes while the rank computes or in its wait().
class DelayedCommunicator final : public WrappedCommunicator {
 public:
  struct State;  // of a wrapper and all communicators split from it

  DelayedCommunicator(Communicator& inner, std::string operation, std::chrono::duration<double> delay);
  DelayedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state);

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Counters counters() const override;  // the waiting for the delay included
  void reset_counters() override;

  double injected_seconds() const;  // the delays so far: messages × delay
  // Seconds inside each wait() for a delayed exchange, in order, here and in all that was split from this.
  const std::vector<double>& waits() const;

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<double> extra_wait_seconds_;  // of this communicator alone
};

// Exchanges named `operation` are posted when they are waited for, as by an engine that posts after it has computed.
// Their buffers must stay until then.
class LateCommunicator final : public WrappedCommunicator {
 public:
  LateCommunicator(Communicator& inner, std::string operation)
      : WrappedCommunicator(inner), operation_(std::move(operation)), waits_(std::make_shared<std::vector<double>>()) {}
  LateCommunicator(std::unique_ptr<Communicator> inner, std::string operation,
                   std::shared_ptr<std::vector<double>> waits)
      : WrappedCommunicator(std::move(inner)), operation_(std::move(operation)), waits_(std::move(waits)) {}

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override;
  std::unique_ptr<Communicator> split(int color, int key) override;

  // Seconds of each post and its wait together, in order, here and in all that was split from this. The waits that a
  // DelayedCommunicator inside counts are shorter: they begin after the post, and a thread may be held up in between.
  const std::vector<double>& waits() const { return *waits_; }

 private:
  std::string operation_;
  std::shared_ptr<std::vector<double>> waits_;
};

// Inverts one byte of the `index`-th piece (from 0) that is received from another rank in exchanges named `operation`,
// after it has arrived: the leading byte (sign and most of the exponent) of a float32 or bf16 in the middle, because
// the last bits of a value are below every tolerance. Pieces without bytes do not count.
class FaultyCommunicator final : public WrappedCommunicator {
 public:
  struct State;

  FaultyCommunicator(Communicator& inner, std::string operation, int index);
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<State> state);

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override;
  std::unique_ptr<Communicator> split(int color, int key) override;

  static size_t flipped_byte(size_t bytes);  // its position in a piece of `bytes` bytes
  bool flipped() const;                      // whether it happened

 private:
  std::shared_ptr<State> state_;
};

// The rank `stalled` (of the job) posts nothing in exchanges named `operation`: its own work ends at once, and its
// peers time out.
class StalledCommunicator final : public WrappedCommunicator {
 public:
  StalledCommunicator(Communicator& inner, std::string operation, int stalled);
  StalledCommunicator(std::unique_ptr<Communicator> inner, std::string operation, int stalled);

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override;
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  std::string operation_;
  int stalled_;
};

}  // namespace zoetrope::comm
