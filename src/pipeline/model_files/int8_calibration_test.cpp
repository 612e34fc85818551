#include "pipeline/model_files/int8_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/test_folder.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;

double root(std::initializer_list<double> squares) {
  double sum = 0;
  for (const double x : squares) sum += x * x;
  return std::sqrt(sum);
}

// Errors of that relative L2 in each branch, which have nothing to do with each other.
BranchNorms apart_by(double error) { return {error * error, error * error, 0}; }

std::vector<BranchNorms> each_apart_by(std::initializer_list<double> errors) {
  std::vector<BranchNorms> all;
  for (const double error : errors) all.push_back(apart_by(error));
  return all;
}

Int8Errors::At at(double timestep, std::initializer_list<double> blocks) {
  return {.timestep = timestep, .velocity = {1, 1, 1}, .blocks = each_apart_by(blocks), .all = apart_by(root(blocks))};
}

constexpr double kUnguided = 1;

// Four blocks whose errors are apart, without a floor.
Int8Errors apart() { return {.weights = "0123", .name = "a model", .at = {at(500, {0.004, 0.001, 0.002, 0.003})}}; }

double error_of_all(const Int8Errors::At& at) { return at.relative(at.all, kUnguided); }

TEST(Int8Calibration, ErrorsAddUpAsSquares) {
  const Int8Errors errors = apart();
  EXPECT_NEAR(predicted_error(errors, kUnguided, {0}), 0.004, 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1, 2}), root({0.001, 0.002}), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {0, 1, 2, 3}), error_of_all(errors.at[0]), 1e-12);
  EXPECT_EQ(predicted_error(errors, kUnguided, {}), 0);
}

// At 5 the velocity is 5c − 4u.
TEST(Int8Calibration, GuidanceAddsErrorsOfBothBranchesUp) {
  const BranchNorms branches{0.04, 0.09, 0.05};
  EXPECT_NEAR(branches.guided(1), 0.04, 1e-12);
  EXPECT_NEAR(branches.guided(5), 25 * 0.04 + 16 * 0.09 - 40 * 0.05, 1e-12);
  EXPECT_NEAR(branches.guided(0), 0.09, 1e-12);
  Int8Errors errors = apart();
  EXPECT_NEAR(predicted_error(errors, 5, {1, 2}), root({5 * 0.001, 4 * 0.001, 5 * 0.002, 4 * 0.002}), 1e-12);
  EXPECT_NEAR(predicted_error(errors, 5, {0, 1, 2, 3}), std::sqrt(41.0) * error_of_all(errors.at[0]), 1e-12);
  // Branches that are off alike are off by as much together, branches that are off contrarily by their sum.
  for (const auto& [product, times] : {std::pair(1.0, 1.0), std::pair(-1.0, 9.0)}) {
    for (BranchNorms* norms : {&errors.at[0].all, &errors.at[0].blocks[0], &errors.at[0].blocks[1],
                               &errors.at[0].blocks[2], &errors.at[0].blocks[3]})
      norms->product = product * norms->conditional;
    EXPECT_NEAR(predicted_error(errors, 5, {1, 2}), times * root({0.001, 0.002}), 1e-12);
  }
  // Against a velocity that guidance makes larger.
  errors.at[0].velocity = {1, 1, 0};
  EXPECT_NEAR(predicted_error(errors, 5, {1, 2}), 9 * root({0.001, 0.002}) / std::sqrt(41.0), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1, 2}), root({0.001, 0.002}), 1e-12);
}

TEST(Int8Calibration, GuidanceDecidesHowManyBlocksFit) {
  const Int8Errors errors = apart();
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0151).blocks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choose_int8_blocks(errors, 5, 0.0151).blocks, ElementsAre(1, 2));
  EXPECT_THAT(choose_int8_blocks(errors, 5, 0.006).blocks, ElementsAre());
}

TEST(Int8Calibration, RoundingCountsOnce) {
  Int8Errors errors = apart();
  errors.at[0].rounding = apart_by(0.005);
  errors.at[0].all = apart_by(root({error_of_all(errors.at[0]), 0.005}));
  EXPECT_NEAR(predicted_error(errors, kUnguided, {2}), root({0.002, 0.005}), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1, 2}), root({0.001, 0.002, 0.005}), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {0, 1, 2, 3}), error_of_all(errors.at[0]), 1e-12);
  errors.at[0].all = apart_by(0.004);  // less than any change costs: the measurement's own noise
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1, 2}), 0.005, 1e-12);
}

TEST(Int8Calibration, ErrorsThatAgreeAreScaled) {
  Int8Errors errors = apart();
  errors.at[0].all = apart_by(1.5 * error_of_all(errors.at[0]));
  EXPECT_NEAR(predicted_error(errors, kUnguided, {0, 1, 2, 3}), error_of_all(errors.at[0]), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1, 2}), 1.5 * root({0.001, 0.002}), 1e-12);
}

TEST(Int8Calibration, ChoosesTheLeastErrorsWithinTheBudget) {
  Int8Errors errors = apart();
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0024).blocks, ElementsAre(1, 2));
  EXPECT_NEAR(choose_int8_blocks(errors, kUnguided, 0.0024).error, root({0.001, 0.002}), 1e-12);
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 1).blocks, ElementsAre(0, 1, 2, 3));
  const Int8Choice none = choose_int8_blocks(errors, kUnguided, 0.0009);
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_NEAR(none.error, 0.001, 1e-12);
  // The worst of the timesteps decides.
  errors.at.push_back(at(100, {0.001, 0.006, 0.002, 0.003}));
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0037).blocks, ElementsAre(2, 3));
}

