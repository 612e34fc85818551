// What all transports share: checks of pieces, the members of a split, and the messages of failed
// waits.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::comm {

// Error where a piece names a rank outside [0, ranks), or bytes at no address.
void check_pieces(std::span<const Segment> pieces, int ranks, const char* operation);
// Error where it holds no function.
void check_body(const std::function<void(Communicator&)>& body);
// The world rank of a communicator's rank. Error for one that it does not have.
int member(std::span<const int> members, int rank);

// Whether this rank has stopped a communicator. Guarded by its transport's mutex.
struct StopState {
  bool stopped = false;
  std::shared_ptr<const StopState> parent;  // of the communicator that it was split from, which stops it too
};

bool is_stopped(const StopState& state);
void throw_if_stopped(const StopState& state, const char* operation);

// How long waits of a communicator may last: see RankOptions. What was set last for it, else as for the one that it was
// split from.
class Deadline {
 public:
  explicit Deadline(const RankOptions& options)
      : seconds_(checked(options.timeout_seconds)), extends_(options.extends) {}
  explicit Deadline(std::shared_ptr<const Deadline> parent) : extends_(parent->extends_), parent_(std::move(parent)) {}

  void set(double seconds) { seconds_ = checked(seconds); }
  double seconds() const { return seconds_ < 0 ? parent_->seconds() : seconds_.load(); }
  bool extends() const { return extends_; }

 private:
  static double checked(double seconds);  // Error if it is below 0 or no number

  std::atomic<double> seconds_ = -1;  // below 0: not set
  const bool extends_;
  const std::shared_ptr<const Deadline> parent_;
};

struct SplitGroup {
  std::vector<int> members;  // ranks of the parent, in the order of the new communicator
  int rank = 0;              // of this rank among them
  int64_t ticket = 0;
};

// The collective part of Communicator::split: the ranks with this rank's color. `ticket` is any number; the result has
// that of the parent's rank 0.
SplitGroup gather_split(Communicator& parent, int color, int key, int64_t ticket = 0);

// `from` + seconds; about three years where that is more.
std::chrono::steady_clock::time_point deadline_after(
    double seconds, std::chrono::steady_clock::time_point from = std::chrono::steady_clock::now());

// "rank 2 waited 300 s for rank 1 in 'ring hop' at step 3: DETAIL"; ranks are those of the job.
std::string timeout_message(int rank, double seconds, int peer, const std::string& operation, const std::string& step,
                            const std::string& detail);

// "rank 2 stopped in 'ring hop' because rank 1 failed: WHY"
std::string stopped_message(int rank, const std::string& operation, int failed_rank, const std::string& why);

// " at step 3", or nothing where no step was set.
std::string at_step(const std::string& step);

}  // namespace zoetrope::comm
