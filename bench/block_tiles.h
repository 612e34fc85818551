// The search of `zoetrope tune mode=block`: tile sizes of attention by the time of a whole transformer block over
// ranks, with its neighbours, packing, exchange and threads, and next to it by the time of the kernel alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/attention.h"

#include "bench/cases.h"
#include "kernels/flash_attention/tile_search.h"

namespace zoetrope::bench {

struct BlockTileSettings {
  std::string model = PublishedSettings().model;  // as `bench model` takes it; its first block, with random weights
  int64_t height = 0, width = 0, num_frames = 0;
  DType dtype = DType::kBF16;
  attention::StrategyOptions strategy;
  std::string kernel;  // an implementation by name; empty: the one that a run would use
  int ranks = 1;       // threads of this process
  int threads = 1;     // of each
  double seconds = 10;
};

struct BlockTiles {
  int64_t tokens = 0;
  parallel::ContextLayout layout;
  attention::Softmax softmax = attention::Softmax::kOnline;
  kernels::FlashProblem problem;  // of rank 0's kernel
  // As search_tiles() returns them; seconds of the slowest rank while all work.
  std::vector<kernels::TileCandidate> kernel, block;
};

// Throws Error for a model, size or strategy that is not possible, and where a rank would have no tokens.
BlockTiles search_block_tiles(const BlockTileSettings& settings, const Progress& progress);

}  // namespace zoetrope::bench
