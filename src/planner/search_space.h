// What search() tries: the legal splits of the ranks, and the other settings of a configuration. Settings without
// effect are tried once: directions of a ring of one or two, head chunks without an exchange, a fixed-max softmax that
// is no faster on the device. Bounds prune what cannot be the best. Private to search.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/search.h"

namespace zoetrope::planner {

struct IllegalSplit {
  parallel::ParallelLayout layout;
  std::string reason;
};

// Numbers of ranks that one run may have: all, and for objectives that allow several concurrent runs the divisors.
// Descending.
std::vector<int> run_sizes(const Question& question);

// Ranks that share layers: as the request says, and 1 where it says how a context is split; unset: to be searched.
std::optional<int> fixed_tensor(const parallel::LayoutRequest& request);

// Splits of `ranks` (data × Ulysses × ring, data × gather; each × tensor) that match the request, each with its
// simplest settings; empty if none is legal. A search over tensor ranks makes nothing legal that is not legal without
// them.
std::vector<parallel::ParallelLayout> legal_splits(const Question& question, int ranks);
// Splits that a user may expect in the list, with the reason why they are not legal.
std::vector<IllegalSplit> illegal_splits(const Question& question, int ranks);
// Throws Error, with the legal values, for a request that leaves nothing legal.
void check_request(const Question& question);

// How self-attention's tiles are computed. `price` is seconds of one head's tiles relative to a perfect kernel.
struct Kernel {
  parallel::Softmax softmax = parallel::Softmax::kOnline;
  int64_t block_q = 0;
  double price = 1;
};
std::vector<Kernel> kernels(const Question& question, const parallel::ParallelLayout& split);  // cheapest first

// The layout of a split with every direction of its ring, and with every number of head chunks; the simplest first.
std::vector<parallel::ParallelLayout> in_directions(const Question& question, const parallel::ParallelLayout& split);
std::vector<parallel::ParallelLayout> in_chunks(const Question& question, const parallel::ParallelLayout& split);
std::vector<int> vae_ranks(const Question& question, int ranks);  // ascending

// ---- lower bounds of the seconds of a denoising step, without simulating it ----
// A bound holds for every direction and every number of head chunks of a split with one kernel.

// Of a split that was not simulated: matrix multiplications, tiles and tokens of the rank with the most, and the ring's
// K/V over all links of a device, or the latencies of its hops if these are more; a gather's K/V, or one latency; and
// what tensor ranks send over all links of a device, with all latencies.
StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration);

// Of a layout that differs only in direction or head chunks from `before`, which was simulated as `plain` with the same
// kernel. Neither changes matrix multiplications, tiles or tokens. Of the exchange, the first chunk's all-to-all and
// the last chunk's second all-to-all stay exposed. Of the ring's waiting a direction saves at most three quarters: both
// directions at once halve the transfers, and without a wrap link half of the rest may have waited for that link; what
// is left overlaps the tiles. Head chunks save at most a quarter: they move the same blocks in more pieces.
double least_of_change(const StepPrediction& plain, const parallel::ContextLayout& before,
                       const parallel::ContextLayout& after);

}  // namespace zoetrope::planner
