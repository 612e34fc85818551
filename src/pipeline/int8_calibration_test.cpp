#include "pipeline/int8_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/test_folder.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double root(std::initializer_list<double> squares) {
  double sum = 0;
  for (const double x : squares) sum += x * x;
  return std::sqrt(sum);
}

// Four blocks whose errors are apart, without a floor.
Int8Errors apart() {
  const std::vector<double> blocks{0.004, 0.001, 0.002, 0.003};
  return {"0123", "a model", {}, {{500, blocks, root({0.004, 0.001, 0.002, 0.003}), 0}}};
}

TEST(Int8Calibration, ErrorsAddUpAsSquares) {
  const Int8Errors errors = apart();
  EXPECT_NEAR(predicted_error(errors.at[0], {0}), 0.004, 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {1, 2}), root({0.001, 0.002}), 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {0, 1, 2, 3}), errors.at[0].all, 1e-12);
  EXPECT_EQ(predicted_error(errors.at[0], {}), 0);
}

TEST(Int8Calibration, RoundingCountsOnce) {
  Int8Errors errors = apart();
  errors.at[0].rounding = 0.005;
  errors.at[0].all = root({errors.at[0].all, 0.005});
  EXPECT_NEAR(predicted_error(errors.at[0], {2}), root({0.002, 0.005}), 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {1, 2}), root({0.001, 0.002, 0.005}), 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {0, 1, 2, 3}), errors.at[0].all, 1e-12);
  errors.at[0].all = 0.004;  // less than any change costs: the measurement's own noise
  EXPECT_NEAR(predicted_error(errors.at[0], {1, 2}), 0.005, 1e-12);
}

TEST(Int8Calibration, ErrorsThatAgreeAreScaled) {
  Int8Errors errors = apart();
  errors.at[0].all *= 1.5;
  EXPECT_NEAR(predicted_error(errors.at[0], {0, 1, 2, 3}), errors.at[0].all, 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {1, 2}), 1.5 * root({0.001, 0.002}), 1e-12);
}

TEST(Int8Calibration, ChoosesTheLeastErrorsWithinTheBudget) {
  Int8Errors errors = apart();
  EXPECT_THAT(choose_int8_blocks(errors, 0.0024).blocks, ElementsAre(1, 2));
  EXPECT_NEAR(choose_int8_blocks(errors, 0.0024).error, root({0.001, 0.002}), 1e-12);
  EXPECT_THAT(choose_int8_blocks(errors, 1).blocks, ElementsAre(0, 1, 2, 3));
  const Int8Choice none = choose_int8_blocks(errors, 0.0009);
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_NEAR(none.error, 0.001, 1e-12);
  // The worst of the timesteps decides.
  errors.at.push_back({100, {0.001, 0.006, 0.002, 0.003}, root({0.001, 0.006, 0.002, 0.003}), 0});
  EXPECT_THAT(choose_int8_blocks(errors, 0.0037).blocks, ElementsAre(2, 3));
}

TEST(Int8Calibration, AttentionIsPartOfTheBudget) {
  Int8Errors errors = apart();
  errors.at[0].rounding = 0.001;
  errors.at[0].all = root({errors.at[0].all, 0.001});
  errors.attention_limits = {0.05, 0.01, 0.001};
  errors.at[0].attention = {root({0.002, 0.001}), root({0.0005, 0.001}), 0};  // the last takes no head
  EXPECT_NEAR(int8_attention_error(errors, 0), root({0.002, 0.001}), 1e-12);
  EXPECT_EQ(int8_attention_error(errors, 2), 0);
  EXPECT_NEAR(predicted_error(errors.at[0], {2}, 0), root({0.001, 0.002, 0.002}), 1e-12);
  EXPECT_NEAR(predicted_error(errors.at[0], {2}, 2), root({0.001, 0.002}), 1e-12);
  EXPECT_THAT(choose_int8_blocks(errors, 0.0027).blocks, ElementsAre(1, 2));
  EXPECT_THAT(choose_int8_blocks(errors, 0.0027, 0).blocks, ElementsAre(1));
  EXPECT_THAT(choose_int8_blocks(errors, 0.0027, 1).blocks, ElementsAre(1, 2));
  const Int8Choice none = choose_int8_blocks(errors, 0.0023, 0);
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_NEAR(none.error, root({0.001, 0.001, 0.002}), 1e-12);
  // The worst of the timesteps decides.
  errors.at.push_back(errors.at[0]);
  errors.at[1].attention[1] = 0.004;
  EXPECT_EQ(int8_attention_error(errors, 1), 0.004);
}

TEST(Int8Calibration, NamesRanges) {
  EXPECT_EQ(block_ranges({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
  EXPECT_EQ(block_ranges({5}), "5");
  EXPECT_EQ(block_ranges({}), "");
}

TEST(Int8Calibration, RemembersOneEntryForEachTransformer) {
  const TestFolder folder;
  const Int8Calibration file(folder / "new" / "int8.json");
  EXPECT_TRUE(file.entries().empty());
  file.require_writable();
  Int8Errors first = apart(), other = apart();
  other.weights = "4567";
  file.remember(first);
  file.remember(other);
  first.at[0].blocks[0] = 0.25;
  first.at[0].rounding = 0.125;
  first.attention_limits = {0.05, 0.01};
  first.at[0].attention = {0.5, 0.25};
  file.remember(first);
  EXPECT_EQ(file.entries().size(), 2U);
  const std::optional<Int8Errors> found = file.find("0123");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "a model");
  EXPECT_EQ(found->at[0].timestep, 500);
  EXPECT_EQ(found->at[0].blocks, first.at[0].blocks);
  EXPECT_EQ(found->at[0].all, first.at[0].all);
  EXPECT_EQ(found->at[0].rounding, first.at[0].rounding);
  EXPECT_EQ(found->attention_limits, first.attention_limits);
  EXPECT_EQ(found->at[0].attention, first.at[0].attention);
  EXPECT_FALSE(file.find("89ab"));
}

TEST(Int8Calibration, RefusesWhatItCannotRead) {
  const TestFolder folder;
  const Int8Calibration file(folder / "int8.json");
  file.require_writable();
  file.remember(apart());
  std::ifstream in(file.file());
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const std::pair<const char*, const char*> wrong[] = {{"0.004", "-0.004"},
                                                       {"0.004", "\"x\""},
                                                       {"\"all\"", "\"al\""},
                                                       {"\"transformers\"", "\"t\""},
                                                       {"zoetrope_int8", "format"},
                                                       {"}", ""},
                                                       {"\"attention_limits\": []", "\"attention_limits\": [0.05]"}};
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(file.file()) << text;
    return error_of([&] { file.entries(); });
  };
  for (const auto& [from, to] : wrong)
    EXPECT_THAT(error_with(from, to), HasSubstr("name another file, or delete it if it was one")) << from;
  for (const auto& [limits, why] : {std::pair("[0.06]", "0.06; it must be above 0"),
                                    {"[0]", "has 0; it must be above 0"},
                                    {"[1, 2]", "has 1; it must be above 0"},
                                    {"[0.02, 0.02]", "0.02 after 0.02"},
                                    {"[0.01, 0.02]", "0.02 after 0.01"}})
    EXPECT_THAT(error_with("\"attention_limits\": []", std::string("\"attention_limits\": ") + limits), HasSubstr(why))
        << limits;
  EXPECT_THAT(error_of([&] { Int8Calibration("").require_writable(); }), HasSubstr("int8_calibration="));
  EXPECT_THAT(error_of([&] { Int8Calibration("/proc/nowhere/x.json").require_writable(); }),
              HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace zoetrope::pipeline
