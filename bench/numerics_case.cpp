// `bench numerics`: the error of every implementation and softmax against the float64 definition, for random data by
// length, and for rows whose scores are all near zero while the bound of fixed-max grows towards its gate: with too
// wide a gate these would lose all but their largest term. Times nothing.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "bench/attention_data.h"
#include "bench/cases.h"
#include "bench/words.h"
#include "device/stream.h"
#include "pipeline/settings/dtype_word.h"
#include "tensor/dispatch.h"

namespace zoetrope::bench {
namespace {

using kernels::FlashAttention;
using kernels::Softmax;

constexpr int kMostTokens = 1 << 20;
constexpr int64_t kMostScalarTokens = 4096;

struct Path {
  std::string implementation;
  Softmax softmax;
  const char* softmax_name;
};

constexpr std::pair<const char*, Softmax> kSoftmaxes[] = {
    {"online", Softmax::kOnline}, {"exact_online", Softmax::kExactOnline}, {"fixed_max", Softmax::kFixedMax}};

// Half a unit in the last place of the output: the largest error of rounding o alone.
double unit(DType dtype) { return dtype == DType::kBF16 ? 0x1p-9 : 0x1p-24; }
const char* unit_name(DType dtype) { return dtype == DType::kBF16 ? "2^-9" : "2^-24"; }

void set(const TensorView& x, int64_t token, int64_t d, double value) {
  with_compute_type(x.dtype(), "x", [&](auto tag) {
    using T = typename decltype(tag)::type;
    x.data<T>()[token * x.stride(1) + d] = from_float<T>(static_cast<float>(value));
  });
}

// Sets two keys far from the mean, on both sides of it along one axis, and queries along other axes, so that every
// score stays near zero with β = ‖q‖·ρ·scale·log₂e.
void set_far_keys(AttentionData& data, double beta) {
  constexpr double kFar = 64, kLog2E = 1.4426950408889634;
  const int64_t keys = data.k.extent(1), head_dim = data.k.extent(3);
  for (int64_t j = 0; j < keys; ++j) set(data.k, j, 0, 0);
  set(data.k, 1, 0, kFar);
  set(data.k, keys - 2, 0, -kFar);
  // The far keys' other elements are random like those of all keys, so ρ is a little above kFar.
  const double radius = std::sqrt(kFar * kFar + static_cast<double>(head_dim));
  const double norm = beta / (radius * static_cast<double>(data.problem().scale) * kLog2E);
  for (int64_t i = 0; i < data.q.extent(1); ++i) {
    for (int64_t d = 0; d < head_dim; ++d) set(data.q, i, d, 0);
    set(data.q, i, 1 + i % (head_dim - 1), norm);
  }
}

class NumericsBench {
 public:
  NumericsBench(const NumericsSettings& settings, const Progress& progress, Outcome& outcome)
      : settings_(settings), progress_(progress), outcome_(outcome), stream_(available_threads()) {
    table_.columns = {{"data", "data"},
                      {"dtype", "dtype"},
                      {"implementation", "implementation"},
                      {"softmax", "softmax"},
                      {"tokens", "S"},
                      {"beta", "beta", Format::kOneDecimal},
                      {"rel_l2", "rel L2", Format::kScientific},
                      {"tolerance", "tolerance", Format::kScientific, true},
                      {"units", "in units", Format::kOneDecimal},
                      {"max_abs", "max abs", Format::kScientific},
                      {"tiles_fixed", "fixed", Format::kCount},
                      {"tiles_online", "online", Format::kCount},
                      {"note", ""}};
  }

  void run() {
    for (const std::string& dtype : choose_dtypes("dtype", settings_.dtype)) {
      dtype_ = dtype;
      const DType type = pipeline::dtype_of(dtype);
      by_length(type);
      by_bound(type);
    }
  }

  Table& table() { return table_; }
  std::vector<LinePlot>& plots() { return plots_; }

 private:
  std::vector<Path> paths(const AttentionData& data) const {
    std::vector<Path> paths;
    for (const std::string& implementation : FlashAttention::implementations()) {
      if (!FlashAttention::refusal(data.problem(), implementation).empty()) continue;
      if (implementation == "scalar" && data.k.extent(1) > kMostScalarTokens) continue;
      for (const auto& [name, softmax] : kSoftmaxes) {
        if (implementation != "scalar" || softmax != Softmax::kExactOnline)
          paths.push_back({implementation, softmax, name});
      }
    }
    return paths;
  }

