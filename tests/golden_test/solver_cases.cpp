// schedulers: tables of noise levels and trajectories of prescribed model outputs. rng: PyTorch's normal numbers.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/input_file.h"
#include "io/weights/tensor_file.h"
#include "models/sampling/random.h"
#include "models/sampling/solver.h"
#include "report.h"
#include "tensor/half.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

sampling::SolverConfig solver_config(const std::string& scheduler, double shift, int64_t steps) {
  sampling::SolverConfig config;
  config.kind = sampling::parse_solver_kind(scheduler);
  config.shift = shift;
  config.steps = steps;
  return config;
}

std::vector<double> as_doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

void check_tables(Report& report, const fs::path& file) {
  for (const nlohmann::json& entry : parse_json(read_file(file), file.string())) {
    const std::string scheduler = entry.at("scheduler");
    const double shift = entry.at("shift");
    const int64_t steps = entry.at("steps");
    const std::string name = fmt::format("tables.{}.shift{}.steps{}", scheduler, shift, steps);
    const auto solver = sampling::Solver::create(solver_config(scheduler, shift, steps));
    report.check_equal(name + ".timesteps", as_doubles(solver->timesteps()), entry.at("timesteps"));
    report.check_equal(name + ".sigmas", as_doubles(solver->sigmas()), entry.at("sigmas"));
  }
}

// A solver step is a handful of float32 operations on values of one size, each off by at most 2^-24 relative; over up
// to 20 steps of about 16 operations a random walk gives √320·2^-24 ≈ 1.1e-6 where terms of opposite sign are as large
// as the sample. The recordings carry the same error.
constexpr Deviation kTrajectory{2e-6, 0};

void check_trajectory(Report& report, const io::TensorFile& data, const std::string& key, const nlohmann::json& entry) {
  const std::string scheduler = entry.at("scheduler");
  sampling::SolverConfig config = solver_config(scheduler, entry.at("shift"), entry.at("steps"));
  if (entry.at("model_output_dtype") == "bfloat16") config.velocity = sampling::VelocityDType::kBF16;
  const auto solver = sampling::Solver::create(config);
  const std::vector<double> outputs = to_doubles(data.flat(key + ".v"));
  const TensorView samples = data.flat(key + ".samples");
  const std::vector<double> recorded = to_doubles(samples);
  const size_t size = outputs.size() / static_cast<size_t>(config.steps);
  std::vector<float> sample(recorded.begin(), recorded.begin() + static_cast<std::ptrdiff_t>(size));
  Tensor walked(DType::kF32, {config.steps, static_cast<int64_t>(size)}), reference(DType::kF32, walked.shape());
  for (int64_t i = 0; i < config.steps; ++i) {
    const auto at = static_cast<size_t>(i) * size;
    const std::vector<float> velocity(outputs.begin() + static_cast<std::ptrdiff_t>(at),
                                      outputs.begin() + static_cast<std::ptrdiff_t>(at + size));
    solver->step(i, velocity, sample);
    for (size_t n = 0; n < size; ++n) {
      walked.data<float>()[at + n] = sample[n];
      reference.data<float>()[at + n] = static_cast<float>(recorded[at + size + n]);
    }
  }
  // Where the sample itself is rounded to bf16, a rounding that falls the other way is one bf16 step: the float32
  // difference that decides it is rare, and bounded by the format.
  const bool bf16_samples = entry.value("sample_dtype_returned", "float32") == "bfloat16";
  report.check(key, walked, reference, bf16_samples ? Deviation{0x1p-9, 0} : kTrajectory);
}

// Within 2e-6 of the recorded value; a bf16 value must be the rounding of something that near.
void check_normals(Report& report, const std::string& name, const std::vector<float>& ours,
                   const TensorView& recorded) {
  const std::vector<double> reference = to_doubles(recorded);
  const bool bf16 = recorded.dtype() == DType::kBF16;
  report.check_that(name, "within 2e-6", [&](bool moved) {
    if (ours.size() != reference.size()) return false;
    for (size_t i = 0; i < ours.size(); ++i) {
      constexpr float kNear = 2e-6f;
      const float value = ours[i] + (moved ? (bf16 ? 0.02f * std::abs(ours[i]) + 0.02f : 10 * kNear) : 0);
      const auto r = static_cast<float>(reference[i]);
      const float low = value - kNear, high = value + kNear;
      if (bf16 ? r < to_float(to_bfloat16(low)) || r > to_float(to_bfloat16(high)) : !(low <= r && r <= high)) {
        return false;
      }
    }
    return true;
  });
}

template <typename T>
std::vector<float> draw(sampling::TorchGenerator& generator, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  generator.randn(std::span<T>(values));
  std::vector<float> out;
  for (const T value : values) out.push_back(to_float(value));
  return out;
}

}  // namespace

void run_scheduler_case(Report& report, const fs::path& folder) {
  check_tables(report, folder / "tables.json");
  const auto data = io::TensorFile::open(folder / "trajectories.safetensors");
  const JsonObject recorded = load_case(folder);  // outlives the loop over what it owns
  for (const nlohmann::json& entry : recorded.raw().at("trajectories")) {
    check_trajectory(report, *data, entry.at("key"), entry);
  }
}

void run_rng_case(Report& report, const fs::path& folder) {
  static const std::regex plain("seed([0-9]+)\\.[0-9x]+\\.(f32|bf16)"), second("seed([0-9]+)\\.second_draw\\.first");
  const auto data = io::TensorFile::open(folder / "randn.safetensors");
  for (const auto& [name, info] : data->tensors()) {
    std::smatch match;
    const TensorView recorded = data->tensor(name);
    if (std::regex_match(name, match, plain)) {
      sampling::TorchGenerator generator(std::stoull(match[1]));
      const bool bf16 = match[2] == "bf16";
      check_normals(report, name,
                    bf16 ? draw<BFloat16>(generator, recorded.size()) : draw<float>(generator, recorded.size()),
                    recorded);
    } else if (std::regex_match(name, match, second)) {
      const std::string next = name.substr(0, name.size() - 5) + "second";
      sampling::TorchGenerator generator(std::stoull(match[1]));
      check_normals(report, name, draw<float>(generator, recorded.size()), recorded);
      check_normals(report, next, draw<float>(generator, data->tensor(next).size()), data->tensor(next));
    } else if (name.find(".second_draw.second") == std::string::npos) {  // checked with its first
      report.fail(name, "no test knows this kind of draw");
    }
  }
}

}  // namespace zoetrope::golden
