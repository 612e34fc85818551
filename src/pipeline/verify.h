// `zoetrope verify`: runs a configuration and checks what it computed, value by value (forward_checks.h), at a size
// that fits into the time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/records/run_record.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

struct OpenModel;

struct VerifySettings {
  // The weights that the float64 model computes with: the files that a quantised model was made from; empty: the
  // model's own. With others, the bounds hold the rounding of the run's format too.
  std::string reference;
  double minutes = 10;    // 0: as long as it takes
  int64_t rows = 64;      // tokens of each stage that are computed in float64; 0: all
  bool as_asked = false;  // at the size of the options, whatever time and memory it takes
  // Is told which run it is before it begins, and the hash of its weights, on each process; what it throws ends the
  // verification.
  std::function<void(const RunIdentity&, const std::string& weights)> begins = {};
};

// One value and how far it is off; forward_checks.h says more.
struct VerifiedValue {
  std::string tensor, place;  // "block.3.self_attention" in "step 2 of 4, conditional, rank 1"
  double relative_l2 = 0, max_abs = 0, bound = 0, of_bound = 0;
};

// Latents, as another machine can compare them.
struct LatentsMark {
  uint64_t hash = 0;
  double norm = 0;
  std::vector<float> sample;  // values at even distances
};

struct VerifyReport {
  std::string layout;   // "data 1 x context 4 (Ulysses 2 x ring 2)"
  std::string size;     // "480x832, 17 frames, 4 steps"
  std::string reduced;  // what was asked for, where that is more; else empty
  std::string unused;   // what of the run such a size does not use: an expert, a step cache; else empty
  int ranks = 1, layers = 0;
  std::string dtype;
  RunIdentity run;
  std::string weights;  // a hash of every byte of the transformers' files and their LoRA files
  std::string instruction_set;
  std::string reference;  // the weights of the float64 model, where they are not the run's
  struct Check {
    int64_t values = 0;                // that were compared
    std::vector<VerifiedValue> worst;  // of each tensor, in the order of a forward
  };
  Check one_rank, float64;
  int64_t stages = 0, stages_checked = 0, rows = 0;  // of float64: one of a step and a branch each
  std::map<int64_t, double> reused;       // by step, from 1: how far its velocity is from that of a whole forward
  std::optional<double> reuse_threshold;  // of cache=drift, which predicts that distance; unset: another cache
  std::vector<LatentsMark> latents;       // the noise, then those after each step
  double step_bound = 0;                  // of the latents' relative L2 distance to those of another machine, a step
  int64_t outside = 0;
  std::string first_outside;  // a sentence; empty: every value is inside its bound

  // What people read: a few lines, or one for each tensor.
  std::string text(bool whole) const;
};

// A verification at the size of its options, shared by the ranks of a process.
class Verification {
 public:
  // Throws Error for options that make no single clip, and for a reference of another model.
  Verification(OpenModel& model, const GenerateOptions& options, const VerifySettings& settings, int ranks);
  ~Verification();

  // Collective: each rank's part.
  void run(comm::Communicator& world, const Callbacks& callbacks = {});
  void run_on_threads(const Callbacks& callbacks);
  // On rank 0 then: against float64, and all that was found.
  VerifyReport report(const Callbacks& callbacks = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Collective over `world`, or over options.ranks threads of this process without one: the options at a size that fits
// into the time. What it returns is rank 0's; the others return before it. Throws Error as a Verification does.
VerifyReport verify(const GenerateOptions& options, const VerifySettings& settings, comm::Communicator* world,
                    const Callbacks& callbacks);

}  // namespace zoetrope::pipeline
