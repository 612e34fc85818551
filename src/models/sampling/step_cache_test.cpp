#include "models/sampling/step_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "models/sampling/published_caches.h"

namespace zoetrope::sampling {
namespace {

// A letter a step: C where it is full, a dot where it is not.
std::string pattern(StepCache& cache, int64_t steps, const std::function<double(int64_t)>& moved = {}) {
  std::string letters;
  for (int64_t step = 0; step < steps; ++step) {
    const double time = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
    const StepDecision decision = cache.decide(step, time, moved ? moved(step) : 0);
    EXPECT_TRUE(decision.work == StepWork::kFull || decision.work == cache.reuse());
    letters += decision.work == StepWork::kFull ? 'C' : '.';
  }
  return letters;
}

std::string mag_pattern(const char* model, StepCount count, const std::function<void(MagCacheSettings&)>& change = {}) {
  MagCacheSettings settings;
  const PublishedRatios* published = published_ratios(model);
  settings.ratios.assign(published->ratios.begin(), published->ratios.end());
  settings.threshold = published->threshold;
  if (change) change(settings);
  const auto cache = make_mag_cache(count, settings);
  const std::string letters = pattern(*cache, count.steps);
  EXPECT_EQ(pattern(*cache, count.steps), letters);  // step 0 begins again
  return letters;
}

// Patterns at the published settings, worked out from the curves of the specification by a program of its own that
// follows its formulas step by step.
TEST(MagCache, PublishedSettingsGiveThePatternsOfTheCurves) {
  EXPECT_EQ(mag_pattern("wan2.1_t2v_14b", {50, 50}), "CCCCCCCCCC..C..C..C..C..C..C..C..C..C..C..C.C.C.CC");
  EXPECT_EQ(mag_pattern("wan2.1_i2v_14b_480p", {40, 40}), "CCCCCCCC..C..C..C..C..C..C..C..C..C.C.C.");
  EXPECT_EQ(mag_pattern("wan2.1_i2v_14b_720p", {40, 40}), "CCCCCCCC..C..C..C..C..C..C..C..C..C.C.CC");
  // Two experts: the steps after the switch, 26 and 15, are full as the first ones are.
  EXPECT_EQ(mag_pattern("wan2.2_t2v_a14b", {40, 26}), "CCCCC..C..C..C..C..C..C..CCC..C.C.CCCCCC");
  EXPECT_EQ(mag_pattern("wan2.2_i2v_a14b", {40, 15}), "CCC..C..C..C..CCCCCC..C..C..C.C.C.CCCCCC");
}

// The same for 20 steps, whose ratios are picked from the curve's.
TEST(MagCache, OtherNumbersOfStepsResampleTheCurve) {
  EXPECT_EQ(mag_pattern("wan2.1_t2v_14b", {20, 20}), "CCCC..C..C..C..C..CC");
  EXPECT_EQ(mag_pattern("wan2.2_t2v_a14b", {20, 13}), "CC..C..C..C..C.C.CCC");
  EXPECT_EQ(mag_pattern("wan2.2_i2v_a14b", {20, 7}), "C..C..CCC..C..C.CCCC");
}

TEST(MagCache, ResamplingRoundsHalvesToEven) {
  const std::vector<double> curve = {0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15};  // 6 steps
  EXPECT_EQ(resample_ratios(curve, 6), curve);
  // linspace(0, 5, 3) is 0, 2.5, 5.
  EXPECT_EQ(resample_ratios(curve, 3), (std::vector<double>{0, 10, 2, 12, 5, 15}));
  // linspace(0, 5, 11) is 0, 0.5, 1, …: 0.5 → 0, 1.5 → 2, 2.5 → 2, 3.5 → 4, 4.5 → 4.
  EXPECT_EQ(resample_ratios(curve, 11),
            (std::vector<double>{0, 10, 0, 10, 1, 11, 2, 12, 2, 12, 2, 12, 3, 13, 4, 14, 4, 14, 4, 14, 5, 15}));
  EXPECT_EQ(resample_ratios(curve, 1), (std::vector<double>{5, 15}));
  EXPECT_EQ(resample_ratios({7, 8}, 2), (std::vector<double>{7, 8, 7, 8}));
}

TEST(MagCache, ThresholdZeroNeverSkips) {
  for (const char* model : {"wan2.1_t2v_14b", "wan2.2_t2v_a14b"}) {
    for (const int64_t first : {50, 20, 0}) {
      const std::string letters = mag_pattern(model, {50, first}, [](MagCacheSettings& s) {
        s.threshold = 0;
        s.retention = 0;
      });
      EXPECT_EQ(letters, std::string(50, 'C'));
    }
  }
  // Ratios of exactly 1 are no error at all, and are still not below 0.
  MagCacheSettings settings;
  settings.ratios.assign(20, 1.0);
  settings.threshold = 0;
  EXPECT_EQ(pattern(*make_mag_cache({10, 10}, settings), 10), "CCCCCCCCCC");
}

TEST(MagCache, EverySettingCounts) {
  MagCacheSettings settings;
  settings.ratios.assign(20, 1.0);
  settings.threshold = 0.1;
  const auto letters = [&](StepCount count = {10, 10}) { return pattern(*make_mag_cache(count, settings), 10); };
  EXPECT_EQ(letters(), "CC..C..C..");
  settings.max_skips = 3;
  EXPECT_EQ(letters(), "CC...C...C");
  settings.retention = 0;  // there is no residual before the first full step
  EXPECT_EQ(letters(), "C...C...C.");
  EXPECT_EQ(letters({10, 2}), "C.C...C...");  // nor after a switch
  settings.retention = 1;
  EXPECT_EQ(letters(), "CCCCCCCCCC");
  settings.retention = 0;
  settings.max_skips = 0;
  EXPECT_EQ(letters(), "CCCCCCCCCC");
  settings.max_skips = 9;
  settings.ratios[2 * 3 + 1] = 0.8;  // one branch is enough, and its error is forgotten at the full step
  EXPECT_EQ(letters(), "C..C......");
}

TEST(TeaCache, AddsChangesUpUntilTheThreshold) {
  TeaCacheSettings settings;
  settings.coefficients = {2, 0, 0};  // 2·d²
  settings.threshold = 0.5;
  const auto letters = [&](double moved, StepCount count = {12, 12}) {
    return pattern(*make_tea_cache(count, settings), 12, [&](int64_t) { return moved; });
  };
  // 0.18 a step: 0.18, 0.36 are below, 0.54 is not. The first and the last step run.
  EXPECT_EQ(letters(0.3), "C..C..C..C.C");
  EXPECT_EQ(letters(0.5), "CCCCCCCCCCCC");  // 0.5 is not below 0.5
  EXPECT_EQ(letters(0), "C..........C");
  EXPECT_EQ(letters(0, {12, 7}), "C......C...C");
  settings.retention_steps = true;
  EXPECT_EQ(letters(0.3), "CCCCC..C..C.");
  EXPECT_EQ(make_tea_cache({12, 12}, settings)->distance(), StepDistance::kTimeProjection);
}

TEST(TeaCache, ThresholdZeroNeverSkips) {
  TeaCacheSettings settings;
  settings.coefficients = {-1, -1};  // negative, whatever moves
  settings.threshold = 0;
  EXPECT_EQ(pattern(*make_tea_cache({9, 9}, settings), 9, [](int64_t) { return 0.1; }), "CCCCCCCCC");
  settings.threshold = 1e-9;
  EXPECT_EQ(pattern(*make_tea_cache({9, 9}, settings), 9, [](int64_t) { return 0.1; }), "C.......C");
}

// The polynomial of a published model, highest power first, at one change.
TEST(TeaCache, PolynomialOfThe14BModel) {
  TeaCacheSettings settings;
  settings.coefficients = published_coefficients("wan2.1_t2v_14b")->embedding;
  const double d = 0.2;
  const double change = -5784.54975374 * std::pow(d, 4) + 5449.50911966 * std::pow(d, 3) - 1811.16591783 * d * d +
                        256.27178429 * d - 13.02252404;
  ASSERT_GT(change, 0);
  settings.threshold = 3.5 * change;
  EXPECT_EQ(pattern(*make_tea_cache({12, 12}, settings), 12, [&](int64_t) { return d; }), "C...C...C..C");
}

TEST(SenCache, SumOfDistancesToTheLastFullStep) {
  SenCacheSettings settings;
  settings.retention = 0;
  settings.tail = 0;
  settings.max_skips = 100;
  settings.threshold = 0.65;
  // Time falls by 0.1 a step and nothing else moves: 0.1, 0.1 + 0.2, 0.1 + 0.2 + 0.3 = 0.6, and then 1.0.
  const auto letters = [&](double moved = 0, StepCount count = {10, 10}) {
    return pattern(*make_sen_cache(count, settings), 10, [&](int64_t) { return moved; });
  };
  EXPECT_EQ(letters(), "C...C...C.");
  EXPECT_EQ(letters(0.2), "C.C.C.C.C.");  // 0.3, then 0.7
  EXPECT_EQ(letters(0, {10, 2}), "C.C...C...");
  settings.max_skips = 2;
  EXPECT_EQ(letters(), "C..C..C..C");
  settings.retention = 0.3;
  settings.tail = 0.1;
  EXPECT_EQ(letters(), "CCC..C..CC");
  settings.threshold = 0;
  EXPECT_EQ(letters(), "CCCCCCCCCC");
}

// Time falls by 0.1 a step. An error of 0.02 measured over one step is one of 0.2 by time; over three steps, after two
// that were reused, it is a third of that.
TEST(DriftCache, MeasuredErrorsSayHowLongReuseLasts) {
  DriftCacheSettings settings;
  settings.threshold = 0.05;
  settings.max_skips = 100;
  const auto letters = [&](const std::function<double(int64_t)>& moved, StepCount count = {10, 10}) {
    return pattern(*make_drift_cache(count, settings), 10, moved);
  };
  const auto always = [](double error) { return [error](int64_t step) { return step < 2 ? -1 : error; }; };
  EXPECT_EQ(letters(always(0.02)), "CC..C....C");  // 0.02, 0.04; then by 0.02 / 3
  EXPECT_EQ(letters(always(0.06)), "CCCCCCCCCC");
  EXPECT_EQ(letters(always(0)), "CC.......C");
  EXPECT_EQ(letters(always(-1)), "CCCCCCCCCC");
  EXPECT_EQ(letters([](int64_t step) { return step == 6 || step == 1 ? -1 : 0.02; }, {10, 5}), "CC..CCC..C");
  EXPECT_EQ(letters([](int64_t step) { return step < 4 ? 0.02 : 0.2; }), "CC..CCCCCC");
  settings.max_skips = 1;
  EXPECT_EQ(letters(always(0.02)), "CC.C.C.C.C");
  EXPECT_EQ(make_drift_cache({10, 10}, settings)->distance(), StepDistance::kReuseError);
  settings.threshold = 0;
  EXPECT_EQ(letters(always(0)), "CCCCCCCCCC");
  EXPECT_EQ(make_drift_cache({10, 10}, settings)->distance(), StepDistance::kNone) << "nothing to measure for";
}

TEST(DriftCache, GoesOnFromItsState) {
  const auto one = make_drift_cache({10, 10}, {}), other = make_drift_cache({10, 10}, {});
  const auto time = [](int64_t step) { return 1 - 0.1 * static_cast<double>(step); };
  for (int64_t step = 0; step < 3; ++step) one->decide(step, time(step), 0.02);
  other->restore(one->state());
  for (int64_t step = 3; step < 10; ++step)
    EXPECT_EQ(one->decide(step, time(step), 0.02).work, other->decide(step, time(step), 0.02).work) << step;
}

TEST(CfgCache, SchedulesOfThePublishedSetting) {
  CfgCacheSettings settings;
  // From the third on, four of five steps; not the last two, or of large frames the last tenth.
  EXPECT_EQ(pattern(*make_cfg_cache({30, 30}, settings), 30), "CCCCCCCCCCC....C....C....C..CC");
  settings.height = 720;
  EXPECT_EQ(pattern(*make_cfg_cache({30, 30}, settings), 30), "CCCCCCCCCCC....C....C....C.CCC");
  settings.height = 480;
  // Two experts: only the second, after a full step of its own; all but the last step.
  EXPECT_EQ(pattern(*make_cfg_cache({30, 12}, settings), 30), "CCCCCCCCCCCCC..C....C....C...C");
  settings.interval = 1;
  EXPECT_EQ(pattern(*make_cfg_cache({30, 30}, settings), 30), std::string(30, 'C'));
  settings.interval = 2;
  EXPECT_EQ(pattern(*make_cfg_cache({4, 4}, settings), 4), "CCCC");
  EXPECT_EQ(pattern(*make_cfg_cache({2, 2}, settings), 2), "CC");
}

TEST(CfgCache, LowFrequenciesCountMoreEarlyAndHighOnesLate) {
  const CfgCacheSettings settings;
  const auto one = make_cfg_cache({30, 30}, settings), two = make_cfg_cache({30, 5}, settings);
  EXPECT_EQ(one->decide(14, 0, 0).low, 1.2);
  EXPECT_EQ(one->decide(14, 0, 0).high, 1.0);
  EXPECT_EQ(one->decide(16, 0, 0).low, 1.0);
  EXPECT_EQ(one->decide(16, 0, 0).high, 1.2);
  EXPECT_EQ(two->decide(11, 0, 0).low, 1.0);
  EXPECT_EQ(two->decide(11, 0, 0).high, 1.2);
}

}  // namespace
}  // namespace zoetrope::sampling
