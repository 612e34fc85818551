#include "pipeline/step_cache_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/index_range.h"
#include "base/input_file.h"
#include "models/sampling/published_caches.h"
#include "pipeline/generate_options.h"
#include "pipeline/plan.h"

namespace zoetrope::pipeline {
namespace {

using sampling::StepCacheKind;

const std::vector<std::pair<std::string, StepCacheKind>> kCaches = {
    {"none", StepCacheKind::kNone}, {"mag", StepCacheKind::kMag}, {"tea", StepCacheKind::kTea},
    {"sen", StepCacheKind::kSen},   {"cfg", StepCacheKind::kCfg}, {"drift", StepCacheKind::kDrift}};

constexpr NumberRange kAnyNumber{-1e9, 1e9};
constexpr size_t kMaxNumbersBytes = size_t{1} << 20;

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

// The numbers that a key gives: written out, or in a file as a list or a JSON array.
std::vector<double> given_numbers(const char* key, const std::string& value, const std::string& published) {
  std::string text = value;
  std::error_code none;
  if (std::filesystem::exists(value, none)) text = read_file(value, kMaxNumbersBytes);
  try {
    return parse_numbers(text, kAnyNumber);
  } catch (const Error& error) {
    fail("{}={}: neither a model that something was published for ({}), nor a file or list of numbers: {}", key, value,
         published, error.what());
  }
}

std::string_view model_of(const GenerateOptions& o, const ModelFolder& model) {
  return model.experts[0].config.published_name(std::ssize(model.experts), std::min(o.height, o.width));
}

std::vector<double> mag_ratios(const std::string& value) {
  std::vector<double> ratios = given_numbers("cache_ratios", value, sampling::models_with_ratios());
  if (ratios.empty() || ratios.size() % 2 != 0) {
    fail("cache_ratios={}: holds {} numbers, but must hold two a step: conditional and unconditional in turn", value,
         ratios.size());
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (ratios[i] <= 0) fail("cache_ratios={}: value {} is {}, but must be above 0", value, i + 1, ratios[i]);
  }
  return ratios;
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
    settings.coefficients =
        given_numbers("cache_coefficients", o.cache_coefficients, sampling::models_with_coefficients());
    if (settings.coefficients.empty()) fail("cache_coefficients={}: holds no number", o.cache_coefficients);
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

const char* step_cache_name(const GenerateOptions& options) {
  return kCaches[static_cast<size_t>(options.cache)].first.c_str();
}

void describe_step_cache_options(OptionSet& set, GenerateOptions& o) {
  set.choice("cache", o.cache, kCaches,
             "step cache: MagCache, TeaCache, SenCache, CFG cache, drift cache (docs/caches.md)")
      .number("cache_threshold", o.cache_threshold, {0, 1000},
              "how far reused results may be off, as the cache measures it (mag, tea, sen, drift); 0 reuses nothing; "
              "unset: as published; drift: 0.1")
      .integer("cache_max_skips", o.cache_max_skips, {0, 1000},
               "consecutive steps that may reuse (mag: 2, sen and drift: 3)")
      .number("cache_retention", o.cache_retention, {0, 1},
              "share of the first steps that always compute (mag: 0.2 of each expert's, sen: 0.3)")
      .text("cache_ratios", o.cache_ratios,
            "mag: magnitude ratios, conditional and unconditional in turn: a list, a file, or the name of a published "
            "model; unset: this model's")
      .text(
          "cache_coefficients", o.cache_coefficients,
          "tea: polynomial, highest power first: a list, a file, or the name of a published model; unset: this model's")
      .flag("cache_retention_steps", o.cache_retention_steps,
            "tea: always compute the first five steps and compare the projected time embedding")
      .integer("cache_interval", o.cache_interval, {1, 1000},
               "cfg: both guidance branches are computed every n-th step; 1 reuses nothing; unset: 5")
      .flag("cache_compare", o.cache_compare,
            "denoise without the cache first, and print the relative L2 of velocities and latents and the time saved")
      .alias("teacache_thresh", "cache_threshold")
      .alias("use_ret_steps", "cache_retention_steps");
}

void replace_cache_files(GenerateOptions& o) {
  if (!o.cache_ratios.empty() && sampling::published_ratios(o.cache_ratios) == nullptr)
    o.cache_ratios = fmt::format("{}", fmt::join(mag_ratios(o.cache_ratios), ","));
  if (o.cache_coefficients.empty() || sampling::published_coefficients(o.cache_coefficients) != nullptr) return;
  const std::vector<double> numbers =
      given_numbers("cache_coefficients", o.cache_coefficients, sampling::models_with_coefficients());
  if (numbers.empty()) fail("cache_coefficients={}: holds no numbers", o.cache_coefficients);
  o.cache_coefficients = fmt::format("{}", fmt::join(numbers, ","));
}

std::optional<sampling::StepWork> step_cache_reuse(const GenerateOptions& options) {
  switch (options.cache) {
    case StepCacheKind::kNone:
      return std::nullopt;
    case StepCacheKind::kMag:
    case StepCacheKind::kTea:
    case StepCacheKind::kDrift:
      return sampling::StepWork::kReuseResidual;
    case StepCacheKind::kSen:
      return sampling::StepWork::kReuseVelocity;
    case StepCacheKind::kCfg:
      return sampling::StepWork::kConditionalOnly;
  }
  ZT_CHECK(false, "unknown kind of step cache");
}

bool computes_branches_in_turn(const GenerateOptions& options) {
  return step_cache_reuse(options) == sampling::StepWork::kConditionalOnly;
}

sampling::StepCount step_count(const RunPlan& plan) {
  sampling::StepCount count;
  const std::unique_ptr<sampling::Solver> solver = sampling::Solver::create(plan.solver);
  count.steps = solver->steps();
  for (const float timestep : solver->timesteps()) count.first_expert += plan.expert_at(timestep) == 0 ? 1 : 0;
  return count;
}

namespace {

// Of the budget, by the expert that spends the most. A model that is open may have chosen for another guidance.
double int8_spent(const GenerateOptions& o, const ModelFolder& model) {
  double most = 0;
  for (size_t i = 0; i < model.experts.size(); ++i) {
    const double spent = model.experts[i].int8_error(guidance_of(o)[i]).value_or(0);
    const bool second = i == 1 && o.guidance_scale > 1 && o.guidance_scale_2;
    if (!(spent <= *o.budget))
      fail(
          "guidance_scale{}={}: int8 then changes the velocity of the {} by {}, more than budget={}, which was spent "
          "for other guidance; ask for less, or open the model for this one",
          second ? "_2" : "", second ? *o.guidance_scale_2 : o.guidance_scale, expert_name(static_cast<int>(i)),
          at_least(spent), *o.budget);
    most = std::max(most, spent);
  }
  return most;
}

}  // namespace

GenerateOptions with_choices(GenerateOptions o, const ModelFolder& model) {
  if (spends_measured_errors(o) && model.attention_int8_limit)
    o.strategy.attention_int8_limit = model.attention_int8_limit;
  if (o.dtype == DType::kI8 && o.int8_layers == kChosenLayers) o.int8_layers = model.int8_layers();
  if (o.budget) {
    check_cache_within_budget(o);
    const double spent = int8_spent(o, model);
    // Errors add up as squares.
    if (o.cache == StepCacheKind::kDrift)
      o.cache_threshold = std::sqrt(std::max(0.0, *o.budget * *o.budget - spent * spent));
  }
  o.budget.reset();
  o.int8_calibration.clear();
  return o;
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
