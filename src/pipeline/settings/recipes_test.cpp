#include "pipeline/settings/recipes.h"

#include <gmock/gmock.h>

#include "zoetrope/error.h"

#include "models/sampling/solver.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;

GenerateOptions options_of(const std::vector<std::pair<const char*, const char*>>& words) {
  GenerateOptions options;
  OptionSet set = describe_options(options);
  for (const auto& [key, value] : words) set.set(key, value, "test");
  return options;
}

TEST(Recipes, LightningTakesFourShiftedStepsWithoutGuidance) {
  const GenerateOptions options = options_of({{"recipe", "lightning_4"}});
  EXPECT_EQ(options.guidance_scale, 1);
  sampling::SolverConfig config;
  config.kind = options.scheduler.value();
  config.sigmas = options.sigmas;
  config.shift = options.flow_shift.value();
  // 5 σ / (1 + 4 σ)
  EXPECT_THAT(sampling::Solver::create(config)->sigmas(),
              ElementsAre(FloatNear(1, 1e-6F), FloatNear(0.9375F, 1e-6F), FloatNear(0.833333F, 1e-6F),
                          FloatNear(0.625F, 1e-6F), 0.0F));
}

TEST(Recipes, LaterKeysWinAndEarlierOnesGiveWay) {
  EXPECT_EQ(options_of({{"recipe", "lightning_4"}, {"flow_shift", "3"}}).flow_shift, 3);
  EXPECT_EQ(options_of({{"flow_shift", "3"}, {"recipe", "lightning_4"}}).flow_shift, 5);
  EXPECT_EQ(options_of({{"guidance_scale_2", "3"}, {"recipe", "lightning_4"}}).guidance_scale_2, std::nullopt);
  EXPECT_EQ(options_of({{"height", "96"}, {"recipe", "lightning_4"}}).height, 96);
}

TEST(Recipes, CanBeTakenBack) {
  const auto changed = [](const std::vector<std::pair<const char*, const char*>>& words) {
    return changed_settings(options_of(words));
  };
  EXPECT_EQ(changed({{"recipe", "lightning_4"}, {"recipe", "default"}}), changed({}));
  EXPECT_EQ(changed({{"recipe", "lightning_4"}, {"flow_shift", "3"}, {"recipe", "default"}}),
            changed({{"flow_shift", "3"}}));
  EXPECT_EQ(changed({{"flow_shift", "3"},
                     {"timesteps", "900,500"},
                     {"recipe", "lightning_4"},
                     {"recipe", "lightning_4"},
                     {"recipe", "default"}}),
            changed({{"flow_shift", "3"}, {"timesteps", "900,500"}}));
}

// What was said by a recipe is said by the keys: settings that are read again are the same, in any order.
TEST(Recipes, SettingsSpeakOfTheKeysAlone) {
  const auto changed = changed_settings(options_of({{"recipe", "lightning_4"}, {"flow_shift", "3"}}));
  EXPECT_EQ(changed.count("recipe"), 0U);
  EXPECT_EQ(changed.at("flow_shift"), "3");
  EXPECT_EQ(changed.at("guidance_scale"), "1");
}

TEST(Recipes, UnknownNamesAreRefusedWithThoseThereAre) {
  try {
    options_of({{"recipe", "lightning_5"}});
    FAIL() << "a recipe that does not exist was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lightning_4"));
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
