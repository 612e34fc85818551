#include "pipeline/model_files/int8_budget.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/run_files.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/model_files/int8_calibration.h"

namespace zoetrope::pipeline {
namespace {

// What `zoetrope int8` measured of an expert. `key`: what asks for it.
Int8Errors measured_errors(const Int8Calibration& file, const ModelFolder& model, size_t expert, std::string_view key) {
  if (file.file().empty())
    fail(
        "{}: neither XDG_CACHE_HOME nor HOME names a folder with what `zoetrope int8` measured; name its file as "
        "int8_calibration=",
        key);
  const std::optional<Int8Errors> errors = file.find(transformer_identity(model, expert));
  if (!errors || errors->block_count() != model.experts[expert].config.block_count())
    fail(
        "{}: {} has no errors of the {} of {}, or is of another version; measure them with `zoetrope int8`, given the "
        "same model, LoRA files and strengths{}",
        key, file.file().string(), expert_name(static_cast<int>(expert)), model.folder.string(),
        key == "int8_layers=auto" ? ", or set int8_layers=inner" : "");
  return *errors;
}

// Limits for attention in int8 that may be chosen, the loosest first. Left out: tighter ones at which no head is in
// int8, and of limits with equal errors all but the tightest, because a looser one lets other inputs be off by more.
std::vector<AttentionLimit> attention_limits(const std::vector<Int8Errors>& experts, const Int8Calibration& file) {
  const std::vector<double>& known = experts.front().attention_limits;
  for (size_t i = 0; i < experts.size(); ++i) {
    if (experts[i].attention_limits.empty())
      fail(
          "attention_dtype=int8: {} has no error of it, because an older version measured the {}; measure it again "
          "with `zoetrope int8`, or leave attention_dtype=int8 out",
          file.file().string(), expert_name(static_cast<int>(i)));
    if (experts[i].attention_limits != known)
      fail(
          "attention_dtype=int8: {} has errors of the {} at other limits than of the {}; measure both again with "
          "`zoetrope int8`",
          file.file().string(), expert_name(static_cast<int>(i)), expert_name(0));
  }
  std::vector<AttentionLimit> limits;
  for (size_t limit = 0; limit < known.size(); ++limit) {
    const auto any = [&](const auto& holds) {
      return std::ranges::any_of(experts,
                                 [&](const Int8Errors& errors) { return std::ranges::any_of(errors.at, holds); });
    };
    const bool takes_heads = any([&](const auto& at) { return !at.attention[limit].zero(); });
    if (limit > 0 && !takes_heads) break;
    const bool differs = any([&](const auto& at) { return at.attention[limit] != at.attention[limit - 1]; });
    if (limit > 0 && !differs) limits.pop_back();
    limits.emplace_back(limit);
  }
  return limits;
}

// By each expert's errors: blocks of int8_layers=auto, and what they and int8 attention spend of the budget.
struct Int8Spending {
  std::vector<Int8Choice> experts = {};

  static Int8Spending of(const std::vector<Int8Errors>& errors, const std::array<double, 2>& guidance, double budget,
                         bool blocks, AttentionLimit attention) {
    Int8Spending spending;
    for (size_t i = 0; i < errors.size(); ++i)
      spending.experts.push_back(blocks
                                     ? choose_int8_blocks(errors[i], guidance[i], budget, attention)
                                     : Int8Choice{{}, predicted_error(errors[i], guidance[i], {}, attention.value())});
    return spending;
  }
  size_t largest() const {
    return static_cast<size_t>(std::ranges::max_element(experts, {}, &Int8Choice::error) - experts.begin());
  }
  double error() const { return experts[largest()].error; }
};

// Says the least that a budget can be.
[[noreturn]] void refuse_budget(const GenerateOptions& options, const std::vector<Int8Errors>& errors,
                                const std::vector<AttentionLimit>& limits, const Int8Calibration& file) {
  const std::array<double, 2> guidance = guidance_of(options);
  const bool blocks = options.dtype == DType::kI8;
  std::vector<Int8Spending> spendings;
  for (const AttentionLimit limit : limits) spendings.push_back(Int8Spending::of(errors, guidance, 0, blocks, limit));
  const Int8Spending& least = *std::ranges::min_element(spendings, {}, &Int8Spending::error);
  const size_t expert = least.largest();
  const std::string what =
      fmt::format("changes the velocity of the {} by {} {}, by {}", expert_name(static_cast<int>(expert)),
                  at_least(least.error()), guidance_text(guidance[expert]), file.file().string());
  if (!blocks)
    fail(
        "budget={}: attention_dtype=int8 alone {}; set the budget to more than that, or leave attention_dtype=int8 out",
        options.budget.value(), what);
  const std::string given =
      options.budget
          ? fmt::format("budget={}", *options.budget)
          : fmt::format("int8_layers=auto: no budget is set, and {} of one forward is too little", kDefaultInt8Budget);
  fail("{}: one block in int8{} {}; set budget= to that, or dtype=bf16", given,
       limits.front() ? " and attention in int8" : " alone", what);
}

}  // namespace

void spend_budget(const GenerateOptions& options, ModelFolder& model) {
  const attention::StrategyOptions& strategy = options.strategy;
  const bool attention = strategy.attention_dtype == attention::AttentionDtype::kInt8;
  const bool blocks = options.dtype == DType::kI8;
  attention::check_attention_dtype(strategy.attention_dtype, activation_dtype(options));
  if (attention && strategy.attention_int8_limit)
    fail("attention_int8_limit={}: {} chooses it; leave one of the two out", *strategy.attention_int8_limit,
         options.budget ? "budget=" : "int8_layers=auto");
  const Int8Calibration file = Int8Calibration::named(options.int8_calibration);
  if (!options.int8_calibration.empty() && !is_there(file.file()))
    fail("int8_calibration={}: there is no such file; `zoetrope int8` writes it", options.int8_calibration);
  std::vector<Int8Errors> errors;
  for (size_t i = 0; i < model.experts.size(); ++i)
    errors.push_back(
        measured_errors(file, model, i, blocks ? "int8_layers=auto" : "attention_dtype=int8 with a budget"));
  const auto limits = attention ? attention_limits(errors, file) : std::vector<AttentionLimit>(1);
  const double budget = options.budget.value_or(kDefaultInt8Budget);
  const std::array<double, 2> guidance = options.budget ? guidance_of(options) : std::array<double, 2>{1, 1};
  for (const AttentionLimit limit : limits) {
    Int8Spending spending = Int8Spending::of(errors, guidance, budget, blocks, limit);
    if (!(spending.error() <= budget)) continue;
    if (limit) model.attention_int8_limit = errors.front().attention_limits[*limit];
    for (size_t i = 0; i < model.experts.size(); ++i) {
      model.experts[i].config.int8_blocks = std::move(spending.experts[i].blocks);
      model.experts[i].int8_errors = std::move(errors[i]);
      model.experts[i].attention_limit = limit;
    }
    return;
  }
  refuse_budget(options, errors, limits, file);
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
    if (o.cache == sampling::StepCacheKind::kDrift)
      o.cache_threshold = std::sqrt(std::max(0.0, *o.budget * *o.budget - spent * spent));
  }
  o.budget.reset();
  o.int8_calibration.clear();
  return o;
}

}  // namespace zoetrope::pipeline
