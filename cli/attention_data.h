// The data of `zoetrope attention`, from a file or from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "zoetrope/index_range.h"

#include "bench/attention_data.h"
#include "cli/attention_options.h"
#include "device/thread_team.h"

namespace zoetrope::cli {

// A line per fact, as key=value: ranks that read other data are told so by the comparison of these.
std::string fingerprint(const bench::AttentionData& data);

// What this process does of the whole: the tokens of one rank, or of all where the ranks are its threads.
struct ProcessPart {
  int rank = 0, ranks = 1;
};

// Random data are allocated, but not filled: see fill_random().
// Throws Error for what is missing, and for shapes, dtypes and masks that do not fit, naming file and tensor.
bench::AttentionData open_attention_data(const AttentionOptions& options, const ProcessPart& part = {});

// Standard normal numbers, each a function of the seed, the tensor and its place in it alone.
struct RandomPart {
  IndexRange queries;  // tokens of q
  IndexRange keys;     // tokens of k and v
};
void fill_random(const bench::AttentionData& data, int64_t seed, const RandomPart& part, ThreadTeam& team);

}  // namespace zoetrope::cli
