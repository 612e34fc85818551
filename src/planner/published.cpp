#include "planner/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/words.h"

namespace zoetrope::planner {
namespace {

constexpr const char* kTpu = "tpu_v7x_8";
constexpr const char* kGb200 = "gb200_nvl72";
constexpr const char* kH100 = "h100_8";

// Tiles of queries in the v7x runs; elsewhere the profile's.
constexpr int64_t kSmallTile = 4096, kUlyssesTile = 8448;

struct Split {
  int data = 1, ulysses = 1, ring = 1;
};

Configuration configuration(Split split, int64_t block_q = 0, parallel::Softmax softmax = parallel::Softmax::kOnline) {
  Configuration made;
  made.layout.data = split.data;
  made.layout.context = {split.ulysses, split.ring};
  made.softmax = softmax;
  made.block_q = block_q;
  return made;
}

std::vector<PublishedRow> tpu_rows() {
  const std::string source = "Wan 2.2 A14B in JAX on TPU v7x-8";
  const auto row = [&](const char* name, const Configuration& made, int branches, double seconds) {
    return PublishedRow{kTpu, name, made, branches, 2, PublishedTime::kStep, seconds, source};
  };
  return {
      row("CP4 U2R2", configuration({2, 2, 2}), 2, 2.733),
      row("CP4 U4, block_q 8448", configuration({2, 4, 1}, kUlyssesTile), 2, 3.06),
      row("CP8 U4R2, one branch", configuration({1, 4, 2}), 1, 1.595),
      row("CP8 U8, one branch", configuration({1, 8, 1}), 1, 1.590),
      row("CP4 R4, block_q 4096", configuration({2, 1, 4}, kSmallTile), 2, 3.74),
      row("CP8 U4R2, one branch, block_q 4096", configuration({1, 4, 2}, kSmallTile), 1, 1.98),
      row("CP4 U2R2, fixed_max", configuration({2, 2, 2}, 0, parallel::Softmax::kFixedMax), 2, 2.633),
      row("CP4 U4, fixed_max", configuration({2, 4, 1}, 0, parallel::Softmax::kFixedMax), 2, 2.895),
      row("CP8 U8, both branches", configuration({1, 8, 1}), 2, 3.10),
      row("CP8 U8, both branches, fixed_max", configuration({1, 8, 1}, 0, parallel::Softmax::kFixedMax), 2, 2.95),
  };
}

std::vector<PublishedRow> gpu_rows() {
  std::vector<PublishedRow> rows;
  const auto gb200 = [&](Split split, double seconds) {
    const int gpus = split.data * split.ulysses * split.ring;
    rows.push_back(
        {kGb200, fmt::format("{}: data {}, U{}R{}", counted(gpus, "GPU"), split.data, split.ulysses, split.ring),
         configuration(split), 2, 2, PublishedTime::kDenoise, seconds, "pull request 13821 of NVIDIA/TensorRT-LLM"});
  };
  gb200({1, 1, 1}, 348.40);
  gb200({2, 1, 1}, 174.00);
  gb200({2, 2, 1}, 95.89);
  gb200({2, 4, 1}, 48.06);
  gb200({2, 4, 2}, 25.60);
  gb200({2, 4, 3}, 18.46);
  gb200({2, 8, 2}, 14.12);
  gb200({2, 8, 4}, 8.48);
  // Its code splits the sequence alone and decodes in float32 on one GPU.
  const auto h100 = [&](Split split, double seconds) {
    rows.push_back({kH100, fmt::format("{}: U{}", counted(split.ulysses, "GPU"), split.ulysses), configuration(split),
                    2, 4, PublishedTime::kRun, seconds, "Wan 2.2's own code, whole runs"});
  };
  h100({1, 1, 1}, 1041.5);
  h100({1, 4, 1}, 288.7);
  h100({1, 8, 1}, 155.1);
  return rows;
}

std::vector<PublishedRow> rows_of(const std::vector<PublishedRow>& rows, const std::string& machine) {
  std::vector<PublishedRow> found;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(found),
               [&](const PublishedRow& row) { return row.machine == machine; });
  return found;
}

// A figure that is fitted, as a number that the prediction is close to linear in.
struct Parameter {
  std::function<double(const HardwareProfile&)> get;
  std::function<void(HardwareProfile&, double)> set;
};

Parameter field(double HardwareProfile::*member) {
  return {[member](const HardwareProfile& profile) { return profile.*member; },
          [member](HardwareProfile& profile, double value) { profile.*member = value; }};
}

// The inverse of the share of the peak that attention reaches with small tiles.
Parameter small_tile() {
  const auto get = [](const HardwareProfile& profile) {
    return 1 / profile.bf16.attention.at(static_cast<double>(kSmallTile));
  };
  const auto set = [](HardwareProfile& profile, double inverse) {
    std::vector<Curve::Point> points = profile.bf16.attention.points();
    for (Curve::Point& point : points)
      if (point.x == static_cast<double>(kSmallTile)) point.y = 1 / inverse;
    profile.bf16.attention = Curve(std::move(points));
  };
  return {get, set};
}

// The share of a transfer between chips that slows down the compute next to it.
Parameter slowdown_by_hops() {
  const auto get = [](const HardwareProfile& profile) { return 1 - profile.links.back().overlap; };
  const auto set = [](HardwareProfile& profile, double share) { profile.links.back().overlap = 1 - share; };
  return {get, set};
}

// The inverse of the share of the peak that long matrix multiplications reach, and attention with it.
Parameter efficiency() {
  const auto get = [](const HardwareProfile& profile) { return 1 / profile.bf16.gemm.points().back().y; };
  const auto set = [get](HardwareProfile& profile, double inverse) {
    const double factor = get(profile) / inverse;
    profile.bf16.gemm.scale(factor);
    profile.bf16.attention.scale(factor);
  };
  return {get, set};
}

std::vector<Parameter> parameters(const std::string& machine) {
  if (fitted(machine) == Fitted::kEfficiency) return {efficiency()};
  return {small_tile(), field(&HardwareProfile::token_seconds), field(&HardwareProfile::layer_overhead),
          slowdown_by_hops()};
}

using Matrix = std::vector<std::vector<double>>;

// Gaussian elimination with the largest pivot of each column; `a` has the right side as its last column.
std::vector<double> solve(Matrix a) {
  const size_t n = a.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row)
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    std::swap(a[pivot], a[column]);
    ZT_CHECK(a[column][column] != 0, "the runs do not tell the fitted figures apart");
    for (size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = a[row][column] / a[column][column];
      for (size_t i = column; i <= n; ++i) a[row][i] -= factor * a[column][i];
    }
  }
  std::vector<double> x;
  for (size_t row = 0; row < n; ++row) x.push_back(a[row][n] / a[row][row]);
  return x;
}

}  // namespace

