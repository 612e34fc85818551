// What search() tries: the legal splits of the ranks, and what else a configuration can vary in. Collapses what makes
// no difference: directions of a ring of one or two, head chunks where nothing is exchanged, a fixed-max softmax that
// is no faster on the device. Only search.cpp looks here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/search.h"

namespace zoetrope::planner {

struct Split {
  int data = 1;
  parallel::Topology context;

  int ranks() const { return data * context.ranks(); }
};

struct IllegalSplit {
  Split split;
  std::string reason;
};

// Numbers of ranks that one run may have: all, and where the objective is served by several runs side by side the
// divisors. Descending.
std::vector<int> run_sizes(const Question& question);

// Of so many ranks, within what is fixed; empty where nothing is legal.
std::vector<Split> legal_splits(const Question& question, int ranks);
// What someone might expect in the list and does not find there.
std::vector<IllegalSplit> illegal_splits(const Question& question, int ranks);
// Throws Error for fixed values that leave nothing legal, with the legal ones.
void check_fixed(const Question& question);

// How self-attention's tiles are computed. `price` is seconds of one head's tiles relative to a perfect kernel.
struct Kernel {
  bool fixed_max = false;
  int64_t block_q = 0;
  double price = 1;
};
std::vector<Kernel> kernels(const Question& question, const Split& split);  // cheapest first

// The plain one first in each.
std::vector<parallel::Direction> directions(const Question& question, const Split& split);
std::vector<int> head_chunks(const Question& question, const Split& split);
std::vector<int> vae_ranks(const Question& question, int ranks);  // ascending

}  // namespace zoetrope::planner
