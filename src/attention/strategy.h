// Validation of problems and strategies: everything that plan() refuses, with the legal values. The names and the
// configuration keys are public (zoetrope/attention.h).
#pragma once

#include "zoetrope/attention.h"

#include "parallel/ring.h"
#include "parallel/shards.h"

namespace zoetrope::attention {

// More chunks than heads leave empty ones; there is no use for so many.
inline constexpr int kMostHeadChunks = 4096;

// The fields of flash_block_sizes.
const std::vector<std::string>& block_size_names();

// What a name and the keys beside it leave open. The softmax is not among it: left open it is what is faster on this
// kind of device, as measured, wherever the ranks stand.
struct OpenFields {
  std::optional<int64_t> ulysses;  // U as name or key say it, or unset
  std::optional<int64_t> ring;     // R where the name says that one, or unset
  bool topology = false;           // neither is said
  bool direction = false;
  bool head_chunks = false;
};
OpenFields open_fields(const StrategyOptions& options);

// The problem with its scale filled in. Throws Error.
Problem checked_problem(const Problem& problem);

// The strategy with U, R and softmax filled in, for a context axis of `degree` ranks. Throws Error.
Strategy checked_strategy(const Strategy& strategy, int degree, int64_t heads);

parallel::Direction schedule_direction(Direction direction);
parallel::Sizes schedule_sizes(const Problem& problem);

}  // namespace zoetrope::attention
