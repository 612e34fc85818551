// A run that is planned and not started, as `zoetrope inspect` and `zoetrope plan` ask about it: generate's keys, with
// the refusals that concern its memory and time. Reads configs, LoRA files, and the picture that max_area follows,
// and the headers of weight files; nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

struct PlannedRun {
  // options.model is a folder or a name, and files are found, as for a run. Throws Error for inputs that the model does
  // not take, LoRA files that are not its, and sizes that it cannot make. Inputs that it needs may be missing: they are
  // planned for all the same.
  explicit PlannedRun(const GenerateOptions& options);

  ModelFolder model;        // without weights
  GenerateOptions options;  // of the size that max_area makes
  RunPlan plan;

  // Of one rank. The weights are read from files as they are stored there, of configs alone as published; or computed
  // by formula with weights=random. With a prompt its tokens are known. The frames of a grid are those of the job.
  MemoryQuestion memory;
  // Keys whose files are not here or not whole, as key=FILE: planned as the model is published.
  std::vector<std::string> missing_files;

 private:
  explicit PlannedRun(std::pair<GenerateOptions, ModelFolder> given);
};

// Throws Error for the first key of the command line that neither memory nor time depend on: `command` would ignore it.
void refuse_keys_of_running(const OptionSet& keys, const char* command);

}  // namespace zoetrope::pipeline
