#include "pipeline/settings/step_cache_options.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "models/sampling/published_caches.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

using sampling::StepCacheKind;

const std::vector<std::pair<std::string, StepCacheKind>> kCaches = {
    {"none", StepCacheKind::kNone}, {"mag", StepCacheKind::kMag}, {"tea", StepCacheKind::kTea},
    {"sen", StepCacheKind::kSen},   {"cfg", StepCacheKind::kCfg}, {"drift", StepCacheKind::kDrift}};

constexpr NumberRange kAnyNumber{-1e9, 1e9};
constexpr size_t kMaxNumbersBytes = size_t{1} << 20;

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

std::vector<double> tea_coefficients(const std::string& value) {
  std::vector<double> coefficients = given_numbers("cache_coefficients", value, sampling::models_with_coefficients());
  if (coefficients.empty()) fail("cache_coefficients={}: holds no numbers", value);
  return coefficients;
}

void replace_cache_files(GenerateOptions& o) {
  if (!o.cache_ratios.empty() && sampling::published_ratios(o.cache_ratios) == nullptr)
    o.cache_ratios = fmt::format("{}", fmt::join(mag_ratios(o.cache_ratios), ","));
  if (!o.cache_coefficients.empty() && sampling::published_coefficients(o.cache_coefficients) == nullptr)
    o.cache_coefficients = fmt::format("{}", fmt::join(tea_coefficients(o.cache_coefficients), ","));
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

}  // namespace zoetrope::pipeline
