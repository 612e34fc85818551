// The search for the fastest tile sizes of a problem on this machine: a grid of candidates, timed in turns on data of
// its own so that a disturbance meets all of them. What it finds is remembered in tile_cache.h.
#pragma once

#include <functional>
#include <vector>

#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/tile_cache.h"

namespace zoetrope::kernels {

struct TileCandidate {
  TileSizes sizes;     // as the implementation rounds them
  double seconds = 0;  // the fastest of its turns
  bool table = false;  // what is used without a search
};

// The sizes a search tries for a problem, the table's first.
std::vector<TileCandidate> tile_candidates(const FlashProblem& problem);

// Times the candidates for about `seconds` in all, at least three turns each and more for the best. Long sequences are
// timed on their first query rows, enough of them to give every thread a few tiles. Returns them fastest first.
std::vector<TileCandidate> search_tiles(const FlashProblem& problem, Stream& stream, double seconds);

// The entry to remember. A candidate must beat the table's sizes by more than the turns scatter (1 %), or the
// table's are kept.
TileEntry tile_entry(const FlashProblem& problem, const std::vector<TileCandidate>& found);

enum class WhenUnknown : uint8_t { kTable, kSearch };

// The remembered sizes of a problem; where there are none the table's ({}), or those of a search now, which are
// remembered. Ranks on one machine that search at the same time take turns, so that the first one's result serves all.
TileSizes tuned_tiles(const FlashProblem& problem, Stream& stream, const TileCache& cache, WhenUnknown when);

}  // namespace zoetrope::kernels
