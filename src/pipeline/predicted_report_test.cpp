#include "pipeline/predicted_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

planner::RunPrediction prediction() {
  planner::RunPrediction run;
  run.load = 4;
  run.text_encoder = 2;
  run.denoise = 100;
  run.vae = 10;
  planner::Breakdown rank;
  rank.attention = 6;
  rank.linear = 3;
  rank.exposed_exchange = 0.5;
  rank.exposed_ring = 0.25;
  rank.idle = 0.25;
  run.step.ranks = {rank, planner::Breakdown{}};
  run.step.seconds = 10;
  return run;
}

MeasuredRun measured() {
  MeasuredRun run;
  run.load = 5;
  run.text_encoder = 2;
  run.denoise = 103;
  run.exchange_wait = 12;
  run.ring_wait = 2.5;
  run.vae = 9;
  run.steps = 10;
  return run;
}

const PredictedPart& part(const std::vector<PredictedPart>& parts, const std::string& name) {
  for (const PredictedPart& one : parts)
    if (one.part == name) return one;
  ADD_FAILURE() << "no part " << name;
  return parts.front();
}

TEST(PredictedReport, DenoisingIsComputingAndWaiting) {
  const std::vector<PredictedPart> parts = predicted_parts(prediction(), measured());
  ASSERT_EQ(parts.size(), 7U);
  // What is waited for ranks with more to do is waited in what is exchanged with them.
  EXPECT_DOUBLE_EQ(part(parts, "denoise: waiting for the exchange").predicted_seconds, 7.5);
  EXPECT_DOUBLE_EQ(part(parts, "denoise: waiting for the exchange").measured_seconds, 12);
  EXPECT_DOUBLE_EQ(part(parts, "denoise: waiting for the ring").predicted_seconds, 2.5);
  EXPECT_DOUBLE_EQ(part(parts, "denoise: computing").predicted_seconds, 90);
  EXPECT_DOUBLE_EQ(part(parts, "denoise: computing").measured_seconds, 88.5);
}

TEST(PredictedReport, ConditionsAreAPartWhereThereAreSome) {
  planner::RunPrediction run = prediction();
  run.conditions = 3;
  MeasuredRun times = measured();
  times.conditions = 4;
  const std::vector<PredictedPart> parts = predicted_parts(run, times);
  ASSERT_EQ(parts.size(), 8U);
  EXPECT_EQ(parts[2].part, "conditions");
  EXPECT_DOUBLE_EQ(parts[2].predicted_seconds, 3);
  EXPECT_DOUBLE_EQ(parts[2].measured_seconds, 4);
  EXPECT_DOUBLE_EQ(run.total(), prediction().total() + 3);
}

TEST(PredictedReport, TheLargestDeviationIsOneOfSeconds) {
  // The exchange is 4.5 s off; loading, a larger share of its own, 1 s.
  const std::string text = predicted_text(predicted_parts(prediction(), measured()), 10);
  EXPECT_THAT(text, HasSubstr("Largest deviation: denoise: waiting for the exchange, 4.5 s more than predicted "
                              "(+60 %)"));
  EXPECT_THAT(text, HasSubstr("a step 10.000 s, 10.300 s"));
  MeasuredRun other = measured();
  other.vae = 2;
  EXPECT_THAT(predicted_text(predicted_parts(prediction(), other), 10),
              HasSubstr("Largest deviation: VAE decode, 8 s less than predicted (-80 %)"));
}

TEST(PredictedReport, WhatIsManyTimesAsLongIsNotAPercentage) {
  const std::string text =
      predicted_text({{"load", 0.0001, 3}, {"text encoder", 0.02, 0.23}, {"VAE decode", 2, 3}}, 10);
  EXPECT_THAT(text, HasSubstr("0.230 s     12 x\n"));
  EXPECT_THAT(text, HasSubstr("3.000 s    +50 %\n"));
  EXPECT_THAT(text, HasSubstr("Largest deviation: load, 3 s more than predicted\n"));
}

TEST(PredictedReport, WhatWasNotDoneIsNotCompared) {
  MeasuredRun run = measured();
  run.load.reset();
  run.vae.reset();
  run.exchange_wait = run.ring_wait = 0;
  planner::RunPrediction alone = prediction();
  alone.step.ranks.front() = {};
  const std::string text = predicted_text(predicted_parts(alone, run), 10);
  for (const char* words : {"load", "VAE", "waiting"}) EXPECT_THAT(text, Not(HasSubstr(words)));
}

TEST(PredictedReport, TakesSecondsFromTheTimingSummary) {
  trace::Timing timing;
  timing.add("Load/transformer", 1);
  timing.add("Load/VAE", 2);
  timing.add("Inference/Conditioning/text encoder", 3);
  timing.add("Inference/Denoise", 4);
  timing.add("Inference/Denoise", 5);
  timing.add("Inference/VAE decode", 100);
  timing.add("Inference/VAE decode/compute", 6);
  timing.add("Inference/VAE decode/waiting for ranks", 1);
  timing.add("Inference/VAE decode/waiting for the output", 93);
  attention::Counters counters;
  counters.ulysses.wait_seconds = 0.5;
  counters.ring.wait_seconds = 0.25;
  const MeasuredRun run = measured_run(timing, counters, 2, WeightsRead::kFromFiles, Frames::kDecoded);
  EXPECT_EQ(run.load, 3);
  EXPECT_EQ(run.text_encoder, 3);
  EXPECT_EQ(run.denoise, 9);
  EXPECT_EQ(run.exchange_wait, 0.5);
  EXPECT_EQ(run.ring_wait, 0.25);
  EXPECT_EQ(run.vae, 7);
  const MeasuredRun formulas = measured_run(timing, counters, 2, WeightsRead::kNotRead, Frames::kNone);
  EXPECT_FALSE(formulas.load.has_value());
  EXPECT_FALSE(formulas.vae.has_value());
}

TEST(PredictedReport, FarFasterIsSaidOfComputingAlone) {
  const auto parts = [](double predicted, double measured, const char* name) {
    return std::vector<PredictedPart>{{"text encoder", 5, 5}, {name, predicted, measured}};
  };
  for (const char* name : {"denoise: computing", "VAE decode"}) {
    EXPECT_TRUE(far_faster(parts(30, 10, name)));
    EXPECT_FALSE(far_faster(parts(10, 9, name)));
    EXPECT_FALSE(far_faster(parts(10, 300, name))) << "somebody else was there";
    EXPECT_FALSE(far_faster(parts(0.1, 0.001, name))) << "too short to tell";
  }
  // How fast a disk is nobody measured.
  EXPECT_FALSE(far_faster(parts(30, 10, "load")));
}

}  // namespace
}  // namespace zoetrope::pipeline
