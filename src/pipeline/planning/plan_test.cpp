#include "pipeline/planning/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;

// The arguments of the recorded runs.
GenerateOptions one_expert() {
  GenerateOptions options;
  options.height = 48;
  options.width = 64;
  options.num_frames = 9;
  options.num_inference_steps = 6;
  return options;
}

GenerateOptions two_experts() {
  GenerateOptions options;
  options.height = 32;
  options.width = 48;
  options.num_frames = 5;
  options.num_inference_steps = 6;
  options.guidance_scale = 4;
  options.guidance_scale_2 = 3;
  return options;
}

class Plan : public testing::Test {
 protected:
  std::string refusal(const GenerateOptions& options) const {
    return error_of([&] { plan_run(options, wan21); });
  }
  const ModelFolder wan21 = ModelFolder::open(recorded_model("wan21_t2v"));
  const ModelFolder wan22 = ModelFolder::open(recorded_model("wan22_t2v"));
};

TEST_F(Plan, SizesOfOneExpert) {
  const RunPlan plan = plan_run(one_expert(), wan21);
  // 8 pixels a cell, 4 frames a cell after the first; 1 × 2 × 2 cells a token.
  EXPECT_EQ(plan.latent, (Shape{3, 6, 8}));
  EXPECT_EQ(plan.tokens, 3 * 3 * 4);
  EXPECT_EQ(plan.channels, 16);
  EXPECT_EQ(plan.dtype, DType::kBF16);
  EXPECT_TRUE(plan.guided);
  EXPECT_EQ(plan.guidance[0], 5);
  EXPECT_EQ(plan.solver.shift, 3);
  EXPECT_EQ(plan.solver.steps, 6);
  EXPECT_TRUE(plan.notes.empty());
  for (const double timestep : {999.0, 1.0, 0.0}) EXPECT_EQ(plan.expert_at(timestep), 0) << timestep;
}

