#include "pipeline/planning/step_cache_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/project_folders.h"
#include "models/sampling/published_caches.h"
#include "pipeline/planning/layout_question.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/step_cache_options.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

GenerateOptions with(const std::vector<std::string>& arguments) {
  GenerateOptions options;
  options.height = options.width = 32;
  options.num_frames = 5;
  OptionSet set = describe_options(options);
  for (const std::string& argument : arguments) set.set_argument(argument);
  return options;
}

class StepCacheKeys : public testing::Test {
 protected:
  template <typename Settings>
  Settings settings(const std::vector<std::string>& arguments) const {
    const RunPlan plan = plan_run(with(arguments), wan21);
    EXPECT_TRUE(std::holds_alternative<Settings>(plan.step_cache));
    return std::get<Settings>(plan.step_cache);
  }
  std::string refusal(const std::vector<std::string>& arguments) const {
    return error_of([&] { plan_run(with(arguments), wan21); });
  }

  const TestFolder folder;
  const ModelFolder wan21 = ModelFolder::open(recorded_model("wan21_t2v"));
  const ModelFolder wan22 = ModelFolder::open(recorded_model("wan22_t2v"));
};

TEST_F(StepCacheKeys, OffByDefault) {
  settings<std::monostate>({});
  EXPECT_FALSE(step_cache_reuse(with({})));
  EXPECT_EQ(step_cache_reuse(with({"cache=mag"})), sampling::StepWork::kReuseResidual);
  EXPECT_EQ(step_cache_reuse(with({"cache=tea"})), sampling::StepWork::kReuseResidual);
  EXPECT_EQ(step_cache_reuse(with({"cache=sen"})), sampling::StepWork::kReuseVelocity);
  EXPECT_EQ(step_cache_reuse(with({"cache=cfg"})), sampling::StepWork::kConditionalOnly);
  EXPECT_EQ(step_cache_reuse(with({"cache=drift"})), sampling::StepWork::kReuseResidual);
}

TEST_F(StepCacheKeys, MagCacheTakesPublishedRatiosByName) {
  const auto mag = settings<sampling::MagCacheSettings>({"cache=mag", "cache_ratios=wan2.1_t2v_14b"});
  EXPECT_EQ(mag.ratios.size(), 100u);
  EXPECT_EQ(mag.threshold, 0.12);
  EXPECT_EQ(mag.max_skips, 2);
  EXPECT_EQ(mag.retention, 0.2);
  const auto other = settings<sampling::MagCacheSettings>(
      {"cache=mag", "mag_ratios_base=wan2.2_t2v_a14b", "magcache_thresh=0.5", "magcache_K=4", "retention_ratio=0.1"});
  EXPECT_EQ(other.ratios.size(), 80u);
  EXPECT_EQ(other.threshold, 0.5);
  EXPECT_EQ(other.max_skips, 4);
  EXPECT_EQ(other.retention, 0.1);
}

TEST_F(StepCacheKeys, MagCacheTakesOwnRatiosAsListOrFile) {
  const std::vector<double> ratios = {1, 1, 0.99, 0.98};
  EXPECT_EQ(settings<sampling::MagCacheSettings>({"cache=mag", "cache_ratios=1,1,0.99,0.98"}).ratios, ratios);
  folder.write("ratios.json", "[1.0, 1.0,\n 0.99, 0.98]\n");
  const std::string file = "cache_ratios=" + (folder / "ratios.json").string();
  EXPECT_EQ(settings<sampling::MagCacheSettings>({"cache=mag", file}).ratios, ratios);
  const RunPlan two = plan_run(with({"cache=mag", file}), wan22);
  EXPECT_EQ(std::get<sampling::MagCacheSettings>(two.step_cache).threshold, 0.04);
}

TEST_F(StepCacheKeys, AModelWithoutPublishedFiguresIsRefusedWithWhatThereIs) {
  EXPECT_THAT(refusal({"cache=mag"}),
              AllOf(HasSubstr("no ratios were published for this model"),
                    HasSubstr("wan2.1_t2v_14b, wan2.1_i2v_14b_480p"), HasSubstr("cache_ratios=NAME, FILE or list")));
  EXPECT_THAT(refusal({"cache=tea"}), AllOf(HasSubstr("no coefficients were published"), HasSubstr("wan2.1_t2v_1.3b")));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=wan2.1_t2v_1.3b"}), HasSubstr("neither a model that something was"));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=none.json"}), HasSubstr("nor a file or list of numbers"));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=1,1,0.9"}), HasSubstr("holds 3 numbers, but must hold two a step"));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=1,1,0.9,-0.9"}), HasSubstr("value 4 is -0.9"));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=1,nan"}), HasSubstr("value 2"));
}

