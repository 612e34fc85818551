#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/error.h"
#include "base/input_file.h"
#include "tensor/half.h"

namespace zoetrope::golden {

JsonObject load_case(const std::filesystem::path& folder) {
  static const std::regex not_json(":\\s*(-?Infinity|NaN)");
  const std::filesystem::path path = folder / "case.json";
  return JsonObject::parse(std::regex_replace(read_file(path), not_json, ": null"), path.string());
}

NoiseFloor::NoiseFloor(const JsonObject& case_json) {
  if (!case_json.has("noise")) return;
  const JsonObject noise = case_json.object("noise");
  for (const std::string& key : noise.keys()) {
    const JsonObject entry = noise.object(key);
    entries_[key] = {entry.get<double>("rel_l2"), entry.get<double>("max_abs")};
  }
}

bool NoiseFloor::has(const std::string& kind, const std::string& run) const {
  const std::string prefix = (run.empty() ? "" : run + ".") + kind + ".";
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first.rfind(prefix, 0) == 0; });
}

Deviation NoiseFloor::of(const std::string& kind, const std::string& tensor, const std::string& run) const {
  const std::string prefix = (run.empty() ? "" : run + ".") + kind + ".";
  if (const auto own = entries_.find(prefix + tensor); own != entries_.end()) return own->second;
  Deviation largest;
  for (const auto& [key, error] : entries_) {
    if (key.rfind(prefix, 0) != 0) continue;
    largest.rel_l2 = std::max(largest.rel_l2, error.rel_l2);
    largest.max_abs = std::max(largest.max_abs, error.max_abs);
  }
  if (largest.rel_l2 == 0) zoetrope::fail("case.json records no noise of kind {}", prefix);
  return largest;
}

Deviation float32_tolerance(Deviation noise) { return {4 * noise.rel_l2, 4 * noise.max_abs}; }
Deviation bf16_tolerance(Deviation noise) { return {1.5 * noise.rel_l2, 0}; }

std::vector<double> to_doubles(const TensorView& tensor) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(tensor.size()));
  std::vector<int64_t> index(static_cast<size_t>(tensor.rank()), 0);
  for (int64_t n = 0; n < tensor.size(); ++n) {
    int64_t offset = 0;
    for (int axis = 0; axis < tensor.rank(); ++axis) offset += index[static_cast<size_t>(axis)] * tensor.stride(axis);
    switch (tensor.dtype()) {
      case DType::kF32:
        out.push_back(tensor.data<float>()[offset]);
        break;
      case DType::kBF16:
        out.push_back(to_float(tensor.data<BFloat16>()[offset]));
        break;
      case DType::kF64:
        out.push_back(tensor.data<double>()[offset]);
        break;
      case DType::kI64:
        out.push_back(static_cast<double>(tensor.data<int64_t>()[offset]));
        break;
      case DType::kU8:
        out.push_back(tensor.data<uint8_t>()[offset]);
        break;
      default:
        zoetrope::fail("golden_test cannot compare dtype {}", dtype_name(tensor.dtype()));
    }
    for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
      if (++index[static_cast<size_t>(axis)] < tensor.extent(axis)) break;
      index[static_cast<size_t>(axis)] = 0;
    }
  }
  return out;
}

namespace {

Deviation difference(const std::vector<double>& ours, const std::vector<double>& reference) {
  double sum = 0, norm = 0, most = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double d = ours[i] - reference[i];
    // A NaN must not slip through a comparison.
    most = std::isnan(d) ? INFINITY : std::max(most, std::abs(d));
    sum += d * d;
    norm += reference[i] * reference[i];
  }
  return {std::isfinite(sum) ? std::sqrt(sum / std::max(norm, 1e-300)) : INFINITY, most};
}

bool within(Deviation error, Deviation tolerance) {
  return error.rel_l2 <= tolerance.rel_l2 && (tolerance.max_abs == 0 || error.max_abs <= tolerance.max_abs);
}

}  // namespace

