#include "models/sampling/frequency.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace zoetrope::sampling {
namespace {

constexpr int64_t kShare = 4;  // the low quarter

int64_t low_quarter(int64_t frequencies) { return std::max<int64_t>(1, frequencies / kShare); }

std::vector<double> doubled(std::vector<double> row) {
  const size_t size = row.size();
  row.resize(2 * size);
  std::copy_n(row.begin(), size, row.begin() + static_cast<std::ptrdiff_t>(size));
  return row;
}

}  // namespace

std::vector<double> low_pass_row(int64_t size, int64_t cutoff) {
  std::vector<double> row(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    double sum = 1;
    for (int64_t k = 1; k < cutoff; ++k) {
      // k·i mod size keeps the angle small and exact.
      sum += 2 * std::cos(2 * std::numbers::pi * static_cast<double>(k * i % size) / static_cast<double>(size));
    }
    row[static_cast<size_t>(i)] = sum / static_cast<double>(size);
  }
  return row;
}

// A real transform has ⌊width/2⌋ + 1 frequencies along the width, and all along the height.
FrequencyFilter::FrequencyFilter(int64_t height, int64_t width)
    : height_(height),
      width_(width),
      rows_(doubled(low_pass_row(height, low_quarter(height)))),
      columns_(doubled(low_pass_row(width, low_quarter(width / 2 + 1)))) {}

void FrequencyFilter::weigh(std::span<const float> conditional, std::span<const float> unconditional, double low,
                            double high, std::span<double> scratch, std::span<float> out) const {
  const auto h = static_cast<size_t>(height_), w = static_cast<size_t>(width_), n = h * w;
  ZT_CHECK(conditional.size() == n && unconditional.size() == n && out.size() == n && scratch.size() >= scratch_size());
  const std::span<double> difference = scratch.first(n), narrow = scratch.subspan(n, n),
                          row = scratch.subspan(2 * n, w);
  for (size_t i = 0; i < n; ++i) {
    difference[i] = static_cast<double>(unconditional[i]) - static_cast<double>(conditional[i]);
  }
  // D·P_w: each value of D spreads a row of P.
  std::fill(narrow.begin(), narrow.end(), 0.0);
  for (size_t y = 0; y < h; ++y) {
    for (size_t x = 0; x < w; ++x) {
      const double value = difference[y * w + x];
      const double* spread = &columns_[w - x];
      for (size_t to = 0; to < w; ++to) narrow[y * w + to] += value * spread[to];
    }
  }
  for (size_t y = 0; y < h; ++y) {
    std::fill(row.begin(), row.end(), 0.0);
    for (size_t from = 0; from < h; ++from) {
      const double share = rows_[h - y + from];
      for (size_t x = 0; x < w; ++x) row[x] += share * narrow[from * w + x];
    }
    for (size_t x = 0; x < w; ++x) {
      out[y * w + x] = static_cast<float>(high * difference[y * w + x] + (low - high) * row[x]);
    }
  }
}

}  // namespace zoetrope::sampling
