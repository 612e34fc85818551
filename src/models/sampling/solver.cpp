#include "models/sampling/solver.h"

#include <utility>

#include "base/error.h"
#include "models/sampling/noise_levels.h"
#include "models/sampling/solver_kinds.h"

namespace zoetrope::sampling {
namespace {

struct KindName {
  SolverKind kind;
  const char* key;
  const char* class_name;
};
constexpr KindName kKinds[] = {{SolverKind::kUniPC, "unipc", "UniPCMultistepScheduler"},
                               {SolverKind::kFlowMatchEuler, "flow_match_euler", "FlowMatchEulerDiscreteScheduler"},
                               {SolverKind::kDpmSolver, "dpmpp", "DPMSolverMultistepScheduler"}};

std::unique_ptr<Solver> make(const SolverConfig& config) {
  switch (config.kind) {
    case SolverKind::kUniPC:
      return make_uni_pc(config);
    case SolverKind::kFlowMatchEuler:
      return make_flow_match_euler(config);
    case SolverKind::kDpmSolver:
      return make_dpm_solver(config);
  }
  ZT_CHECK(false, "unknown kind of solver");
}

}  // namespace

std::vector<std::string> solver_names() {
  std::vector<std::string> names;
  for (const KindName& one : kKinds) names.emplace_back(one.key);
  return names;
}

SolverKind parse_solver_kind(const std::string& name) {
  for (const KindName& one : kKinds) {
    if (name == one.key || name == one.class_name) return one.kind;
  }
  fail("unknown solver '{}'; use one of {}", name, fmt::join(solver_names(), ", "));
}

const char* solver_name(SolverKind kind) {
  for (const KindName& one : kKinds)
    if (one.kind == kind) return one.key;
  ZT_CHECK(false, "unknown kind of solver");
}

void Solver::set_levels(NoiseLevels levels) {
  timesteps_ = std::move(levels.timesteps);
  sigmas_ = std::move(levels.sigmas);
}

void Solver::check_state(const SolverState& state, size_t size, size_t counters, size_t arrays) const {
  if (state.next < 1 || state.next > steps()) fail("the state of a solver is after step {} of {}", state.next, steps());
  if (state.counters.size() != counters || state.arrays.size() != arrays) {
    fail("the state of a solver has {} counters and {} arrays instead of {} and {}", state.counters.size(),
         state.arrays.size(), counters, arrays);
  }
  for (const std::vector<float>& array : state.arrays)
    if (array.size() != size) fail("the state of a solver has {} values instead of {}", array.size(), size);
}

std::unique_ptr<Solver> Solver::create(const SolverConfig& asked) {
  constexpr double kMinShift = 1e-3, kMaxShift = 1e3;
  constexpr int64_t kMaxTrainTimesteps = 1'000'000;
  SolverConfig config = asked;
  if (config.num_train_timesteps < 1 || config.num_train_timesteps > kMaxTrainTimesteps) {
    fail("num_train_timesteps is {}, but must be from 1 to {}", config.num_train_timesteps, kMaxTrainTimesteps);
  }
  check_given_levels(config);
  const size_t given = config.sigmas.size() + config.timesteps.size();
  if (given > 0) config.steps = static_cast<int64_t>(given);
  if (config.steps < 1 || config.steps > config.num_train_timesteps) {
    fail("{} denoising steps are asked for, but the number must be from 1 to {}", config.steps,
         config.num_train_timesteps);
  }
  if (!(config.shift >= kMinShift && config.shift <= kMaxShift)) {
    fail("the flow shift is {}, but must be from {} to {}", config.shift, kMinShift, kMaxShift);
  }
  if (config.solver_order < 1 || config.solver_order > 2) {
    fail("solver_order is {}, but only 1 and 2 are supported", config.solver_order);
  }
  std::unique_ptr<Solver> solver = make(config);
  for (size_t i = 0; i + 1 < solver->sigmas_.size(); ++i) {
    if (solver->sigmas_[i] > solver->sigmas_[i + 1]) continue;
    fail("a flow shift of {} leaves no two of {} steps apart in float32; use a smaller shift or {}", config.shift,
         config.steps, given > 0 ? "levels that are further apart" : "fewer steps");
  }
  return solver;
}

}  // namespace zoetrope::sampling