std::vector<PublishedRow> published_rows() {
  std::vector<PublishedRow> rows = tpu_rows();
  for (PublishedRow& row : gpu_rows()) rows.push_back(std::move(row));
  return rows;
}

Work published_work(const PublishedRow& row) {
  constexpr int64_t kFrames = 21, kRows = 90, kColumns = 160;  // of the latents; patches are 1 x 2 x 2 of 16 channels
  constexpr double kFfn = 13824, kPatch = 64;
  Work work;
  work.name = "Wan 2.2 A14B, 1280 x 720, 81 frames";
  work.layers = 40;
  work.tokens = kFrames * kRows * kColumns / 4;
  work.heads = 40;
  work.head_dim = 128;
  work.width = 5120;
  work.element_bytes = 2;
  const auto tokens = static_cast<double>(work.tokens), width = static_cast<double>(work.width);
  // q, k, v and out; q and out of cross-attention, whose keys and values are made once a prompt; two of the ffn.
  work.linear_flop = 2 * tokens * (6 * width * width + 2 * width * kFfn);
  work.cross_flop = 4 * tokens * static_cast<double>(work.text_rows) * width;
  work.ends_flop = 2 * tokens * width * 2 * kPatch;
  work.branches = row.branches;
  work.steps = 40;
  work.latent_bytes = work.tokens * static_cast<int64_t>(kPatch) * work.element_bytes;
  work.vae_flop = 639e12;  // the decoder of Wan 2.1 at this size
  work.vae_rows = kRows;
  work.vae_element_bytes = row.vae_element_bytes;
  // UMT5-XXL: 24 layers of width 4096, ffn 10240 with a gate; its 5.68e9 parameters in bf16.
  work.text_flop =
      2.0 * 24 * (4 * 4096.0 * 4096 + 3 * 4096.0 * 10240) * static_cast<double>(work.text_rows) * row.branches;
  work.text_weights = Bytes(11'360'000'000);
  return work;
}

double predicted_seconds(const PublishedRow& row, const HardwareProfile& hardware) {
  const RunPrediction run = simulate_run(published_work(row), hardware, row.configuration);
  switch (row.time) {
    case PublishedTime::kStep:
      return run.step.seconds;
    case PublishedTime::kDenoise:
      return run.denoise;
    case PublishedTime::kRun:
      return run.total() - run.load;
  }
  return 0;
}

Fitted fitted(const std::string& machine) { return machine == kTpu ? Fitted::kConstants : Fitted::kEfficiency; }

// Gauss-Newton; the prediction is piecewise linear in the parameters, so that a few steps do.
HardwareProfile fit(const HardwareProfile& hardware, const std::vector<PublishedRow>& rows) {
  constexpr int kSteps = 6;
  constexpr double kDifference = 1e-3;  // relative
  HardwareProfile best = hardware;
  const std::vector<Parameter> figures = parameters(hardware.name);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> residuals;
    for (const PublishedRow& row : rows) residuals.push_back(predicted_seconds(row, best) / row.seconds - 1);
    Matrix slopes;  // [parameter, row], for a relative change
    for (const Parameter& figure : figures) {
      HardwareProfile moved = best;
      figure.set(moved, figure.get(best) * (1 + kDifference));
      std::vector<double>& slope = slopes.emplace_back();
      for (size_t r = 0; r < rows.size(); ++r)
        slope.push_back((predicted_seconds(rows[r], moved) / rows[r].seconds - 1 - residuals[r]) / kDifference);
    }
    Matrix normal(figures.size(), std::vector<double>(figures.size() + 1, 0.0));
    for (size_t i = 0; i < figures.size(); ++i) {
      for (size_t r = 0; r < rows.size(); ++r) {
        for (size_t j = 0; j < figures.size(); ++j) normal[i][j] += slopes[i][r] * slopes[j][r];
        normal[i][figures.size()] -= slopes[i][r] * residuals[r];
      }
    }
    const std::vector<double> change = solve(std::move(normal));
    for (size_t i = 0; i < figures.size(); ++i) {
      // No figure changes its sign.
      figures[i].set(best, figures[i].get(best) * std::max(0.1, 1 + change[i]));
    }
  }
  return best;
}

std::vector<PublishedResult> compare_published(const std::filesystem::path& folder) {
  std::vector<PublishedResult> results;
  const std::vector<PublishedRow> all = published_rows();
  for (const char* machine : {kTpu, kGb200, kH100}) {
    const HardwareProfile shipped = load_hardware(folder / (std::string(machine) + ".yml"));
    const std::vector<PublishedRow> rows = rows_of(all, machine);
    const HardwareProfile used = fitted(machine) == Fitted::kConstants ? shipped : fit(shipped, rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<PublishedRow> others = rows;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(r));
      results.push_back({rows[r], predicted_seconds(rows[r], used), predicted_seconds(rows[r], fit(shipped, others))});
    }
  }
  return results;
}

std::string published_table(const std::vector<PublishedResult>& results) {
  std::string text = "| machine | run | published s | model s | error | left out |\n|---|---|---|---|---|---|\n";
  for (const PublishedResult& result : results) {
    text += fmt::format("| {} | {} | {:.5g} | {:.4g} | {:+.1f} % | {:+.1f} % |\n", result.row.machine, result.row.name,
                        result.row.seconds, result.predicted, 100 * result.error(), 100 * result.left_out_error());
  }
  return text;
}

}  // namespace zoetrope::planner