  void by_length(DType dtype) {
    LinePlot plot;
    plot.title = fmt::format("{}: error against length", dtype_);
    plot.x_label = fmt::format("tokens (one head of {})", settings_.head_dim);
    plot.y_label = fmt::format("relative L2 in units of {}", unit_name(dtype));
    for (const int tokens : parse_counts("tokens", settings_.tokens, kMostTokens, kMostTokens)) {
      const AttentionData data({"numerics", 1, tokens, tokens, 1, settings_.head_dim}, dtype);
      const SampledReference reference(data, settings_.rows);
      for (const Path& path : paths(data)) {
        const double units = measure("random", data, reference, path, {});
        if (path.implementation == "scalar") continue;
        add_point(plot, path, static_cast<double>(tokens), units);
      }
    }
    finish(std::move(plot));
  }

  void by_bound(DType dtype) {
    LinePlot plot;
    plot.title = fmt::format("{}: scores near zero, bound growing to the gate", dtype_);
    plot.x_label = "bound β of the rows' exponents";
    plot.y_label = fmt::format("relative L2 in units of {}", unit_name(dtype));
    for (const double beta : {8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 160.0, 192.0, 210.0, 230.0, 250.0}) {
      constexpr int64_t kTokens = 1024;
      AttentionData data({"numerics", 1, 256, kTokens, 1, settings_.head_dim}, dtype);
      set_far_keys(data, beta);
      const SampledReference reference(data, settings_.rows);
      // The implementation that runs unless one is forced.
      const std::string fastest = FlashAttention(data.problem()).implementation();
      for (const Path& path : paths(data)) {
        if (path.implementation != fastest) continue;
        add_point(plot, path, beta, measure("near zero", data, reference, path, beta));
      }
    }
    finish(std::move(plot));
  }

  // Adds a row; the error in units of the dtype.
  double measure(const char* what, const AttentionData& data, const SampledReference& reference, const Path& path,
                 std::optional<double> beta) {
    if (progress_) {
      progress_(
          fmt::format("{} {} {} {} S = {}", what, dtype_, path.implementation, path.softmax_name, data.k.extent(1)));
    }
    kernels::FlashProblem problem = data.problem();
    problem.implementation = path.implementation;
    problem.softmax = path.softmax;
    const Tensor o(problem.dtype, data.q.shape());
    const kernels::TileCounts tiles = FlashAttention(problem).attend(stream_, data.q, data.block(), o);
    const Verdict verdict = reference.check(o);
    if (!verdict.passed()) ++outcome_.wrong;
    Cell note;
    if (!verdict.passed()) note = verdict.note();
    const double units = verdict.relative_l2 / unit(problem.dtype);
    Cell bound;
    if (beta) bound = *beta;
    table_.add({std::string(what), dtype_, path.implementation, std::string(path.softmax_name), data.k.extent(1), bound,
                verdict.relative_l2, verdict.tolerance, units, verdict.max_abs, tiles.fixed, tiles.online, note});
    return units;
  }

  static void add_point(LinePlot& plot, const Path& path, double x, double y) {
    const std::string name = fmt::format("{} {}", path.implementation, path.softmax_name);
    auto line = std::find_if(plot.lines.begin(), plot.lines.end(), [&](const auto& l) { return l.name == name; });
    if (line == plot.lines.end()) {
      if (plot.lines.size() == kMostSeries) return;
      line = plot.lines.insert(plot.lines.end(), {name, {}});
    }
    line->points.push_back({x, y});
  }

  void finish(LinePlot&& plot) {
    std::erase_if(plot.lines, [](const auto& line) { return line.points.size() < 2; });
    if (!plot.lines.empty()) plots_.push_back(std::move(plot));
  }

  const NumericsSettings& settings_;
  const Progress& progress_;
  Outcome& outcome_;
  std::string dtype_;  // the word of the current one
  Stream stream_;
  Table table_;
  std::vector<LinePlot> plots_;
};

}  // namespace

OptionSet describe(NumericsSettings& settings) {
  OptionSet options;
  options.text("tokens", settings.tokens, "sequence lengths, ascending")
      .integer("head_dim", settings.head_dim, {2, 1024}, "D")
      .integer("rows", settings.rows, {1, 1 << 20}, "query rows compared with the float64 definition")
      .text("dtype", settings.dtype, "bf16, float32 or all");
  return options;
}

Section bench_numerics(const NumericsSettings& settings, const Progress& progress, Outcome& outcome) {
  NumericsBench bench(settings, progress, outcome);
  bench.run();
  Section section;
  section.name = "numerics";
  section.title = "Errors against the float64 definition";
  section.note =
      "Relative L2 of sampled rows against softmax in float64, also in units of 2^-24 (f32) and 2^-9 (bf16), the "
      "largest error of rounding the output alone. 'near zero': two keys far from the others give fixed-max softmax a "
      "bound β on exponents that are all near zero; beyond its gate rows use online softmax. A plot shows at most "
      "eight lines; the table has all.";
  section.line_plots = std::move(bench.plots());
  section.table = std::move(bench.table());
  return section;
}

}  // namespace zoetrope::bench