TEST(Int8Calibration, AttentionIsPartOfTheBudget) {
  Int8Errors errors = apart();
  errors.at[0].rounding = apart_by(0.001);
  errors.at[0].all = apart_by(root({error_of_all(errors.at[0]), 0.001}));
  errors.attention_limits = {0.05, 0.01, 0.001};
  errors.at[0].attention = each_apart_by({root({0.002, 0.001}), root({0.0005, 0.001}), 0});  // the last takes no head
  EXPECT_NEAR(predicted_error(errors, kUnguided, {}, 0), root({0.002, 0.001}), 1e-12);
  EXPECT_EQ(predicted_error(errors, kUnguided, {}, 2), 0);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {2}, 0), root({0.001, 0.002, 0.002}), 1e-12);
  EXPECT_NEAR(predicted_error(errors, kUnguided, {2}, 2), root({0.001, 0.002}), 1e-12);
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0027).blocks, ElementsAre(1, 2));
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0027, 0).blocks, ElementsAre(1));
  EXPECT_THAT(choose_int8_blocks(errors, kUnguided, 0.0027, 1).blocks, ElementsAre(1, 2));
  const Int8Choice none = choose_int8_blocks(errors, kUnguided, 0.0023, 0);
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_NEAR(none.error, root({0.001, 0.001, 0.002}), 1e-12);
  // The worst of the timesteps decides.
  errors.at.push_back(errors.at[0]);
  errors.at[1].attention[1] = apart_by(0.004);
  EXPECT_EQ(predicted_error(errors, kUnguided, {}, 1), 0.004);
}

TEST(Int8Calibration, AVelocityOfZerosIsOffByInfinitelyMuch) {
  Int8Errors errors = apart();
  errors.at[0].velocity = {1, 1, 0};
  errors.at[0].velocity.unconditional = 25.0 / 16;  // 5c = 4u
  errors.at[0].velocity.product = 5.0 / 4;
  EXPECT_TRUE(std::isinf(predicted_error(errors, 5, {1})));
  EXPECT_TRUE(choose_int8_blocks(errors, 5, 1).blocks.empty());
  EXPECT_NEAR(predicted_error(errors, kUnguided, {1}), 0.001, 1e-12);
}

TEST(Int8Calibration, NamesNumbersThatAreNotBelow) {
  EXPECT_EQ(at_least(0.070030), "0.0701");
  EXPECT_EQ(at_least(0.125), "0.125");
  EXPECT_EQ(at_least(0), "0");
  EXPECT_EQ(at_least(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Int8Calibration, NamesRanges) {
  EXPECT_EQ(block_ranges({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
  EXPECT_EQ(block_ranges({5}), "5");
  EXPECT_EQ(block_ranges({}), "");
}

MATCHER(SameNorms, "") {
  const auto& [a, b] = arg;
  return a.conditional == b.conditional && a.unconditional == b.unconditional && a.product == b.product;
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
  first.at[0].velocity = {1, 0.5, 0.25};
  first.at[0].blocks[0] = {0.25, 0.5, -0.125};
  first.at[0].rounding = apart_by(0.125);
  first.attention_limits = {0.05, 0.01};
  first.at[0].attention = each_apart_by({0.5, 0.25});
  first.guidance = 4;
  file.remember(first);
  EXPECT_EQ(file.entries().size(), 2U);
  const std::optional<Int8Errors> found = file.find("0123");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "a model");
  EXPECT_EQ(found->guidance, 4);
  EXPECT_EQ(found->attention_limits, first.attention_limits);
  const Int8Errors::At &is = found->at[0], &was = first.at[0];
  EXPECT_EQ(is.timestep, 500);
  EXPECT_THAT(is.blocks, Pointwise(SameNorms(), was.blocks));
  EXPECT_THAT(is.attention, Pointwise(SameNorms(), was.attention));
  EXPECT_THAT((std::vector{is.velocity, is.all, is.rounding}),
              Pointwise(SameNorms(), std::vector{was.velocity, was.all, was.rounding}));
  EXPECT_FALSE(file.find("89ab"));
}

TEST(Int8Calibration, RefusesWhatItCannotRead) {
  const TestFolder folder;
  const Int8Calibration file(folder / "int8.json");
  file.require_writable();
  file.remember(apart());
  std::ifstream in(file.file());
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const std::pair<const char*, const char*> wrong[] = {{"\"conditional\": ", "\"conditional\": -"},
                                                       {"\"unconditional\": ", "\"unconditional\": -"},
                                                       {"\"product\": 0.0", "\"product\": 0.1"},
                                                       {"\"product\": 0.0", "\"product\": \"x\""},
                                                       {"\"velocity\": {", "\"velocity\": {}, \"x\": {"},
                                                       {"\"all\"", "\"al\""},
                                                       {"\"guidance\"", "\"g\""},
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
  EXPECT_THAT(error_with("\"zoetrope_int8\": 5", "\"zoetrope_int8\": 6"),
              HasSubstr("int8.json: is of a newer version of zoetrope; use that, or name another file"));
  EXPECT_THAT(error_with("\"zoetrope_int8\": 5", "\"zoetrope_int8\": 4"), HasSubstr("no error"));
  EXPECT_THAT(error_of([&] { Int8Calibration("").require_writable(); }), HasSubstr("int8_calibration="));
  EXPECT_THAT(error_of([&] { Int8Calibration("/proc/nowhere/x.json").require_writable(); }),
              HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace zoetrope::pipeline
