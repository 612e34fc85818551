#include "pipeline/predicted_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "pipeline/stages/phases.h"

namespace zoetrope::pipeline {
namespace {

constexpr int kNameColumn = 32;  // as in the timing summary
constexpr const char* kDenoise = "denoise";
constexpr const char* kWithin = "denoise: ";  // parts of it
constexpr const char* kComputing = "denoise: computing";
constexpr const char* kComputingAndWeights = "denoise: computing, weights";
constexpr const char* kDecode = "VAE decode";

bool within_denoise(const PredictedPart& part) { return part.part.rfind(kWithin, 0) == 0; }

double deviation(const PredictedPart& part) { return part.measured_seconds - part.predicted_seconds; }

// Against what was predicted, from ten times that as times; nothing where that is shown as nothing.
std::string relative(const PredictedPart& part) {
  constexpr double kShown = 0.0005, kManyTimes = 10;
  if (!(part.predicted_seconds >= kShown)) return "";
  const double times = part.measured_seconds / part.predicted_seconds;
  return times >= kManyTimes ? fmt::format("{:.0f} x", times) : fmt::format("{:+.0f} %", 100 * (times - 1));
}

}  // namespace

MeasuredRun measured_run(const trace::Timing& timing, const attention::Counters& attention, int64_t steps,
                         WeightsRead weights, Frames frames) {
  MeasuredRun measured;
  if (weights == WeightsRead::kFromFiles) measured.load = phases::seconds_of(timing, phases::kLoads);
  measured.text_encoder = timing.seconds(phases::kTextEncoder);
  measured.conditions = phases::seconds_of(timing, {phases::kImageEncoder, phases::kVaeEncode, phases::kFaceEncoder});
  measured.denoise = timing.seconds(phases::kDenoise);
  measured.exchange_wait = attention.ulysses.wait_seconds + attention.gather.wait_seconds;
  measured.ring_wait = attention.ring.wait_seconds;
  // Not the output's: how fast a film is written is not the planner's to say.
  if (frames == Frames::kDecoded)
    measured.vae = phases::seconds_of(timing, {phases::kDecodeCompute, phases::kDecodeRanks});
  measured.steps = steps;
  return measured;
}

std::vector<PredictedPart> predicted_parts(const planner::RunPrediction& predicted, const MeasuredRun& measured) {
  std::vector<PredictedPart> parts;
  if (measured.load) parts.push_back({"load", predicted.load, *measured.load});
  parts.push_back({"text encoder", predicted.text_encoder, measured.text_encoder});
  if (predicted.conditions > 0 || measured.conditions > 0)
    parts.push_back({"conditions", predicted.conditions, measured.conditions});
  parts.push_back({kDenoise, predicted.denoise, measured.denoise});
  ZT_CHECK(!predicted.step.ranks.empty());
  const planner::Breakdown& step = predicted.step.ranks.front();
  const auto steps = static_cast<double>(measured.steps);
  // Where a rank waits for others that have more to do, it waits in what it exchanges with them.
  const bool exchanges = step.exposed_exchange > 0 || measured.exchange_wait > 0;
  const double exchange = steps * (step.exposed_exchange + (exchanges ? step.idle : 0));
  const double ring = steps * (step.exposed_ring + (exchanges ? 0 : step.idle));
  const auto add = [&](const std::string& name, double before, double after) {
    if (before > 0 || after > 0) parts.push_back({name, before, after});
  };
  // What a run waits for weights is not measured apart.
  add(step.weights > 0 ? kComputingAndWeights : kComputing, predicted.denoise - exchange - ring,
      measured.denoise - measured.exchange_wait - measured.ring_wait);
  add("denoise: waiting for the exchange", exchange, measured.exchange_wait);
  add("denoise: waiting for the ring", ring, measured.ring_wait);
  if (measured.vae) parts.push_back({kDecode, predicted.vae, *measured.vae});
  return parts;
}

bool far_faster(const std::vector<PredictedPart>& parts) {
  constexpr double kFar = 1.5, kLeastSeconds = 1;
  return std::any_of(parts.begin(), parts.end(), [](const PredictedPart& part) {
    return (part.part == kComputing || part.part == kDecode) && part.predicted_seconds >= kLeastSeconds &&
           part.predicted_seconds >= kFar * part.measured_seconds;
  });
}

std::string predicted_total_text(const planner::RunPrediction& predicted, WeightsRead weights, double one_rank) {
  double total = 0;
  std::string parts;
  const auto add = [&](const char* name, double seconds) {
    if (seconds <= 0) return;
    total += seconds;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, duration_text(seconds));
  };
  if (weights == WeightsRead::kFromFiles) add("load", predicted.load);
  add("text encoder", predicted.text_encoder);
  add("conditions", predicted.conditions);
  add(kDenoise, predicted.denoise);
  add("VAE decode", predicted.vae);
  add("denoise on one rank", one_rank);
  return fmt::format("Predicted {} in all: {}", duration_text(total), parts);
}

std::string largest_deviation(const std::vector<PredictedPart>& parts) {
  const PredictedPart* farthest = nullptr;
  for (const PredictedPart& part : parts) {
    if (part.part == kDenoise) continue;
    if (farthest == nullptr || std::abs(deviation(part)) > std::abs(deviation(*farthest))) farthest = &part;
  }
  if (farthest == nullptr) return "";
  const std::string share = relative(*farthest);
  return fmt::format("{}, {} {} than predicted{}", farthest->part, duration_text(std::abs(deviation(*farthest))),
                     deviation(*farthest) < 0 ? "less" : "more", share.empty() ? "" : fmt::format(" ({})", share));
}

std::string predicted_text(const std::vector<PredictedPart>& parts, int64_t steps) {
  std::string text = fmt::format("{:<{}}  predicted     measured\n", "Prediction", kNameColumn);
  for (const PredictedPart& part : parts) {
    const bool inner = within_denoise(part);
    const int indent = inner ? 4 : 2;
    const std::string name = inner ? part.part.substr(std::string(kWithin).size()) : part.part;
    text += fmt::format("{:{}}{:<{}} {:>10.3f} s {:>10.3f} s   {:>6}", "", indent, name, kNameColumn - indent,
                        part.predicted_seconds, part.measured_seconds, relative(part));
    const auto count = static_cast<double>(steps);
    if (part.part == kDenoise) {
      text +=
          fmt::format("   a step {:.3f} s, {:.3f} s", part.predicted_seconds / count, part.measured_seconds / count);
    }
    text += '\n';
  }
  const std::string deviation = largest_deviation(parts);
  return deviation.empty() ? text : fmt::format("{}  Largest deviation: {}\n", text, deviation);
}

}  // namespace zoetrope::pipeline
