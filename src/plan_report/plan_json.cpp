#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "plan_report/plan_report.h"

namespace zoetrope::plan_report {
namespace {

using Json = nlohmann::ordered_json;
using planner::Candidate;

Json breakdown_json(const planner::Breakdown& b) {
  Json json = Json::object();
  for (const planner::BreakdownPart& part : planner::kBreakdownParts) json[part.key] = b.*part.seconds;
  return json;
}

Json memory_json(const planner::MemoryPlan& plan) {
  Json phases = Json::array();
  for (const planner::MemoryPhase& phase : plan.phases) {
    Json items = Json::object();
    for (const planner::MemoryItem& item : phase.items) items[item.name] = item.bytes.count();
    phases.push_back({{"phase", phase.name},
                      {"component", phase.component},
                      {"bytes", phase.total().count()},
                      {"items", std::move(items)}});
  }
  return phases;
}

Json value_json(int value) { return value; }
Json value_json(parallel::Direction value) { return direction_name(value); }

Json candidate_json(const Candidate& c, const planner::HardwareProfile& hardware) {
  const parallel::ParallelLayout& layout = c.configuration.layout;
  Json json{{"ranks", c.ranks()},          {"data", layout.data},     {"ulysses", layout.context.ulysses},
            {"ring", layout.context.ring}, {"tensor", layout.tensor}, {"verdict", planner::verdict_name(c.verdict)},
            {"reason", c.reason}};
  if (c.verdict == planner::Verdict::kIllegal) return json;
  layout.context.for_each([&](const char* name, auto value) { json[name] = value_json(value); });
  if (!layout.context.shard_weights.empty()) json["shard_weights"] = layout.context.shard_weights;
  json["softmax"] = softmax_name(c.configuration.softmax);
  // 0: the library's own choice.
  json["block_q"] = c.configuration.block_q > 0 ? c.configuration.block_q : hardware.block_q;
  json["vae_ranks"] = layout.vae_ranks;
  json["weight_shards"] = layout.weight_shards;
  json["simulated"] = c.simulated;
  json["seconds_total"] = c.time.total();
  json["seconds_load"] = c.time.load;
  json["seconds_text_encoder"] = c.time.text_encoder;
  if (c.time.conditions > 0) json["seconds_conditions"] = c.time.conditions;
  json["seconds_denoise"] = c.time.denoise;
  json["seconds_vae"] = c.time.vae;
  json["seconds_per_step"] = c.time.step.seconds;
  json["breakdown"] = breakdown_json(c.time.step.critical());
  json["limited_by"] = c.time.step.limited_by();
  json["value"] = c.value;
  json["bytes_per_rank"] = c.bytes_per_rank.count();
  json["ranks_per_process"] = c.ranks_here;
  json["memory"] = memory_json(c.memory);
  return json;
}

Json systems_json(const PlanPart& part) {
  Json systems = Json::object();
  for (const OtherSystem& system : part.systems) {
    systems[system.name] = {{"possible", !system.flags.empty()}, {"flags", system.flags}, {"note", system.note}};
  }
  return systems;
}

Json doubts_json(const PlanPart& part) {
  Json doubts = Json::array();
  for (const planner::Doubt& doubt : part.doubts.best) {
    const parallel::ParallelLayout& layout = doubt.best.layout;
    doubts.push_back({{"figure", doubt.figure},
                      {"assumed", doubt.assumed},
                      {"instead", doubt.instead},
                      {"data", layout.data},
                      {"ulysses", layout.context.ulysses},
                      {"ring", layout.context.ring},
                      {"gather", layout.context.gather},
                      {"tensor", layout.tensor},
                      {"configuration", doubt.best.text()},
                      {"ahead", doubt.ahead}});
  }
  return doubts;
}

Json part_json(const PlanPart& part) {
  Json candidates = Json::array();
  for (size_t i = 0; i < part.ranking.candidates.size(); ++i) {
    candidates.push_back(candidate_json(part.ranking.candidates[i], part.hardware));
    candidates.back()["reason"] = reason_text(part, i);
  }
  Json json{{"ranks", part.ranks},
            {"memory_limit_bytes", part.memory_limit.count()},
            {"fits", part.ranking.best() != nullptr}};
  if (part.ranking.best() != nullptr) {
    json["runs"] = part.runs;
    json["ranks_per_run"] = part.ranks / part.runs;
    json["seconds_per_video"] = part.seconds;
    json["videos_per_hour"] = part.videos_per_hour;
    json["speed_up"] = part.speed_up;
    json["efficiency"] = part.efficiency;
    json["device_seconds"] = part.device_seconds;
    json["price"] = part.price > 0 ? Json(part.price) : Json();
    if (part.step_seconds_as_computed) json["step_seconds_as_computed"] = *part.step_seconds_as_computed;
    json["settings"] = part.settings;
    json["other_systems"] = systems_json(part);
    json["doubts"] = doubts_json(part);
    json["explanation"] = part.explanation;
  } else {
    json["least_that_fits"] = part.ranking.least_that_fits;
  }
  json["left_out"] = part.ranking.left_out;
  json["candidates"] = std::move(candidates);
  return json;
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  Json what_if = Json::object();
  for (const auto& [key, value] : report.what_if) what_if[key] = value;
  Json plans = Json::array();
  for (const PlanPart& part : report.parts) plans.push_back(part_json(part));
  const Json json{{"title", report.title},
                  {"hardware", report.hardware.name},
                  {"what_if", std::move(what_if)},
                  {"objective", planner::objective_name(report.objective)},
                  {"model_error", report.hardware.model_error},
                  {"tokens", report.work.tokens},
                  {"batch_size", report.work.videos},
                  {"steps", report.work.steps},
                  {"notes", report.notes},
                  {"answer", report.answer},
                  {"plans", std::move(plans)}};
  return json_text(json, 2) + "\n";
}

}  // namespace zoetrope::plan_report
