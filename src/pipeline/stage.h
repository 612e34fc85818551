// What every stage of a run is given: the settings, the model, what was planned, how ranks are used, whom to tell,
// where to note seconds.
#pragma once

#include "parallel/layout.h"
#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"
#include "pipeline/plan.h"
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
};

}  // namespace zoetrope::pipeline
