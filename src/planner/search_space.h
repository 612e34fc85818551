// What search() tries: the legal splits of the ranks, and what else a configuration can vary in. Collapses what makes
// no difference: directions of a ring of one or two, head chunks where nothing is exchanged, a fixed-max softmax that
// is no faster on the device. What cannot be the best is left out by bounds. Only
// search.cpp looks here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/search.h"

namespace zoetrope::planner {

struct IllegalSplit {
  parallel::ParallelLayout layout;
  std::string reason;
};

// Numbers of ranks that one run may have: all, and where the objective is served by several runs side by side the
// divisors. Descending.
std::vector<int> run_sizes(const Question& question);

// Splits of so many ranks (data × Ulysses × ring) within what is fixed, each with its simplest settings; empty where
// nothing is legal.
std::vector<parallel::ParallelLayout> legal_splits(const Question& question, int ranks);
// What someone might expect in the list and does not find there.
std::vector<IllegalSplit> illegal_splits(const Question& question, int ranks);
// Throws Error for a request that leaves nothing legal, with what is.
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

// ---- seconds that a denoising step takes at least, without simulating it ----
// A bound holds for every direction and every number of head chunks of a split with one kernel.

// Of a split that nothing is known of: products, tiles and tokens of the rank with the most, and the ring's K/V through
// all links that a device has, or its hops' latencies where these are more.
StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration);

// Of a layout that differs from `before`, which was simulated as `plain` with the same kernel, in its direction and
// perhaps in its head chunks, or in these alone. Neither changes products, tiles or tokens. Of the exchange the first
// chunk's way there and the last one's way back stand in the open. Of the ring's waiting a direction saves three
// quarters at most, for both ways at once halve the transfers, and where no wrap link is crossed half of the rest may
// have waited for it; and what is left hides under the tiles. Head chunks are taken to save a quarter at most: they
// move the same blocks in more pieces.
double least_of_change(const StepPrediction& plain, const parallel::ContextLayout& before,
                       const parallel::ContextLayout& after);

}  // namespace zoetrope::planner
