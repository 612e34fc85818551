// How the weights of a run are had where not all of them fit: streamed from files, or by ranks that are processes,
// which share them or divide the layers, whichever is predicted to be faster. What memory a stream may have is
// weight_memory.h.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "pipeline/planning/run_workload.h"
#include "planner/search.h"

namespace zoetrope::pipeline {

struct WeightsToFit {
  planner::Question question;           // as it is to run
  planner::Ranking ranking;             // of it
  std::optional<double> weight_memory;  // that was chosen, GB
  KeepWeights keep_weights;             // from one video to the next
  std::string note;  // what was chosen instead of keeping all, and what else there was; empty: nothing, or nothing fits
  std::string disk_note;  // add_disk's, of what was chosen; empty: it streams nothing
};

struct WeightsQuestion {
  planner::Question question;               // with hardware, and the memory of a rank as its limit
  const MemoryQuestion& memory;             // of a process of it; its layout does not matter
  std::optional<planner::Bytes> available;  // to a process; unset: not known, and all weights are kept
  bool processes = false;                   // whether ranks are, and so could share weights
  // Completes a question that streams: where the files are, how fast the disk is. Returns what is said of that.
  std::function<std::string(planner::Question&, const MemoryQuestion&)> add_disk = {};
};
// As the keys say where they say it. Before anything else, less is kept from one video to the next. Where nothing fits,
// whatever is done, the question is as it was, but for what would be kept.
WeightsToFit weights_to_fit(const WeightsQuestion& asked);

// Where nothing is priced: the most that several videos can keep without weights that each step fetches, in the
// question's layout; nothing where all weights fit in no case.
KeepWeights weights_kept_to_fit(const MemoryQuestion& question, planner::Bytes available);

}  // namespace zoetrope::pipeline
