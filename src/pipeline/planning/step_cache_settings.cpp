#include "pipeline/planning/step_cache_settings.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/index_range.h"
#include "models/sampling/published_caches.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

using sampling::StepCacheKind;

// A key and the caches that it belongs to.
struct CacheKey {
  const char* name;
  const char* caches;  // "mag, tea"
  bool (*given)(const GenerateOptions&);
};
constexpr CacheKey kKeys[] = {
    {"cache_threshold", "mag, tea, sen, drift", [](const GenerateOptions& o) { return o.cache_threshold.has_value(); }},
    {"cache_max_skips", "mag, sen, drift", [](const GenerateOptions& o) { return o.cache_max_skips.has_value(); }},
    {"cache_retention", "mag, sen", [](const GenerateOptions& o) { return o.cache_retention.has_value(); }},
    {"cache_ratios", "mag", [](const GenerateOptions& o) { return !o.cache_ratios.empty(); }},
    {"cache_coefficients", "tea", [](const GenerateOptions& o) { return !o.cache_coefficients.empty(); }},
    {"cache_retention_steps", "tea", [](const GenerateOptions& o) { return o.cache_retention_steps; }},
    {"cache_interval", "cfg", [](const GenerateOptions& o) { return o.cache_interval.has_value(); }},
    {"cache_compare", "mag, tea, sen, cfg, drift", [](const GenerateOptions& o) { return o.cache_compare; }},
};

void refuse_keys_of_others(const GenerateOptions& o) {
  for (const CacheKey& key : kKeys) {
    if (!key.given(o) || std::string_view(key.caches).find(step_cache_name(o)) != std::string_view::npos) continue;
    fail("{}: means nothing with cache={}; it belongs to cache={}", key.name, step_cache_name(o), key.caches);
  }
}

std::string_view model_of(const GenerateOptions& o, const ModelFolder& model) {
  return model.experts[0].config.published_name(std::ssize(model.experts), std::min(o.height, o.width));
}

sampling::MagCacheSettings mag_settings(const GenerateOptions& o, const ModelFolder& model) {
  sampling::MagCacheSettings settings;
  const std::string name(o.cache_ratios.empty() ? model_of(o, model) : o.cache_ratios);
  if (const sampling::PublishedRatios* published = sampling::published_ratios(name)) {
    settings.ratios.assign(published->ratios.begin(), published->ratios.end());
    settings.threshold = published->threshold;
  } else if (o.cache_ratios.empty()) {
    fail(
        "cache=mag: no ratios were published for this model; there are some for {}: give one of these or your own as "
        "cache_ratios=NAME, FILE or list",
        sampling::models_with_ratios());
  } else {
    settings.ratios = mag_ratios(o.cache_ratios);
    if (model.experts.size() == 2) settings.threshold = sampling::kMagThresholdOfTwoExperts;
  }
  settings.threshold = o.cache_threshold.value_or(settings.threshold);
  settings.max_skips = o.cache_max_skips.value_or(settings.max_skips);
  settings.retention = o.cache_retention.value_or(settings.retention);
  return settings;
}

sampling::TeaCacheSettings tea_settings(const GenerateOptions& o, const ModelFolder& model) {
  sampling::TeaCacheSettings settings;
  settings.retention_steps = o.cache_retention_steps;
  const std::string name(o.cache_coefficients.empty() ? model_of(o, model) : o.cache_coefficients);
  if (const sampling::PublishedCoefficients* published = sampling::published_coefficients(name)) {
    const bool projection = settings.retention_steps;
    settings.coefficients = projection ? published->projection : published->embedding;
    settings.threshold = projection ? published->projection_threshold : published->embedding_threshold;
  } else if (o.cache_coefficients.empty()) {
    fail(
        "cache=tea: no coefficients were published for this model; there are some for {}: give one of these or your "
        "own as cache_coefficients=NAME, FILE or list",
        sampling::models_with_coefficients());
  } else {
    settings.coefficients = tea_coefficients(o.cache_coefficients);
  }
  settings.threshold = o.cache_threshold.value_or(settings.threshold);
  return settings;
}

sampling::SenCacheSettings sen_settings(const GenerateOptions& o) {
  sampling::SenCacheSettings settings;
  settings.threshold = o.cache_threshold.value_or(settings.threshold);
  settings.max_skips = o.cache_max_skips.value_or(settings.max_skips);
  settings.retention = o.cache_retention.value_or(settings.retention);
  return settings;
}

sampling::CfgCacheSettings cfg_settings(const GenerateOptions& o) {
  sampling::CfgCacheSettings settings;
  settings.interval = o.cache_interval.value_or(settings.interval);
  settings.height = o.height;
  return settings;
}

sampling::DriftCacheSettings drift_settings(const GenerateOptions& o) {
  sampling::DriftCacheSettings settings;
  settings.threshold = o.cache_threshold.value_or(settings.threshold);
  settings.max_skips = o.cache_max_skips.value_or(settings.max_skips);
  return settings;
}

void require_guidance(const GenerateOptions& o, const RunPlan& plan) {
  if (!plan.guided) {
    fail(
        "cache={}: guidance is off (guidance_scale={}), and step caches are made for guided runs; set guidance_scale "
        "above 1 or leave the cache out",
        step_cache_name(o), o.guidance_scale);
  }
  if (plan.guidance[1] <= 1) {
    fail(
        "cache={}: step caches are made for guided runs, and guidance_scale_2={} does not guide the low-noise expert; "
        "set it above 1 or leave the cache out",
        step_cache_name(o), plan.guidance[1]);
  }
}

}  // namespace

sampling::StepCount step_count(const RunPlan& plan) {
  sampling::StepCount count;
  const std::unique_ptr<sampling::Solver> solver = sampling::Solver::create(plan.solver);
  count.steps = solver->steps();
  for (const float timestep : solver->timesteps()) count.first_expert += plan.expert_at(timestep) == 0 ? 1 : 0;
  return count;
}

int64_t priced_steps(const RunPlan& plan) {
  const std::unique_ptr<sampling::StepCache> cache = sampling::make_step_cache(plan.step_count, plan.step_cache);
  if (cache == nullptr || cache->distance() != sampling::StepDistance::kNone) return plan.total_steps();
  constexpr int64_t kBranches = 2;
  int64_t branches = 0;
  for (int64_t step = 0; step < plan.steps(); ++step) {
    const sampling::StepWork work = cache->decide(step, 0, 0).work;
    if (work == sampling::StepWork::kFull) branches += kBranches;
    if (work == sampling::StepWork::kConditionalOnly) branches += 1;
  }
  return ceil_div(branches, kBranches) * plan.segments.count;
}

sampling::StepCacheSettings step_cache_settings(const GenerateOptions& o, const ModelFolder& model,
                                                const RunPlan& plan) {
  refuse_keys_of_others(o);
  if (o.cache == StepCacheKind::kNone) return {};
  require_guidance(o, plan);
  switch (o.cache) {
    case StepCacheKind::kMag:
      return mag_settings(o, model);
    case StepCacheKind::kTea:
      return tea_settings(o, model);
    case StepCacheKind::kSen:
      return sen_settings(o);
    case StepCacheKind::kDrift:
      return drift_settings(o);
    default:
      return cfg_settings(o);
  }
}

}  // namespace zoetrope::pipeline
