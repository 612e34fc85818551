// The search for the fastest tile sizes of a problem on this machine: a grid of candidates, timed in turns so that a
// disturbance meets all of them. What is timed is the caller's matter: the kernel alone (KernelTimer) or a whole
// transformer block (bench/block_tiles.h). What it finds is remembered in tile_cache.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/tile_cache.h"

namespace zoetrope::kernels {

struct TileCandidate {
  TileSizes sizes;     // as the implementation rounds them
  bool table = false;  // what is used without a search
  double seconds = 0;  // median of its runs
  // Time with the table's sizes over time with these, in the same round: the median of the rounds, and what three
  // quarters of the last ones reach.
  double gain = 1, sure_gain = 1;
};

// The sizes a search tries for a problem, the table's first.
std::vector<TileCandidate> tile_candidates(const FlashProblem& problem);

// Seconds of one run with these sizes.
using TimeTiles = std::function<double(const TileSizes& sizes)>;

// Runs the candidates in rounds of one run each, for about `seconds` of runs in all and at least three rounds; then the
// best of them and the table's a few rounds more. Returns first these, then the others, the largest gain first. A gain
// above 2 is rather the machine's doing than a tile's: all is measured again then, and the second answer counts. Throws
// Error where there is no candidate.
std::vector<TileCandidate> search_tiles(const FlashProblem& problem, double seconds, const TimeTiles& time);

// Times the kernel alone, on data of its own. Long sequences are timed on their first query rows, enough of them to
// give every thread a few tiles.
class KernelTimer {
 public:
  KernelTimer(const FlashProblem& problem, Stream& stream);
  ~KernelTimer();
  double time(const TileSizes& sizes);

 private:
  struct Data;
  FlashProblem problem_;
  Stream& stream_;
  std::unique_ptr<const Data> data_;
};

// The entry to remember. The first must beat the table's sizes by more than 1 % in three quarters of the last rounds,
// or the table's are kept.
TileEntry tile_entry(const FlashProblem& problem, const std::vector<TileCandidate>& found);

enum class WhenUnknown : uint8_t { kTable, kSearch };

// The remembered sizes of a problem; where there are none the table's ({}), or those of a search now, which are
// remembered. Ranks on one machine that search at the same time take turns, so that the first one's result serves all.
TileSizes tuned_tiles(const FlashProblem& problem, Stream& stream, const TileCache& cache, WhenUnknown when);

}  // namespace zoetrope::kernels
