// How ranks are used where the user leaves it open: every legal use is priced by the planner, and the fastest that fits
// runs. Decides for one process; agreed_plan() makes one decision of a job. What the figures are is profile_choice.h,
// what the keys mean layout_question.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "parallel/layout.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/profile_choice.h"
#include "planner/search.h"

namespace zoetrope::pipeline {

struct RankPlan {
  parallel::ParallelLayout layout;
  parallel::Softmax softmax = parallel::Softmax::kOnline;
  KeepWeights keep_weights = KeepWeights::kNone;  // from one video to the next
  // Of waits in a step where comm_timeout=auto; none where no profile speaks of this machine.
  std::optional<double> step_timeout;

  // What runs, priced. The rest is of the rank that planned, and unset on others.
  std::string layout_text;      // as people read it
  std::string per = " a step";  // what is predicted
  std::string profile;
  std::vector<std::string> notes;  // what makes the prediction doubtful
  planner::RunPrediction predicted;
  planner::Bytes bytes_per_rank;
  bool fits = true;        // else the run is refused; as rank 0 has planned it, there alone
  bool first_use = false;  // with figures that were measured on first use
  double model_error = 0;  // relative; times closer than this are ties
  // The fastest that is another use of the ranks.
  struct Next {
    std::string layout_text;
    double slower = 0;  // the whole video, relative; below 0 where it is faster, but less simple or of a shorter ring
  };
  std::optional<Next> next;

  // What was planned with; null as above.
  std::shared_ptr<const planner::HardwareProfile> hardware;
  // Of another run of this job, which differs in what of its weights is in memory and where; unset: not known.
  std::optional<double> step_seconds(const MemoryQuestion& question) const;

  // False where no profile speaks of this machine, so that rules decided, and on ranks that did not plan.
  bool priced() const { return !profile.empty(); }
  // "Plan: …" and a line on the profile, without a line feed at the end.
  std::string text() const;
};

struct RunQuestion {
  const RunPlan& plan;
  const ModelFolder& model;
  const MemoryQuestion& memory;  // its options are the run's; its layout does not matter
  Job job;
  std::optional<planner::Bytes> available;  // to a process; unset: not known
};

// Where not all weights fit, and the keys leave it open, they are streamed or shared by ranks (weights_to_fit.h). Keys
// that are set are not searched over, and with deterministic=true none is: what somebody measured must not change
// a bit, nor where no profile speaks of this machine. Where nothing fits it is the most frugal that was looked at, for
// admission to refuse. Throws Error where the options contradict themselves or the job, with the legal values.
// `heartbeat` is called while that takes long, which it does where the machine is measured first.
RankPlan choose_run(const RunQuestion& question, const machine::Heartbeat& heartbeat = {});

// The same for one attention problem of its own, with all ranks on the context axis.
RankPlan choose_attention(const attention::Problem& problem, const attention::StrategyOptions& keys,
                          const std::string& hardware, const Job& job, const machine::Heartbeat& heartbeat = {});

// Rank 0 decides, for profiles and memory may differ between hosts; the others have its layout, softmax,
// keep_weights and step_timeout, or throw its Error. They receive every heartbeat, so that comm_timeout need not cover
// the whole. Collective over `world`.
RankPlan agreed_plan(comm::Communicator& world, const std::function<RankPlan(const machine::Heartbeat&)>& decide);

}  // namespace zoetrope::pipeline