TEST_F(Plan, TheBoundaryDividesTheTimestepsBetweenTheExperts) {
  RunPlan plan = plan_run(two_experts(), wan22);
  EXPECT_EQ(plan.boundary, 875);  // 0.875 of 1000
  EXPECT_EQ(plan.guidance[0], 4);
  EXPECT_EQ(plan.guidance[1], 3);
  std::vector<int> experts;
  const std::unique_ptr<sampling::Solver> solver = sampling::Solver::create(plan.solver);
  for (const float timestep : solver->timesteps()) experts.push_back(plan.expert_at(timestep));
  // The recorded timesteps are 999, 983, 960, 923, 857, 707.
  EXPECT_THAT(experts, testing::ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_EQ(plan.expert_at(875), 0);
  EXPECT_EQ(plan.expert_at(874), 1);

  GenerateOptions options = two_experts();
  options.boundary_ratio = 0.95;
  options.guidance_scale_2.reset();
  plan = plan_run(options, wan22);
  EXPECT_EQ(plan.expert_at(960), 0);
  EXPECT_EQ(plan.expert_at(923), 1);
  EXPECT_EQ(plan.guidance[1], 4);
  EXPECT_THAT(plan.notes, testing::ElementsAre(HasSubstr("boundary_ratio 0.95 instead of 0.875")));
}

TEST_F(Plan, GuidanceOfOneExpertThatIsOffIsNoted) {
  GenerateOptions options = two_experts();
  options.guidance_scale = 1;
  const RunPlan plan = plan_run(options, wan22);
  EXPECT_FALSE(plan.guided);
  EXPECT_EQ(plan.guidance[1], 1);
  EXPECT_THAT(plan.notes,
              testing::ElementsAre(HasSubstr("guidance_scale_2=3: guides nothing, because guidance_scale=1")));
  options.guidance_scale_2 = 1;
  EXPECT_TRUE(plan_run(options, wan22).notes.empty());
  options.negative_prompt = "ugly";
  EXPECT_THAT(plan_run(options, wan22).notes,
              testing::ElementsAre(HasSubstr("negative_prompt: guides nothing, because guidance_scale=1")));
}

TEST_F(Plan, WhatDiffersFromTheCheckpointIsNoted) {
  GenerateOptions options = one_expert();
  options.flow_shift = 5;
  options.scheduler = sampling::SolverKind::kFlowMatchEuler;
  const RunPlan plan = plan_run(options, wan21);
  EXPECT_EQ(plan.solver.shift, 5);
  EXPECT_EQ(plan.solver.kind, sampling::SolverKind::kFlowMatchEuler);
  EXPECT_THAT(plan.notes, testing::UnorderedElementsAre(HasSubstr("flow_shift 5 instead of 3"),
                                                        HasSubstr("scheduler flow_match_euler instead of UniPC"),
                                                        HasSubstr("flow_shift=5 twice")));
  options.sigmas = {1, 0.5};
  EXPECT_THAT(plan_run(options, wan21).notes, testing::Not(testing::Contains(HasSubstr("twice"))));
  options = one_expert();
  options.flow_shift = 3;
  options.scheduler = sampling::SolverKind::kUniPC;
  options.sigma_grid = sampling::SigmaGrid::kFrom999;
  EXPECT_TRUE(plan_run(options, wan21).notes.empty());
}

TEST_F(Plan, WhatIsCutOffPromptsIsNoted) {
  GenerateOptions options = one_expert();
  options.prompt = options.negative_prompt = "a red cat";
  EXPECT_TRUE(plan_run(options, wan21).notes.empty());
  options.max_sequence_length = 2;
  EXPECT_THAT(plan_run(options, wan21).notes,
              testing::ElementsAre(
                  testing::AllOf(testing::StartsWith("prompt "), HasSubstr("max_sequence_length=2"), HasSubstr("cat'")),
                  testing::StartsWith("negative_prompt ")));
  options.guidance_scale = 1;  // the negative prompt is not read
  EXPECT_THAT(plan_run(options, wan21).notes,
              testing::UnorderedElementsAre(testing::StartsWith("prompt "), HasSubstr("guides nothing")));
}

TEST_F(Plan, GivenLevelsAreTheSteps) {
  GenerateOptions options = one_expert();
  options.sigmas = {1, 0.75, 0.5, 0.25};
  const RunPlan plan = plan_run(options, wan21);
  EXPECT_EQ(plan.steps(), 4);
  EXPECT_THAT(plan.notes, testing::ElementsAre(HasSubstr("4 denoising steps, as sigmas says, instead of")));
  options.num_inference_steps = 4;
  EXPECT_TRUE(plan_run(options, wan21).notes.empty());
  options.sigma_grid = sampling::SigmaGrid::kFrom999;
  EXPECT_THAT(plan_run(options, wan21).notes, testing::ElementsAre(HasSubstr("sigma_grid changes nothing")));
  options.timesteps = {1000, 500};
  EXPECT_THAT(refusal(options), HasSubstr("sigmas and timesteps"));
  options.sigmas.clear();
  EXPECT_EQ(plan_run(options, wan21).steps(), 2);
  options.timesteps = {500, 1000};
  EXPECT_THAT(refusal(options), HasSubstr("timesteps: value 2 of 2 is 1000 after 500"));
}

TEST_F(Plan, NoGuidanceAtOneAndBelow) {
  GenerateOptions options = one_expert();
  for (const double scale : {1.0, 0.0, -2.0}) {
    options.guidance_scale = scale;
    EXPECT_FALSE(plan_run(options, wan21).guided) << scale;
  }
}

TEST_F(Plan, SizesTheModelCannotMakeAreRefused) {
  GenerateOptions options = one_expert();
  options.height = 40;
  EXPECT_EQ(refusal(options), "height=40: this model makes multiples of 16; the nearest are 32 and 48");
  options.height = 16 * 1025;  // 1024 positions
  EXPECT_THAT(refusal(options), HasSubstr("positions for 16384 at most"));
  options = one_expert();
  options.num_frames = 8;
  EXPECT_EQ(refusal(options), "num_frames=8: this model makes 5 or 9 frames, not a number between");
  options.num_frames = 4 * 1024 + 1;  // 1025 latent frames
  EXPECT_THAT(refusal(options), HasSubstr("positions for 4093 frames at most"));
}

TEST_F(Plan, OneExpertTakesNothingForTwo) {
  GenerateOptions options = one_expert();
  options.guidance_scale_2 = 3;
  EXPECT_THAT(refusal(options), HasSubstr("guidance_scale_2: this model has one expert"));
  options = one_expert();
  options.boundary_ratio = 0.9;
  EXPECT_THAT(refusal(options), HasSubstr("boundary_ratio: this model has one expert"));
}

}  // namespace
}  // namespace zoetrope::pipeline
