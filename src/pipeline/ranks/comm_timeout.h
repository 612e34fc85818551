// How long a rank waits for another before the run is given up: the key comm_timeout. Where it is unset (auto), a wait
// goes on while the rank that is waited for goes on, and between steps the deadline comes from what the plan predicts.
#pragma once

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "parallel/layout.h"
#include "planner/simulator.h"

namespace zoetrope::pipeline {

comm::RankOptions rank_options(const ModelOptions& options);

// Of waits in a step: ten times the predicted time between two exchanges, which is that of a layer or, where ranks
// compute whole sequences, of a step; at least a minute.
double step_timeout(const planner::StepPrediction& step, const parallel::ParallelLayout& layout);

}  // namespace zoetrope::pipeline
