// From keys to what the planner is asked: the one place where a run or an attention becomes a question, for all
// commands, and the layout that the keys mean where nobody is asked. Knows no machine: hardware, the ranks of a process
// and the limit of memory are the caller's to add.
#pragma once

#include "zoetrope/attention.h"

#include "parallel/layout.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/settings/generate_options.h"
#include "planner/search.h"

namespace zoetrope::pipeline {

// The layout that keys and rules alone make: the guidance branches together, unless only apart is legal. Throws Error
// for what is not possible with `ranks` ranks, with the legal values.
parallel::ParallelLayout layout_by_rule(const GenerateOptions& options, const RunPlan& plan, const ModelFolder& model,
                                        int ranks);

// Of `memory` the options are the run's; its layout does not matter. With an objective other than latency the run may
// use a part of the ranks. Throws Error where keys contradict themselves; the search checks what they fix against the
// ranks.
planner::Question run_question(const RunPlan& plan, const ModelFolder& model, const MemoryQuestion& memory, int ranks,
                               planner::Objective objective = planner::Objective::kLatency);

// One attention problem of its own, with all ranks in one context. Throws Error for keys that are not possible.
planner::Question attention_question(const attention::Problem& problem, const attention::StrategyOptions& keys,
                                     int ranks);
planner::Work attention_work(const attention::Problem& problem);

// Which keys of exchanges between ranks say nothing in this layout, where ranks have whole sequences; else empty.
std::string no_exchange_note(const GenerateOptions& options, const parallel::ParallelLayout& layout);

// Ranks of one process have one copy of the weights: asks for that. Returns what it says of `fsdp_parallelism`; else
// empty.
std::string keep_one_copy(planner::Question& question, const GenerateOptions& options);

// For a run on this CPU: tiles are tuned here, whatever a profile says of others.
void leave_tiles_to_kernels(planner::Question& question);

}  // namespace zoetrope::pipeline
