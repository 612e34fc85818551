// Names of solvers, of UniPC's grids and of step caches.
#pragma once

#include <cstdint>

namespace zoetrope::sampling {

enum class SolverKind : uint8_t {
  kUniPC,           // UniPCMultistepScheduler: flow prediction, bh2, with corrector; what all Wan checkpoints name
  kFlowMatchEuler,  // FlowMatchEulerDiscreteScheduler
  kDpmSolver,       // DPMSolverMultistepScheduler: dpmsolver++ with flow sigmas, midpoint
};

// UniPC's noise levels before the shift, of step i of N; results differ visibly. FlowMatchEuler has one grid of its
// own, and DPMSolver++ has kFrom999.
enum class SigmaGrid : uint8_t {
  kFromOne,  // 1 − 0.999·i/N, key `linspace`: diffusers from 0.37 on
  kFrom999,  // 0.999·(N − i)/N, key `legacy`: diffusers to 0.36, and the original solver
};

// What decides which steps reuse the results of earlier ones (docs/caches.md).
enum class StepCacheKind : uint8_t {
  kNone,
  kMag,    // MagCache: published ratios of residuals say which steps reuse the last residual of the blocks
  kTea,    // TeaCache: likewise, by how far the time embedding has moved
  kSen,    // SenCache: reuses the velocity while latents and timestep are close
  kCfg,    // FasterCache's guidance: some steps derive the unconditional branch from the conditional one
  kDrift,  // reuses the last residual of the blocks, by the error in the velocity that full steps measure
};

}  // namespace zoetrope::sampling