void Report::line(bool pass, const std::string& tensor, double error, double tolerance, const std::string& reason) {
  ++(pass ? passed_ : failed_);
  fmt::print("{} {} {} {:.3g} {:.3g} {}\n", pass ? "PASS" : "FAIL", case_, tensor, error, tolerance, reason);
}

void Report::skip(const std::string& tensor, const std::string& reason) {
  ++skipped_;
  fmt::print("SKIP {} {} 0 0 {}\n", case_, tensor, reason);
}

void Report::absent(const std::vector<std::string>& names) {
  for (const std::string& name : names) skip(name, "not recorded by this case");
}

void Report::fail(const std::string& tensor, const std::string& reason) { line(false, tensor, INFINITY, 0, reason); }

void Report::check(const std::string& tensor, const TensorView& ours, const TensorView& reference,
                   Deviation tolerance) {
  if (!(ours.shape() == reference.shape())) {
    fail(tensor, fmt::format("shape {} instead of {}", ours.shape().to_string(), reference.shape().to_string()));
    return;
  }
  std::vector<double> a = to_doubles(ours);
  const std::vector<double> b = to_doubles(reference);
  if (mode_ == Mode::kSelfTest) {
    // Every value moves alike, so that the move itself is ten tolerances in relative L2 (and away from zero).
    double norm = 0;
    for (const double value : b) norm += value * value;
    const double move = 10 * tolerance.rel_l2 * std::sqrt(std::max(norm, 1e-300) / static_cast<double>(b.size()));
    for (double& value : a) value += move;
  }
  const Deviation error = difference(a, b);
  const bool good = within(error, tolerance);
  const std::string detail = fmt::format("rel_l2 (max_abs {:.3g}{})", error.max_abs,
                                         tolerance.max_abs > 0 ? fmt::format(" of {:.3g}", tolerance.max_abs) : "");
  line(mode_ == Mode::kCheck ? good : !good, tensor, error.rel_l2, tolerance.rel_l2,
       mode_ == Mode::kCheck ? detail : detail + ", moved by ten tolerances");
}

void Report::check_equal(const std::string& tensor, const std::vector<double>& ours,
                         const std::vector<double>& reference) {
  check_that(tensor, fmt::format("equal, {} values", reference.size()), [&](bool moved) {
    std::vector<double> a = ours;
    if (moved && !a.empty()) a.back() = std::nextafter(static_cast<float>(a.back()), 1e30f);
    return !a.empty() && a == reference;
  });
}

void Report::check_text(const std::string& tensor, const std::string& ours, const std::string& reference) {
  check_that(tensor, "equal text", [&](bool moved) { return (moved ? ours + "x" : ours) == reference; });
}

void Report::check_levels(const std::string& tensor, const TensorView& ours, const TensorView& reference) {
  if (!(ours.shape() == reference.shape())) {
    fail(tensor, fmt::format("shape {} instead of {}", ours.shape().to_string(), reference.shape().to_string()));
    return;
  }
  const std::vector<double> a = to_doubles(ours), b = to_doubles(reference);
  check_that(tensor, "uint8: at most 1 level off in at most 1 % of values", [&](bool moved) {
    size_t off = 0;
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      // Moved: one value in ten by one level.
      const double d = std::abs(a[i] + (moved && i % 10 == 0 ? 1 : 0) - b[i]);
      most = std::max(most, d);
      off += d != 0 ? 1 : 0;
    }
    return most <= 1 && off * 100 <= a.size();
  });
}

int Report::finish() const {
  fmt::print("golden_test: {} passed, {} failed, {} skipped\n", passed_, failed_, skipped_);
  if (passed_ + failed_ == 0) fmt::print("golden_test: nothing ran\n");
  return failed_ == 0 && passed_ > 0 ? 0 : 1;
}

}  // namespace zoetrope::golden
