#include "pipeline/checks/reference_weights.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace zoetrope::pipeline {

using reference::Rows;

// A block of normal numbers has its largest at some 3.5 of their size. With b bits that is 2^(b−1) steps, and rounding
// to a step has an error of 1/√12 of it: 3.5 / (2^(b−1)·√12) = 2^(1−b). A float with m bits behind the point is off by
// 2^(−m−1) of itself at most. Twice that is allowed, because matrices are not normal.
double largest_rounding(const std::string& format) {
  constexpr double kAllowed = 2;
  const std::pair<const char*, int> floats[] = {{"E5M2", 2}, {"F8", 3}, {"fp8", 3}, {"BF16", 7}, {"F16", 10}};
  for (const auto& [name, bits] : floats)
    if (format.find(name) != std::string::npos) return kAllowed * std::exp2(-bits - 1);
  const auto digit = std::find_if(format.begin(), format.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  const int bits = digit == format.end() ? 8 : std::atoi(&*digit);
  return kAllowed * std::exp2(1 - std::clamp(bits, 2, 16));
}

ReferenceWeights::ReferenceWeights(const Expert& run, const Expert& files, DType computed, ThreadTeam& team,
                                   std::function<void()> poll)
    : run_(&run == &files ? nullptr : run.weights.source(team.size())),
      files_(files.weights.source(team.size())),
      computed_(computed),
      poll_(std::move(poll)),
      parameters_(files_, team, [this](const std::string& name) {
        if (poll_) poll_();
        read_.insert(name);
      }) {}

bool ReferenceWeights::same_format(const std::string& name) const {
  return run_->info(name).dtype_name == files_->info(name).dtype_name;
}

// Of the run's tensor, as it holds it.
double ReferenceWeights::error(const std::string& name) {
  const auto [entry, added] = errors_.try_emplace(name, 0);
  if (!added) return entry->second;
  if (poll_) poll_();
  if (same_format(name)) {
    // Not of what a LoRA changes, which says nothing of the format of its file.
    const TensorView ours = run_->mapped(name), theirs = files_->mapped(name);
    const bool same = !ours || !theirs || std::memcmp(ours.raw(), theirs.raw(), ours.bytes()) == 0;
    for (const auto& source : {run_, files_}) source->release(name);
    if (same) return 0;
  }
  const auto values = [&](const io::WeightSource& source) {
    const Shape shape = source.info(name).shape;
    Rows all(shape.size(), 1);
    std::vector<float> stored(static_cast<size_t>(shape.size()));
    source.read(name, TensorView(stored.data(), DType::kF32, shape));
    source.release(name);
    for (size_t i = 0; i < stored.size(); ++i)
      all.values[i] = static_cast<double>(rounded(stored[i], reference::rounding_of(computed_)));
    return all;
  };
  return entry->second = relative_l2(values(*run_), values(*files_));
}

// What both store in the same format explains no error of a stage; but files of float32 may have been made of bf16, and
// where a stage stays inside its bounds so, that is no damage.
double ReferenceWeights::allowed(const std::string& name) const {
  return largest_rounding(same_format(name) ? "BF16" : run_->info(name).dtype_name);
}

// Errors of independent weights add up as squares; rows that they fall on unevenly have several times as much.
double ReferenceWeights::budget() {
  constexpr double kUneven = 4;
  double squares = 0;
  if (run_ == nullptr) return 0;
  for (const std::string& name : read_) {
    const double one = error(name);
    if (!same_format(name)) squares += std::pow(std::min(one, allowed(name)), 2);
  }
  return kUneven * std::sqrt(squares);
}

// Those whose error is larger than their format's, or much larger than that of the same tensor in other blocks.
std::vector<ReferenceWeights::Damaged> ReferenceWeights::damaged() const {
  constexpr double kFar = 4;
  const auto kind = [](std::string name) {
    std::erase_if(name, [](unsigned char c) { return std::isdigit(c) != 0; });
    return name;
  };
  std::map<std::string, std::vector<double>> kinds;
  for (const auto& [name, error] : errors_)
    if (!same_format(name)) kinds[kind(name)].push_back(error);
  for (auto& [name, errors] : kinds) std::sort(errors.begin(), errors.end());
  std::vector<Damaged> found;
  for (const auto& [name, error] : errors_) {
    const std::vector<double>& others = kinds[kind(name)];
    double bound = allowed(name);
    if (others.size() > 2) bound = std::min(bound, kFar * others[others.size() / 2]);
    if (!(error <= bound)) found.push_back({name, error, bound});
  }
  return found;
}

}  // namespace zoetrope::pipeline
