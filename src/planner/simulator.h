// How long a denoising step takes: prices the attention programs that the engine executes over a profile's links, rank
// by rank, by the equations of docs/planner.md.
//
// A layer of one rank, on two lanes (compute above, transfers below):
//
//   linear, tokens │ wait │ K0      │ K1      │wait│ K2      │ merge │ wait │ linear …
//                  │ exch │ hop 0   │ hop 1        │         │       │ back │
//
// Ranks that share a layer's matrices add up their partial results before the next; nothing is computed meanwhile.
//
// Flows of one phase share links: a transfer takes the time of the most loaded link on its route. All layers of a model
// are alike, so one is simulated and counted `layers` times; embedding and projection are added.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/hardware.h"
#include "planner/work.h"
#include "planner/workload.h"
#include "trace/trace.h"

namespace zoetrope::planner {

// What the planner decides.
struct Configuration {
  parallel::ParallelLayout layout;
  parallel::Softmax softmax = parallel::Softmax::kOnline;
  int64_t block_q = 0;  // 0: the profile's
  int64_t block_kv = 0;

  // How many settings make it less simple than it could be: a direction that is not forward, head chunks, fixed-max
  // softmax, a tile that is not the profile's, Ulysses and a ring together, layers that ranks share.
  int complexity(const HardwareProfile& hardware) const;
  std::string text() const;  // "data 2 x context 4 (Ulysses 2 x ring 2, softmax fixed_max), block_q 4096"
  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// Seconds of one rank in one denoising step. They add up to the step.
struct Breakdown {
  double linear = 0;            // matrix multiplications, including cross-attention
  double attention = 0;         // self-attention's tiles, including their padding
  double tokens = 0;            // norms, RoPE, modulation, copies
  double overhead = 0;          // fixed part per layer
  double merge = 0;             // of ring blocks' outputs
  double exposed_exchange = 0;  // both Ulysses all-to-alls, or the gather of K/V, not hidden by compute
  double exposed_ring = 0;
  double tensor = 0;   // sums over tensor ranks, which no compute hides
  double weights = 0;  // weights that are read, packed or gathered as they are used, as far as no compute hides it
  double gather = 0;   // velocity at the end of a step
  double idle = 0;     // waiting for ranks with more tokens or heads

  double total() const;
};

// The parts in the order of a layer: as JSON has them, and as people read them.
struct BreakdownPart {
  double Breakdown::*seconds;
  const char* key;
  const char* name;
};
inline constexpr BreakdownPart kBreakdownParts[] = {
    {&Breakdown::linear, "linear", "matrix multiplications"},
    {&Breakdown::attention, "attention", "attention"},
    {&Breakdown::tokens, "tokens", "norms and copies"},
    {&Breakdown::overhead, "overhead", "layer overhead"},
    {&Breakdown::merge, "merge", "merging ring blocks"},
    {&Breakdown::exposed_exchange, "exposed_exchange", "exchange"},
    {&Breakdown::exposed_ring, "exposed_ring", "ring"},
    {&Breakdown::tensor, "tensor", "sums over tensor ranks"},
    {&Breakdown::weights, "weights", "waiting for weights"},
    {&Breakdown::gather, "gather", "gathering the velocity"},
    {&Breakdown::idle, "idle", "waiting for ranks with more work"},
};

struct TimelineSpan {
  int rank = 0;
  enum class Lane : uint8_t { kCompute, kTransfer, kWait } lane = Lane::kCompute;
  std::string name;
  double Breakdown::*part = nullptr;  // what its time counts as; of a transfer, where a rank waits for it
  double begin = 0, end = 0;          // seconds from the layer's beginning
  int64_t bytes = 0;                  // of a transfer: received
  double flop = 0;                    // of compute, where it is counted
};

struct StepPrediction {
  double seconds = 0;            // a step, all branches
  std::vector<Breakdown> ranks;  // of each
  int slowest = 0;               // the critical rank: the one that waits least
  const Breakdown& critical() const { return ranks[static_cast<size_t>(slowest)]; }
  std::string limited_by() const;                        // "attention (71 %)", "exchange over 'node' (31 %)"
  std::vector<TimelineSpan> layer;                       // one layer of one branch, where asked for
  double layer_seconds = 0;                              // of one layer, with the branches that run together
  std::string exchange_level, ring_level, tensor_level;  // the link levels with most of the waiting
  std::string weights_level;                             // the same, or "disk"; empty where packing takes longest
};

enum class Timeline : uint8_t { kNone, kLayer };

// `hardware` must have at least as many devices as the configuration has ranks (ZT_CHECK); the first are used.
StepPrediction simulate_step(const Work& work, const HardwareProfile& hardware, const Configuration& configuration,
                             Timeline timeline = Timeline::kNone);

struct RunPrediction {
  double load = 0, text_encoder = 0, conditions = 0, denoise = 0, vae = 0;  // seconds
  double total() const { return load + text_encoder + conditions + denoise + vae; }
  double shared_rows() const { return conditions + vae; }  // what depends on the ranks that share a frame's rows
  StepPrediction step;
};
RunPrediction simulate_run(const Work& work, const HardwareProfile& hardware, const Configuration& configuration,
                           Timeline timeline = Timeline::kNone);

// The predicted time line of a step in the format of measured traces, from now on: `layers` of its layers, one after
// the other, on the lanes that measured runs use. The prediction must have been made with Timeline::kLayer.
void record_timeline(const StepPrediction& prediction, int64_t layers, trace::Trace& trace);

}  // namespace zoetrope::planner
