#include "pipeline/planning/measured_profile.h"

#include <gtest/gtest.h>

#include "machine/test_figures.h"
#include "pipeline/planning/profile_choice.h"
#include "planner/calibrated.h"

namespace zoetrope::pipeline {
namespace {

machine::KnownMachine machine_of(double speed) {
  return {machine::test_figures(speed), {"a CPU", 8, "avx2", "1.2.3"}, "2026-01-02", {}};
}

// What the planner divides operations by, at the sizes that were measured, is what was measured.
TEST(MeasuredProfile, GoesThroughTheMeasuredPoints) {
  const planner::HardwareProfile any_cpu = find_profile("cpu");
  for (const double speed : {0.01, 1.0, 50.0}) {
    const machine::KnownMachine machine = machine_of(speed);
    const planner::HardwareProfile profile = measured_profile(any_cpu, machine);
    for (const auto& [compute, rates] :
         {std::pair(&profile.bf16, &machine.figures.bf16), std::pair(&profile.float32, &machine.figures.float32)}) {
      const auto tokens = static_cast<double>(rates->attention_tokens);
      EXPECT_NEAR(compute->peak * compute->gemm.at(static_cast<double>(rates->gemm_rows)) / rates->gemm, 1, 1e-9);
      EXPECT_NEAR(compute->peak * compute->attention.at(tokens) * compute->attention_keys.at(tokens) / rates->attention,
                  1, 1e-9);
      EXPECT_EQ(compute->int8_gain, rates->int8_gain);
      EXPECT_EQ(compute->fixed_max_gain, rates->fixed_max_gain);
      EXPECT_EQ(compute->int8_attention_gain, rates->int8_attention_gain);
      EXPECT_NEAR(compute->peak * compute->convolution / rates->convolution, 1, 1e-9);
      EXPECT_EQ(compute->peak, rates->peak) << "nothing was faster";
    }
    EXPECT_EQ(profile.memory_bandwidth, machine.figures.copy);
    EXPECT_EQ(profile.host_read, machine.figures.host_read);
    EXPECT_EQ(profile.token_seconds, machine.figures.token_seconds);
    EXPECT_EQ(profile.layer_overhead, machine.figures.layer_overhead);
    for (const auto& assumed : profile.assumed) EXPECT_TRUE(assumed.figure.starts_with("links.")) << assumed.figure;
  }
}

// Matrix units that a library alone knows: no fraction may be above 1, and products still take what they took.
TEST(MeasuredProfile, TheFastestOperationIsThePeak) {
  machine::KnownMachine machine = machine_of(1);
  machine.figures.bf16.gemm = 3 * machine.figures.bf16.peak;
  const planner::HardwareProfile profile = measured_profile(find_profile("cpu"), machine);
  EXPECT_GE(profile.bf16.peak, machine.figures.bf16.gemm);
  EXPECT_NEAR(profile.bf16.peak * profile.bf16.gemm.at(1024) / machine.figures.bf16.gemm, 1, 1e-9);
}

// Winograd's algorithm does more than the peak of what is counted, up to 9/4.
TEST(MeasuredProfile, ConvolutionsMayBeFasterThanThePeak) {
  for (const double gain : {1.7, 3.0}) {
    machine::KnownMachine machine = machine_of(1);
    machine.figures.bf16.convolution = gain * machine.figures.bf16.peak;
    const planner::HardwareProfile profile = measured_profile(find_profile("cpu"), machine);
    EXPECT_NEAR(profile.bf16.peak / machine.figures.bf16.peak, std::max(1.0, gain / 2.25), 1e-9);
    EXPECT_NEAR(profile.bf16.peak * profile.bf16.convolution / machine.figures.bf16.convolution, 1, 1e-9);
    EXPECT_LE(profile.bf16.convolution, 2.25);
  }
}

// Of any rates: a fraction of the peak that rounding makes more than 1 would be refused.
TEST(MeasuredProfile, RoundingMakesNoFractionMoreThanOne) {
  const planner::HardwareProfile any_cpu = find_profile("cpu");
  for (int i = 0; i < 500; ++i) {
    machine::KnownMachine machine = machine_of(1);
    machine.figures.bf16.gemm *= 3 + i / 7.0;
    machine.figures.float32.attention *= 40 + i / 11.0;
    const planner::HardwareProfile profile = measured_profile(any_cpu, machine);
    EXPECT_LE(profile.bf16.gemm.at(1024), 1);
  }
}

TEST(MeasuredProfile, IsSharedOutToTheRanksOfAHost) {
  const planner::HardwareProfile whole = measured_profile(find_profile("cpu"), machine_of(1));
  const planner::HardwareProfile four = planner::for_ranks(whole, 4, 2, 8);
  EXPECT_NEAR(four.bf16.peak, whole.bf16.peak / 4, 1);
  EXPECT_EQ(four.devices, 4);
  EXPECT_EQ(four.devices_per_host, 4);
  const planner::HardwareProfile two_of_eight = planner::for_ranks(whole, 1, 2, 8);
  EXPECT_NEAR(two_of_eight.bf16.peak, whole.bf16.peak / 4, 1) << "two of eight cores";
}

}  // namespace
}  // namespace zoetrope::pipeline
