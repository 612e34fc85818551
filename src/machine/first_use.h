// Measures this machine within three seconds when its figures are first needed, and remembers them (figures.h). For
// predictions alone: nothing that changes a result may depend on what is found. More, and what lies between ranks, is
// measured by `zoetrope calibrate` (bench/calibrate.h).
//
// How the seconds are divided, each figure's inputs included; a figure that takes less leaves the rest to the others:
//
//   bf16, float32, each   products 0.40, attention 0.35, convolution 0.35 s; before each the peak, 3 x 0.02 s
//   both                  memory 0.20, packing 0.25, norms and one token 0.15 s
//
// Sizes follow from the peak: the largest that can be run a few times in what there is. A figure is the best of its
// repeats, for whatever else runs only ever makes a machine look slower.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/figures.h"

namespace zoetrope::machine {

inline constexpr double kFirstUseSeconds = 3;

using Heartbeat = std::function<void()>;  // called every tenth of a second or so while something long goes on
using Clock = std::function<double()>;    // seconds

// Deals out what is left of a time by shares: share / (shares that are still to come) of it.
class Budget {
 public:
  Budget(double seconds, double shares, Clock clock)
      : clock_(std::move(clock)), end_(clock_() + seconds), shares_(shares) {}
  // When what begins now has to be over.
  double deadline(double share);
  double left() const;  // of all; below 0 where it was not enough
  const Clock& clock() const { return clock_; }

 private:
  Clock clock_;
  double end_, shares_;
};

// The best of what work() does a second, run after run until the next would not be over before `deadline`. The first
// run touches memory and loads code: it counts only where there is no time for another.
double best_rate(const Clock& clock, double deadline, const std::function<double()>& work, const Heartbeat& heartbeat);

// The largest of `sizes` (descending) that can run `times` times in `seconds`; the last where none can.
int64_t size_within(std::span<const int64_t> sizes, const std::function<double(int64_t)>& seconds_of, double times,
                    double seconds);

// On all cores that this process may use. Throws Error where others have most of them, which a tenth of a second shows.
Figures measure_machine(const Heartbeat& heartbeat);

struct FirstUse {
  bool worth_measuring = true;  // false: what is remembered will do, or nothing
  Heartbeat heartbeat;
  std::function<Figures(const Heartbeat&)> measure = measure_machine;
};

struct KnownMachine {
  Figures figures;
  MachineKey key;                  // whose they are
  std::string date;                // of the last measurement
  std::vector<std::string> notes;  // what was done just now, and what makes figures doubtful
};

// What is remembered of this machine, measured where it is not. Figures of a machine that others used meanwhile are
// measured again by the next process that needs them, a few times at most, and the better ones kept. Nothing where it
// is not worth it, where ZOETROPE_MEASURE=no forbids it, and where measuring failed (a note in `notes` says so). Throws
// Error where that variable has another value.
std::optional<KnownMachine> known_machine(const FirstUse& use, std::vector<std::string>& notes);

// A run was far faster than these figures said: they are measured again at the next use.
void doubt_machine();

}  // namespace zoetrope::machine
