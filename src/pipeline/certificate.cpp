#include "pipeline/certificate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "zoetrope/version.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "pipeline/settings/run_identity.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 3;  // 1 and 2 did not compare every byte of weights and LoRA files

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

uint64_t hash_of(const std::string& text, const fs::path& file) {
  constexpr size_t kDigits = 16;
  uint64_t hash = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != kDigits || end.ec != std::errc() || end.ptr != text.data() + kDigits)
    fail("{}: latents.hash: '{}' is not a hash of {} digits; the file is damaged", file.string(), text, kDigits);
  return hash;
}

void require_same(const fs::path& file, const char* what, const std::map<std::string, std::string>& there,
                  const std::map<std::string, std::string>& here) {
  if (const std::vector<std::string> keys = differing(there, here); !keys.empty())
    fail("certificate={}: is of a run with other {}: {}", file.string(), what, fmt::join(keys, ", "));
}

// ‖a − b‖ / ‖b − noise‖ over the samples: relative to what the model has done.
double distance(const LatentsMark& a, const LatentsMark& b, const LatentsMark& noise) {
  double difference = 0, done = 0;
  for (size_t i = 0; i < b.sample.size(); ++i) {
    const double from = static_cast<double>(b.sample[i]);
    difference += std::pow(static_cast<double>(a.sample[i]) - from, 2);
    done += std::pow(from - static_cast<double>(noise.sample[i]), 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / done);
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
  write_file(file, exact_json_text(certificate, 2) + "\n");
}

Certificate read_certificate(const std::string& text, const fs::path& file) {
  const JsonObject json = JsonObject::parse(text, file.string());
  if (!json.has("zoetrope_certificate"))
    fail("certificate={}: exists but is not a certificate; name one, or a new file to write", file.string());
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
    mark.hash = hash_of(one.get<std::string>("hash"), file);
    mark.norm = one.get<double>("norm");
    for (const double value : one.get<std::vector<double>>("sample")) {
      mark.sample.push_back(static_cast<float>(value));
      if (!std::isfinite(mark.sample.back())) fail("{}: latents.sample: {} is not a float32", file.string(), value);
    }
    report.latents.push_back(std::move(mark));
  }
  const auto seed = report.run.settings.find("seed");
  if (seed == report.run.settings.end() || seed->second.starts_with('-') || report.latents.empty())
    fail("{}: has no seed or no latents; the file is damaged", file.string());
  return read;
}

void require_same_run(const Certificate& certificate, const RunIdentity& here, const std::string& weights) {
  const VerifyReport& there = certificate.report;
  require_same(certificate.file, "settings", there.run.settings, here.settings);
  require_same(certificate.file, "files", there.run.files, here.files);
  if (there.weights != weights)
    fail("certificate={}: is of other weights ({} there, {} here)", certificate.file.string(), there.weights, weights);
  if (there.outside > 0)
    fail("certificate={}: is of a run that left its bounds: {}", certificate.file.string(), there.first_outside);
}

std::string compare_with(const Certificate& certificate, const VerifyReport& here) {
  const VerifyReport& there = certificate.report;
  constexpr double kSaysNothing = 0.5;  // a run that did half as much would pass
  double furthest = 0, allowed = 0, most = 0;
  size_t same = 0, compared = 0;
  if (there.latents.size() != here.latents.size())
    fail("certificate={}: has the latents of {} steps, and this run {}", certificate.file.string(),
         there.latents.size(), here.latents.size());
  for (size_t i = 0; i < here.latents.size(); ++i) {
    if (there.latents[i].sample.size() != here.latents[i].sample.size())
      fail("certificate={}: has latents of another size", certificate.file.string());
    same += there.latents[i].hash == here.latents[i].hash ? 1 : 0;
    if (i == 0) {
      if (there.latents[0].hash != here.latents[0].hash)
        fail("certificate={}: begins with other noise", certificate.file.string());
      continue;
    }
    const double apart = distance(here.latents[i], there.latents[i], there.latents[0]);
    // Errors of steps are independent.
    allowed = here.step_bound * std::sqrt(static_cast<double>(i));
    if (!(apart <= allowed))
      fail(
          "certificate={}: after step {} the latents are {:.3g} (relative L2) from its, more than the {:.3g} that two "
          "correct runs can be apart",
          certificate.file.string(), i, apart, allowed);
    // The sample may miss a difference; what was added to the noise is no longer than both together.
    const double norms = std::abs(here.latents[i].norm - there.latents[i].norm);
    if (!(norms <= allowed * (there.latents[i].norm + there.latents[0].norm)))
      fail("certificate={}: after step {} the norm of the latents is {:.6g}, and there {:.6g}",
           certificate.file.string(), i, here.latents[i].norm, there.latents[i].norm);
    if (allowed >= kSaysNothing) continue;
    compared = i;
    most = allowed;
    furthest = std::max(furthest, apart);
  }
  const std::string who = fmt::format("{} ({}, {}, version {})", certificate.file.string(), there.layout,
                                      there.instruction_set, certificate.version);
  if (same == here.latents.size()) return fmt::format("Latents of every step have the same bits as in {}", who);
  const std::string nothing = fmt::format(
      "say nothing: those of two correct runs can be {:.2g} apart (relative L2 of what was added to the noise)",
      allowed);
  if (compared == 0) return fmt::format("Against {} the latents {}", who, nothing);
  const bool all = compared + 1 == here.latents.size();
  return fmt::format(
      "Of {} values of {} latents are at most {:.2g} (relative L2 of what was added to the noise) from those of {}, as "
      "another order of sums makes them; {:.2g} is the most that can be{}",
      here.latents.front().sample.size(), all ? "each step" : fmt::format("steps 1 to {}", compared), furthest, who,
      most, all ? "" : "; later ones " + nothing);
}

}  // namespace zoetrope::pipeline
