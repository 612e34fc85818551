// What every stage of a run is given.
#pragma once

#include <algorithm>

#include "comm/launcher.h"
#include "parallel/layout.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/settings/generate_options.h"
#include "trace/timing.h"
#include "trace/trace.h"

namespace zoetrope::pipeline {

struct Stage {
  const GenerateOptions& options;
  const ModelFolder& model;
  const RunPlan& plan;
  const parallel::ParallelLayout& layout;
  const Callbacks& callbacks;
  trace::Timing& timing;
  trace::Trace* trace;  // or null

  // Compute threads of each of `ranks_here` ranks that share a stage in this process.
  int threads_of_each(int ranks_here) const { return std::max(1, comm::process_threads(options.threads) / ranks_here); }
};

}  // namespace zoetrope::pipeline