TEST_F(StepCacheKeys, PublishedModelsKnowTheirOwn) {
  const std::filesystem::path configs = std::filesystem::path(kSourceFolder) / "configs";
  const ModelFolder small = ModelFolder::open_random(configs / "wan2.1_t2v_1.3b");
  const ModelFolder large = ModelFolder::open_random(configs / "wan2.1_t2v_14b");
  const ModelFolder two = ModelFolder::open_random(configs / "wan2.2_t2v_a14b");
  EXPECT_THAT(error_of([&] { plan_run(with({"cache=mag"}), small); }), HasSubstr("no ratios were published"));
  EXPECT_THAT(error_of([&] { plan_run(with({"cache=tea"}), two); }), HasSubstr("no coefficients were published"));
  const auto tea = std::get<sampling::TeaCacheSettings>(plan_run(with({"cache=tea"}), small).step_cache);
  EXPECT_EQ(tea.coefficients, sampling::published_coefficients("wan2.1_t2v_1.3b")->embedding);
  EXPECT_EQ(tea.threshold, 0.05);
  const RunPlan plan = plan_run(with({"cache=tea", "use_ret_steps=true"}), large);
  const auto retained = std::get<sampling::TeaCacheSettings>(plan.step_cache);
  EXPECT_EQ(retained.coefficients, sampling::published_coefficients("wan2.1_t2v_14b")->projection);
  EXPECT_EQ(retained.threshold, 0.10);
  EXPECT_EQ(std::get<sampling::MagCacheSettings>(plan_run(with({"cache=mag"}), large).step_cache).threshold, 0.12);

  const auto ratios = [&](const char* name, const char* height, const char* width = "width=1280") {
    const ModelFolder model = ModelFolder::open_random(configs / name);
    return std::get<sampling::MagCacheSettings>(plan_run(with({"cache=mag", height, width}), model).step_cache).ratios;
  };
  const auto published = [](const char* name) {
    const auto all = sampling::published_ratios(name)->ratios;
    return std::vector<double>(all.begin(), all.end());
  };
  EXPECT_EQ(ratios("wan2.1_i2v_14b_480p", "height=480"), published("wan2.1_i2v_14b_480p"));
  EXPECT_EQ(ratios("wan2.1_i2v_14b_720p", "height=720"), published("wan2.1_i2v_14b_720p"));
  // A portrait is of the size that its landscape is.
  EXPECT_EQ(ratios("wan2.1_i2v_14b_480p", "height=832", "width=480"), published("wan2.1_i2v_14b_480p"));
  EXPECT_EQ(ratios("wan2.1_i2v_14b_720p", "height=1280", "width=720"), published("wan2.1_i2v_14b_720p"));
  EXPECT_EQ(ratios("wan2.2_i2v_a14b", "height=720"), published("wan2.2_i2v_a14b"));
  for (const char* name : {"wan2.1_flf2v_14b_720p", "wan2.1_vace_14b", "wan2.2_ti2v_5b"}) {
    EXPECT_THAT(error_of([&] { ratios(name, "height=736"); }), HasSubstr("no ratios were published")) << name;
  }

  // 40 steps of the native shift: 26 with the high-noise expert (wan.md section 7.7).
  const RunPlan a14b = plan_run(with({"cache=mag", "flow_shift=12", "num_inference_steps=40"}), two);
  EXPECT_EQ(a14b.step_count.steps, 40);
  EXPECT_EQ(a14b.step_count.first_expert, 26);
  EXPECT_EQ(std::get<sampling::MagCacheSettings>(a14b.step_cache).threshold, 0.04);
}

TEST_F(StepCacheKeys, PredictionsPriceTheStepsThatRun) {
  const auto steps = [&](const std::vector<std::string>& arguments) {
    return priced_steps(plan_run(with(arguments), wan21));
  };
  EXPECT_EQ(steps({}), 50);
  // Of the pattern in step_cache_test.cpp: 50 steps, 25 of them reused.
  EXPECT_EQ(steps({"cache=mag", "cache_ratios=wan2.1_t2v_14b"}), 25);
  EXPECT_EQ(steps({"cache=sen"}), 50);  // nobody knows before
  // 30 steps: 14 with one branch of two.
  EXPECT_EQ(steps({"cache=cfg", "num_inference_steps=30"}), 16 + 14 / 2);
}

