#include "pipeline/certificate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "zoetrope/version.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;

nlohmann::json json_of(const VerifyReport::Check& check) {
  nlohmann::json worst = nlohmann::json::array();
  for (const VerifiedValue& value : check.worst) {
    worst.push_back({{"tensor", value.tensor},
                     {"place", value.place},
                     {"relative_l2", value.relative_l2},
                     {"bound", value.bound},
                     {"max_abs", value.max_abs},
                     {"of_bound", value.of_bound}});
  }
  return {{"values", check.values}, {"worst", worst}};
}

std::map<std::string, std::string> texts(const JsonObject& object) {
  std::map<std::string, std::string> all;
  for (const std::string& key : object.keys()) all[key] = object.get<std::string>(key);
  return all;
}

void require_same(const fs::path& file, const char* what, const std::map<std::string, std::string>& there,
                  const std::map<std::string, std::string>& here) {
  std::map<std::string, std::string> all = there;
  all.insert(here.begin(), here.end());
  std::vector<std::string> differing;
  for (const auto& [key, unused] : all) {
    const auto a = there.find(key), b = here.find(key);
    if (a == there.end() || b == here.end() || a->second != b->second) differing.push_back(key);
  }
  if (!differing.empty())
    fail("certificate={}: is of a run with other {}: {}", file.string(), what, fmt::join(differing, ", "));
}

// Of the values that both have, ‖a − b‖ / ‖b‖.
double distance(const LatentsMark& a, const LatentsMark& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.sample.size(); ++i) {
    const double from = static_cast<double>(b.sample[i]);
    difference += std::pow(static_cast<double>(a.sample[i]) - from, 2);
    norm += from * from;
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace

void write_certificate(const VerifyReport& report, const fs::path& file) {
  nlohmann::json latents = nlohmann::json::array();
  for (const LatentsMark& mark : report.latents)
    latents.push_back({{"hash", fmt::format("{:016x}", mark.hash)}, {"norm", mark.norm}, {"sample", mark.sample}});
  nlohmann::json reused = nlohmann::json::object();
  for (const auto& [step, distance] : report.reused) reused[fmt::to_string(step)] = distance;
  const nlohmann::json certificate = {
      {"zoetrope_certificate", kFormat},
      {"version", version()},
      {"layout", report.layout},
      {"ranks", report.ranks},
      {"size", report.size},
      {"asked", report.reduced},
      {"dtype", report.dtype},
      {"instruction_set", report.instruction_set},
      {"settings", report.run.settings},
      {"files", report.run.files},
      {"weights", report.weights},
      {"reference", report.reference},
      {"one_rank", json_of(report.one_rank)},
      {"float64", json_of(report.float64)},
      {"float64_stages", report.stages},
      {"float64_stages_checked", report.stages_checked},
      {"float64_tokens", report.rows},
      {"reused", reused},
      {"latents", latents},
      {"step_bound", report.step_bound},
      {"outside", report.outside},
      {"first_outside", report.first_outside},
  };
  write_file(file, certificate.dump(2) + "\n");
}

Certificate read_certificate(const fs::path& file) {
  const JsonObject json = JsonObject::load(file);
  if (!json.has("zoetrope_certificate"))
    fail("certificate={}: is there and is no certificate; name one, or a new file to write", file.string());
  const int64_t format = json.get<int64_t>("zoetrope_certificate");
  if (format != kFormat)
    fail("certificate={}: has format {}, and this program reads {}; it is of another version ({})", file.string(),
         format, kFormat, json.get<std::string>("version", "unknown"));
  Certificate read;
  read.file = file;
  read.version = json.get<std::string>("version");
  VerifyReport& report = read.report;
  report.layout = json.get<std::string>("layout");
  report.ranks = static_cast<int>(json.get_between<int64_t>("ranks", 1, 1 << 20));
  report.run.settings = texts(json.object("settings"));
  report.run.files = texts(json.object("files"));
  report.weights = json.get<std::string>("weights");
  report.dtype = json.get<std::string>("dtype");
  report.instruction_set = json.get<std::string>("instruction_set");
  report.step_bound = json.get<double>("step_bound");
  report.outside = json.get<int64_t>("outside");
  report.first_outside = json.get<std::string>("first_outside");
  for (const JsonObject& one : json.objects("latents")) {
    LatentsMark mark;
    mark.hash = std::stoull(one.get<std::string>("hash"), nullptr, 16);
    mark.norm = one.get<double>("norm");
    for (const double value : one.get<std::vector<double>>("sample")) mark.sample.push_back(static_cast<float>(value));
    report.latents.push_back(std::move(mark));
  }
  return read;
}

void require_same_run(const Certificate& certificate, const RunIdentity& here) {
  const VerifyReport& there = certificate.report;
  require_same(certificate.file, "settings", there.run.settings, here.settings);
  require_same(certificate.file, "files", there.run.files, here.files);
  if (there.outside > 0)
    fail("certificate={}: is of a run that left its bounds: {}", certificate.file.string(), there.first_outside);
}

std::string compare_with(const Certificate& certificate, const VerifyReport& here) {
  const VerifyReport& there = certificate.report;
  if (there.weights != here.weights)
    fail("certificate={}: is of other weights ({} there, {} here)", certificate.file.string(), there.weights,
         here.weights);
  double furthest = 0;
  size_t same = 0;
  if (there.latents.size() != here.latents.size())
    fail("certificate={}: has the latents of {} steps, and this run {}", certificate.file.string(),
         there.latents.size(), here.latents.size());
  for (size_t i = 0; i < here.latents.size(); ++i) {
    if (there.latents[i].sample.size() != here.latents[i].sample.size())
      fail("certificate={}: has latents of another size", certificate.file.string());
    same += there.latents[i].hash == here.latents[i].hash ? 1 : 0;
    const double apart = distance(here.latents[i], there.latents[i]);
    // Errors of steps are independent. Beyond a half, values have nothing in common that could be told.
    const double allowed = std::min(0.5, here.step_bound * std::sqrt(static_cast<double>(i + 1)));
    if (!(apart <= allowed))
      fail(
          "certificate={}: after step {} the latents are {:.3g} (relative L2) from its, more than the {:.3g} that two "
          "correct runs can be apart",
          certificate.file.string(), i + 1, apart, allowed);
    furthest = std::max(furthest, apart);
  }
  const std::string who = fmt::format("{} ({}, {}, version {})", certificate.file.string(), there.layout,
                                      there.instruction_set, certificate.version);
  if (same == here.latents.size()) return fmt::format("Latents of every step have the same bits as in {}", who);
  return fmt::format("Latents are at most {:.2g} (relative L2) from those of {}; other sums, other bits", furthest,
                     who);
}

}  // namespace zoetrope::pipeline
