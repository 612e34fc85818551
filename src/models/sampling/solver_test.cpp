#include "models/sampling/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "zoetrope/error.h"

#include "base/input_file.h"
#include "base/json.h"
#include "base/project_folders.h"
#include "io/weights/tensor_file.h"
#include "tensor/half.h"

namespace zoetrope::sampling {
namespace {

SolverConfig config_of(SolverKind kind, double shift, int64_t steps) {
  SolverConfig config;
  config.kind = kind;
  config.shift = shift;
  config.steps = steps;
  return config;
}

std::vector<JsonObject> recorded_tables() {
  const std::string where = std::string(kGoldenFolder) + "/schedulers/tables.json";
  return JsonObject::parse(R"({"tables": )" + read_file(where) + "}", where).objects("tables");
}

TEST(SolverTables, EqualTheRecordedOnes) {
  int checked = 0;
  for (const auto& table : recorded_tables()) {
    const auto name = table.get<std::string>("scheduler");
    const auto solver =
        Solver::create(config_of(parse_solver_kind(name), table.get<double>("shift"), table.get<int64_t>("steps")));
    const auto as_double = [](std::span<const float> values) {
      return std::vector<double>(values.begin(), values.end());
    };
    EXPECT_EQ(as_double(solver->timesteps()), table.get<std::vector<double>>("timesteps"));
    EXPECT_EQ(as_double(solver->sigmas()), table.get<std::vector<double>>("sigmas"));
    ++checked;
  }
  EXPECT_EQ(checked, 72);
}

// Ten steps of the grid that diffusers had until 0.36; σ printed with eight digits.
TEST(SolverTables, OldGrid) {
  struct Case {
    double shift;
    std::vector<float> timesteps;
    std::vector<double> sigmas;
  };
  const std::vector<Case> cases = {
      {3,
       {999, 963, 922, 874, 817, 749, 666, 562, 428, 249},
       {.99966645, .96394110, .92272168, .87463522, .81780970, .74962479, .66629612, .56214833, .42826521, .24979164}},
      {12,
       {999, 990, 979, 965, 947, 922, 888, 837, 749, 571},
       {.99991661, .99073470, .97949177, .96540618, .94724363, .92293477, .88872415, .83701444, .74976546, .57115632}}};
  for (const Case& one : cases) {
    SolverConfig config = config_of(SolverKind::kUniPC, one.shift, 10);
    config.grid = SigmaGrid::kFrom999;
    const auto solver = Solver::create(config);
    EXPECT_EQ(std::vector<float>(solver->timesteps().begin(), solver->timesteps().end()), one.timesteps);
    for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(solver->sigmas()[i], one.sigmas[i], 0.5e-8 + 6e-8);  // print, float32
    EXPECT_EQ(solver->sigmas()[10], 0.0f);
  }
}

// The levels of the grid, given instead of asked for, are the recorded table again: they are shifted like the grid's.
TEST(SolverTables, GivenLevelsEqualTheGridOfTheSameLevels) {
  int checked = 0;
  for (const auto& table : recorded_tables()) {
    const SolverKind kind = parse_solver_kind(table.get<std::string>("scheduler"));
    if (kind == SolverKind::kFlowMatchEuler) continue;
    const auto n = table.get<int64_t>("steps");
    SolverConfig config = config_of(kind, table.get<double>("shift"), 77);
    for (int64_t i = 0; i < n; ++i) {
      const double to = (1.0 / 1000 - 1.0) / static_cast<double>(n);
      config.sigmas.push_back(kind == SolverKind::kUniPC ? static_cast<double>(i) * to + 1.0
                                                         : 1.0 - (static_cast<double>(n - i) * to + 1.0));
    }
    if (kind == SolverKind::kDpmSolver) config.sigmas[0] = 1.0 - 1.0 / 1000;  // linspace ends exactly
    const auto solver = Solver::create(config);
    const std::vector<double> sigmas(solver->sigmas().begin(), solver->sigmas().end());
    const std::vector<double> timesteps(solver->timesteps().begin(), solver->timesteps().end());
    EXPECT_EQ(sigmas, table.get<std::vector<double>>("sigmas")) << n;
    EXPECT_EQ(timesteps, table.get<std::vector<double>>("timesteps")) << n;
    ++checked;
  }
  EXPECT_EQ(checked, 52);
}

// Four steps as distilled models take them, shift 5: 5u/(1 + 4u) of 1, 3/4, 1/2, 1/4 is 1, 15/16, 5/6, 5/8.
TEST(SolverTables, FourGivenLevels) {
  const std::vector<double> levels = {1, 0.75, 0.5, 0.25}, timesteps = {1000, 750, 500, 250};
  const std::vector<float> shifted = {1, 15.0f / 16, 5.0f / 6, 5.0f / 8};
  for (const SolverKind kind : {SolverKind::kUniPC, SolverKind::kDpmSolver, SolverKind::kFlowMatchEuler}) {
    const bool euler = kind == SolverKind::kFlowMatchEuler;
    for (const bool as_timesteps : {false, true}) {
      SolverConfig config = config_of(kind, 5, 50);
      (as_timesteps ? config.timesteps : config.sigmas) = as_timesteps ? timesteps : levels;
      const auto solver = Solver::create(config);
      ASSERT_EQ(solver->steps(), 4);
      EXPECT_EQ(solver->sigmas()[0], euler ? 1.0f : static_cast<float>(1 - 1e-6));  // log(1 − σ) must be finite
      for (size_t i = 1; i < 4; ++i) EXPECT_FLOAT_EQ(solver->sigmas()[i], shifted[i]);
      EXPECT_EQ(solver->sigmas()[4], 0.0f);
      const std::vector<float> told(solver->timesteps().begin(), solver->timesteps().end());
      if (euler) {
        for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(told[i], 1000 * shifted[i]);
      } else {
        EXPECT_EQ(told, (std::vector<float>{999, 937, 833, 625}));
      }
    }
  }
}

// Without a shift a whole timestep is told to the model as it was given.
TEST(SolverTables, GivenTimestepsAreWhole) {
  SolverConfig config = config_of(SolverKind::kUniPC, 1, 50);
  std::vector<float> expected;
  for (int t = 999; t >= 1; --t) {
    config.timesteps.push_back(t);
    expected.push_back(static_cast<float>(t));
  }
  const auto solver = Solver::create(config);
  EXPECT_EQ(std::vector<float>(solver->timesteps().begin(), solver->timesteps().end()), expected);
}

struct Recorded {
  const char* key;
  SolverKind kind;
  double shift;
  int64_t steps;
  VelocityDType velocity;
};

void PrintTo(const Recorded& recorded, std::ostream* out) { *out << recorded.key; }

class Trajectory : public testing::TestWithParam<Recorded> {};

TEST_P(Trajectory, FollowsTheRecordedOne) {
  const Recorded& recorded = GetParam();
  const auto file = io::TensorFile::open(std::string(kGoldenFolder) + "/schedulers/trajectories.safetensors");
  const TensorView velocities = file->flat(std::string(recorded.key) + ".v");
  const TensorView samples = file->flat(std::string(recorded.key) + ".samples");
  SolverConfig config = config_of(recorded.kind, recorded.shift, recorded.steps);
  config.velocity = recorded.velocity;
  const auto solver = Solver::create(config);
  const auto n = static_cast<size_t>(samples.size() / (recorded.steps + 1));
  std::vector<float> sample(samples.data<float>(), samples.data<float>() + n), velocity(n);
  float largest = 0;
  for (int64_t i = 0; i < samples.size(); ++i) largest = std::max(largest, std::abs(samples.data<float>()[i]));
  for (int64_t index = 0; index < recorded.steps; ++index) {
    for (size_t k = 0; k < n; ++k) {
      const size_t at = static_cast<size_t>(index) * n + k;
      velocity[k] =
          velocities.dtype() == DType::kBF16 ? to_float(velocities.data<BFloat16>()[at]) : velocities.data<float>()[at];
    }
    solver->step(index, velocity, sample);
    // The same float32 operations in the same order, but for log, expm1 and a 2 × 2 solve, whose last bits differ: a
    // few roundings of 2^-24 relative a step, which the falling σ_t/σ_s does not amplify.
    const double tolerance = 4 * std::ldexp(1.0, -24) * largest * static_cast<double>(index + 1);
    for (size_t k = 0; k < n; ++k) {
      const float expected = samples.data<float>()[static_cast<size_t>(index + 1) * n + k];
      EXPECT_NEAR(sample[k], expected, tolerance) << "step " << index << " element " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recorded, Trajectory,
    testing::Values(
        Recorded{"unipc.shift3.steps6.float32", SolverKind::kUniPC, 3, 6, VelocityDType::kF32},
        Recorded{"unipc.shift5.steps20.float32", SolverKind::kUniPC, 5, 20, VelocityDType::kF32},
        Recorded{"unipc.shift12.steps1.float32", SolverKind::kUniPC, 12, 1, VelocityDType::kF32},
        Recorded{"unipc.shift8.steps2.float32", SolverKind::kUniPC, 8, 2, VelocityDType::kF32},
        Recorded{"unipc.shift5.steps8.bfloat16", SolverKind::kUniPC, 5, 8, VelocityDType::kBF16},
        Recorded{"flow_match_euler.shift3.steps6.float32", SolverKind::kFlowMatchEuler, 3, 6, VelocityDType::kF32},
        Recorded{"flow_match_euler.shift7.steps20.float32", SolverKind::kFlowMatchEuler, 7, 20, VelocityDType::kF32},
        Recorded{"flow_match_euler.shift5.steps8.bfloat16", SolverKind::kFlowMatchEuler, 5, 8, VelocityDType::kBF16},
        Recorded{"dpmpp.shift3.steps6.float32", SolverKind::kDpmSolver, 3, 6, VelocityDType::kF32},
        Recorded{"dpmpp.shift5.steps20.float32", SolverKind::kDpmSolver, 5, 20, VelocityDType::kF32}),
    [](const testing::TestParamInfo<Recorded>& recorded) {
      std::string name = recorded.param.key;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

// v = x/2 + σ from x = 1, ten steps of shift 3: computed independently with the formulas in float64, six digits.
TEST(UniPC, ToyProblem) {
  const double expected[10] = {0.946488, 0.888447, 0.825327, 0.754945, 0.677173,
                               0.591862, 0.499839, 0.404785, 0.320017, 0.216276};
  const auto solver = Solver::create(config_of(SolverKind::kUniPC, 3, 10));
  float sample = 1;
  for (int64_t i = 0; i < 10; ++i) {
    const float velocity = 0.5f * sample + solver->sigmas()[static_cast<size_t>(i)];
    solver->step(i, {&velocity, 1}, {&sample, 1});
    EXPECT_NEAR(sample, expected[i], 0.5e-6 + 3e-6) << i;  // print; float32 λ, good to 1e-6, over ten steps
  }
}

// A constant velocity is integrated exactly by every order: x₀ − σ₀·v.
TEST(Solver, ConstantVelocityIsExact) {
  for (const SolverKind kind : {SolverKind::kUniPC, SolverKind::kFlowMatchEuler, SolverKind::kDpmSolver}) {
    for (const SigmaGrid grid : {SigmaGrid::kFromOne, SigmaGrid::kFrom999}) {
      for (const int64_t steps : {1, 2, 3, 7, 50}) {
        SolverConfig config = config_of(kind, 5, steps);
        config.grid = grid;
        const auto solver = Solver::create(config);
        float sample = 0.75f;
        const float velocity = -1.5f, expected = sample - solver->sigmas()[0] * velocity;
        for (int64_t i = 0; i < steps; ++i) solver->step(i, {&velocity, 1}, {&sample, 1});
        EXPECT_NEAR(sample, expected, 8 * std::ldexp(1.0, -24) * 2.25 * static_cast<double>(steps)) << steps;
      }
    }
  }
}

TEST(UniPC, IndexZeroBeginsAnew) {
  const auto solver = Solver::create(config_of(SolverKind::kUniPC, 3, 4));
  const auto run = [&](size_t size) {
    std::vector<float> sample(size, 1.0f);
    for (int64_t i = 0; i < 4; ++i) {
      const std::vector<float> velocity = sample;
      solver->step(i, velocity, sample);
    }
    return sample;
  };
  const auto first = run(3);
  const auto second = run(5);
  EXPECT_EQ(first[0], second[4]);
  float interrupted = 2;
  solver->step(0, {&interrupted, 1}, {&interrupted, 1});
  EXPECT_EQ(run(3), first);
}

// Second order converges faster than first, and leaving the corrector out changes the result.
TEST(UniPC, OrderAndCorrectorMatter) {
  const auto run = [](SolverConfig config, int64_t steps) {
    config.steps = steps;
    const auto solver = Solver::create(config);
    float sample = 1;
    for (int64_t i = 0; i < steps; ++i) {
      const float velocity = 0.5f * sample + solver->sigmas()[static_cast<size_t>(i)];
      solver->step(i, {&velocity, 1}, {&sample, 1});
    }
    return static_cast<double>(sample);
  };
  SolverConfig second = config_of(SolverKind::kUniPC, 3, 1), first = second, uncorrected = second;
  first.solver_order = 1;
  for (int64_t i = 0; i < 40; ++i) uncorrected.disable_corrector.push_back(i);
  // dx/dσ = x/2 + σ from σ = 1 to 0: x = C·e^(σ/2) − 2σ − 4, C = 7·e^(−1/2).
  const double exact = 7 * std::exp(-0.5) - 4;
  EXPECT_LT(std::abs(run(second, 40) - exact), std::abs(run(first, 40) - exact));
  EXPECT_LT(std::abs(run(second, 80) - exact), std::abs(run(second, 20) - exact));
  EXPECT_NE(run(second, 40), run(uncorrected, 40));
}

TEST(Solver, ValuesOutOfRangeAreRefused) {
  const auto refusal = [](auto change) -> std::string {
    SolverConfig config;
    change(config);
    try {
      Solver::create(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](SolverConfig&) {}), "no error");
  EXPECT_THAT(refusal([](SolverConfig& c) { c.steps = 0; }), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(refusal([](SolverConfig& c) { c.steps = 1001; }), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(refusal([](SolverConfig& c) { c.shift = -1; }), HasSubstr("flow shift"));
  EXPECT_THAT(refusal([](SolverConfig& c) { c.shift = NAN; }), HasSubstr("flow shift"));
  EXPECT_THAT(refusal([](SolverConfig& c) { c.solver_order = 3; }), HasSubstr("solver_order"));
  EXPECT_THAT(refusal([](SolverConfig& c) { c.num_train_timesteps = 0; }), HasSubstr("num_train_timesteps"));
  EXPECT_THAT(refusal([](SolverConfig& c) {
                c.shift = 1000;
                c.steps = 1000;
              }),
              HasSubstr("smaller shift"));
  const auto given = [&](std::vector<double> sigmas, std::vector<double> timesteps = {}) {
    return refusal([&](SolverConfig& c) {
      c.sigmas = std::move(sigmas);
      c.timesteps = std::move(timesteps);
    });
  };
  EXPECT_EQ(given({1, 0.5}), "no error");
  EXPECT_EQ(given({}, {1000, 3.5}), "no error");
  EXPECT_THAT(given({1, 0.5}, {1000, 500}), HasSubstr("one of them"));
  EXPECT_THAT(given({0.5, 1}), HasSubstr("must fall"));
  EXPECT_THAT(given({0.5, 0.5}), HasSubstr("value 2 of 2"));
  EXPECT_THAT(given({1000, 500}), HasSubstr("at most 1"));
  EXPECT_THAT(given({1, 0.5, 0}), HasSubstr("leave the final 0 out"));
  EXPECT_THAT(given({1, NAN}), HasSubstr("value 2 of 2"));
  EXPECT_THAT(given({}, {1001, 500}), HasSubstr("at most 1000"));
  EXPECT_THAT(given({1, -0.5}), HasSubstr("above 0"));
  EXPECT_THAT(given({1, 1 - 1e-12}), HasSubstr("further apart"));
  EXPECT_EQ(refusal([](SolverConfig& c) {
              c.shift = 16;
              c.steps = 1000;
            }),
            "no error");
  EXPECT_THROW(parse_solver_kind("dpm"), Error);
}

}  // namespace
}  // namespace zoetrope::sampling