TEST_F(StepCacheKeys, OthersHaveTheirPublishedSettings) {
  const auto sen = settings<sampling::SenCacheSettings>({"cache=sen"});
  EXPECT_EQ(sen.threshold, 0.1);
  EXPECT_EQ(sen.max_skips, 3);
  EXPECT_EQ(sen.retention, 0.3);
  const auto drift = settings<sampling::DriftCacheSettings>({"cache=drift", "cache_max_skips=2"});
  EXPECT_EQ(drift.threshold, 0.1);
  EXPECT_EQ(drift.max_skips, 2);
  EXPECT_EQ(settings<sampling::DriftCacheSettings>({"cache=drift", "cache_threshold=0.01"}).threshold, 0.01);
  EXPECT_EQ(settings<sampling::CfgCacheSettings>({"cache=cfg"}).interval, 5);
  EXPECT_EQ(settings<sampling::CfgCacheSettings>({"cache=cfg", "cache_interval=2", "height=64"}).interval, 2);
  EXPECT_EQ(settings<sampling::CfgCacheSettings>({"cache=cfg", "height=64"}).height, 64);
  const auto tea = settings<sampling::TeaCacheSettings>({"cache=tea", "cache_coefficients=1,0", "teacache_thresh=0.2"});
  EXPECT_EQ(tea.coefficients, (std::vector<double>{1, 0}));
  EXPECT_EQ(tea.threshold, 0.2);
}

TEST_F(StepCacheKeys, WhereGuidanceIsOffTheyAreRefused) {
  for (const char* cache : {"cache=mag", "cache=tea", "cache=sen", "cache=cfg", "cache=drift"}) {
    EXPECT_THAT(refusal({cache, "guidance_scale=1"}), AllOf(HasSubstr(cache), HasSubstr("guidance is off")));
    EXPECT_THAT(error_of([&] {
                  plan_run(with({cache, "guidance_scale=4", "guidance_scale_2=1"}), wan22);
                }),
                HasSubstr("guidance_scale_2=1 does not guide the low-noise expert"));
  }
}

TEST_F(StepCacheKeys, KeysOfAnotherCacheAreRefused) {
  EXPECT_THAT(refusal({"cache=sen", "cache_ratios=1,1"}), HasSubstr("cache_ratios: means nothing with cache=sen"));
  EXPECT_THAT(refusal({"cache=cfg", "cache_threshold=1"}), HasSubstr("it belongs to cache=mag, tea, sen, drift"));
  EXPECT_THAT(refusal({"cache_threshold=0.1"}), HasSubstr("means nothing with cache=none"));
  EXPECT_THAT(refusal({"cache_compare=true"}), HasSubstr("means nothing with cache=none"));
  EXPECT_THAT(refusal({"cache=mag", "cache_ratios=1,1", "cache_interval=2"}), HasSubstr("cache_interval"));
  EXPECT_THAT(refusal({"cache=sen", "use_ret_steps=true"}), HasSubstr("cache_retention_steps"));
}

TEST_F(StepCacheKeys, TheCfgCacheIsForBranchesThatFollowOneAnother) {
  const auto refusal_of = [&](const std::vector<std::string>& words) {
    const GenerateOptions options = with(words);
    const RunPlan plan = plan_run(options, wan21);
    return error_of([&] { layout_by_rule(options, plan, wan21, 4); });
  };
  EXPECT_THAT(refusal_of({"cache=cfg", "data_parallelism=2"}),
              AllOf(HasSubstr("data_parallelism=2 with cache=cfg"), HasSubstr("use data_parallelism=1,")));
  EXPECT_THAT(
      refusal_of({"cache=cfg", "data_parallelism=2", "context_parallelism=2"}),
      AllOf(HasSubstr("data_parallelism=2 with cache=cfg"), HasSubstr("data_parallelism=1 and context_parallelism=4")));
  // Who gave the context alone reads of that, and of what is right.
  EXPECT_THAT(refusal_of({"cache=cfg", "context_parallelism=2"}),
              AllOf(StartsWith("context_parallelism=2 of 4 ranks"), HasSubstr("with cache=cfg"),
                    HasSubstr("use context_parallelism=4, or leave it out"), Not(HasSubstr("data_parallelism"))));
  EXPECT_THAT(refusal_of({"cache=cfg", "context_parallelism=2", "data_parallelism=-1"}),
              AllOf(StartsWith("data_parallelism=-1 with context_parallelism=2 of 4 ranks"),
                    HasSubstr("use context_parallelism=4")));
  for (const char* right : {"context_parallelism=4", "data_parallelism=1"})
    EXPECT_EQ(refusal_of({"cache=cfg", right}), "no error");
}

}  // namespace
}  // namespace zoetrope::pipeline
