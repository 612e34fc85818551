// Step caches: which denoising steps need not run the whole model, because an earlier step's result is close enough.
// This is the decision alone, as pure arithmetic on numbers: no tensors, no model, no ranks. The denoising loop reuses
// the results. Two caches with equal inputs decide equally.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace zoetrope::sampling {

// What a step does.
enum class StepWork : uint8_t {
  kFull,             // runs the model
  kReuseResidual,    // embedding and head only: what all blocks together added at the last full step is added again
  kReuseVelocity,    // nothing: the last full step's velocity, guidance applied
  kConditionalOnly,  // the conditional branch; the unconditional one is that, plus the unconditional one of the last
                     // full step less the conditional one of the step before
};

// What a cache needs to know of a step besides its number: how far something has moved.
enum class StepDistance : uint8_t {
  kNone,
  kTimeEmbedding,   // mean |e − e′| / mean |e′| of the time embedding, e′ at the step before
  kTimeProjection,  // the same of its projection to the blocks' modulations
  kLatents,         // root mean square of x − x′ over all latents, x′ at the last full step
  kReuseError,  // relative L2 by which the last full step's guided velocity would have been off with the residual of
                // the full step before; below 0 where that is not known
};

// The steps of a run.
struct StepCount {
  int64_t steps = 0;
  int64_t first_expert = 0;  // of them, steps of the high-noise expert; all of them where there is one expert
  bool two_experts() const { return first_expert < steps; }
  double share_of_first() const { return static_cast<double>(first_expert) / static_cast<double>(steps); }
};

struct StepDecision {
  StepWork work = StepWork::kFull;
  // kConditionalOnly: weights of what is added to the conditional branch, of its low and of its high frequencies.
  double low = 1;
  double high = 1;
};

class StepCache {
 public:
  virtual ~StepCache() = default;
  virtual std::string name() const = 0;
  virtual StepWork reuse() const = 0;  // the work of its steps that are not full
  virtual StepDistance distance() const { return StepDistance::kNone; }
  // Steps come in order, each once; step 0 begins a new run. `time` is the timestep over num_train_timesteps, from 1 to
  // 0. `moved` is distance(), anything where that is kNone or no step has been full yet.
  virtual StepDecision decide(int64_t step, double time, double moved) = 0;
  // What it remembers from the steps so far: to go on with another cache of the same settings. restore() throws Error
  // for a list that cannot be this cache's.
  virtual std::vector<double> state() const { return {}; }
  virtual void restore(const std::vector<double>& state);

 protected:
  static void check_state(const std::vector<double>& state, size_t size);
};

// Z. Ma et al., "MagCache: Fast Video Generation with Magnitude-Aware Cache", 2025. The residual of all blocks changes
// its magnitude from step to step by a ratio that was measured once for a model: how far the product of the ratios
// since the last full step is from 1 says what reusing that step's residual costs.
struct MagCacheSettings {
  std::vector<double> ratios;  // conditional and unconditional in turn, [2n] for n steps; resampled where n ≠ N
  double threshold = 0.12;     // of the errors added up since the last full step; 0: no step is skipped
  int64_t max_skips = 2;       // in a row
  double retention = 0.2;      // share of each expert's steps, from its first, that always run
};
// Of models with two experts that nothing else was published for.
inline constexpr double kMagThresholdOfTwoExperts = 0.04;
std::unique_ptr<StepCache> make_mag_cache(const StepCount& count, const MagCacheSettings& settings);

// Element i of the result is of[round(linspace(0, size − 1, count)[i])], halves to even, for the conditional and the
// unconditional ratios each.
std::vector<double> resample_ratios(const std::vector<double>& of, int64_t steps);

// F. Liu et al., "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", 2024. A polynomial that was
// fitted for a model says from the change of the time embedding how much the residual changes.
struct TeaCacheSettings {
  std::vector<double> coefficients;  // highest power first
  double threshold = 0.1;            // of the changes added up since the last full step; 0: no step is skipped
  // The variant "use_ret_steps": the first five steps run and the projection is compared; without it the first and the
  // last run and the embedding is. Each has coefficients of its own.
  bool retention_steps = false;
};
std::unique_ptr<StepCache> make_tea_cache(const StepCount& count, const TeaCacheSettings& settings);

// "SenCache: Sensitivity-aware caching" (arXiv 2602.24208) with sensitivities of 1: latents and time together have not
// moved further than the threshold.
struct SenCacheSettings {
  double threshold = 0.1;  // of the movements added up since the last full step; 0: no step is skipped
  int64_t max_skips = 3;   // in a row
  double retention = 0.3;  // share of steps, from the first, that always run
  double tail = 0.1;       // and of the last
};
std::unique_ptr<StepCache> make_sen_cache(const StepCount& count, const SenCacheSettings& settings);

// The guidance branch of Z. Lv et al., "FasterCache: Training-Free Video Diffusion Model Acceleration with High
// Quality", 2024: the difference of the two branches changes slowly, its low frequencies early in a run and its high
// ones late. As in MaxDiffusion the conditional branch in it is that of the step before, also where that reused: only
// the first step after a full one has both branches of one step (docs/spec/wan.md, section 10.3).
struct CfgCacheSettings {
  int64_t interval = 5;  // of full steps; 1: all are full
  double boost = 0.2;    // what one of the two weights is above 1
  int64_t height = 480;  // of the video in pixels: from 720 on fewer of the last steps are cached
};
std::unique_ptr<StepCache> make_cfg_cache(const StepCount& count, const CfgCacheSettings& settings);

// Measures itself: each full step also computes what its velocity would have been with the residual of the full step
// before. That error by the time between the two is taken to last, so that it says what later steps may reuse. The last
// step of an expert is full, so that every residual that was reused is measured at a step still further from it.
struct DriftCacheSettings {
  double threshold = 0.1;  // of the error of a step's guided velocity; 0: no step is skipped
  int64_t max_skips = 3;   // in a row
};
std::unique_ptr<StepCache> make_drift_cache(const StepCount& count, const DriftCacheSettings& settings);

// Null without settings.
using StepCacheSettings = std::variant<std::monostate, MagCacheSettings, TeaCacheSettings, SenCacheSettings,
                                       CfgCacheSettings, DriftCacheSettings>;
std::unique_ptr<StepCache> make_step_cache(const StepCount& count, const StepCacheSettings& settings);

}  // namespace zoetrope::sampling
