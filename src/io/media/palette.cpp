#include "io/media/palette.h"

#include <algorithm>
#include <limits>
#include <utility>

// By hand, because FFmpeg has its palette filters in libavfilter, a library that nothing else here needs.
namespace zoetrope::io {

namespace {

constexpr int kCellBits = 6;
constexpr int kShift = 8 - kCellBits;
constexpr size_t kCells = size_t{1} << (3 * kCellBits);

size_t cell_index(int r, int g, int b) {
  return static_cast<size_t>(((r >> kShift) << (2 * kCellBits)) | ((g >> kShift) << kCellBits) | (b >> kShift));
}

struct Point {
  std::array<double, 3> mean{};
  double count = 0;
};

// A set of points and the axis of its largest variance.
struct Box {
  size_t begin = 0, end = 0;
  std::array<double, 3> mean{};
  double spread = 0;  // count × variance along `axis`: the error that a split can save
  size_t axis = 0;

  Box(const std::vector<Point>& points, size_t from, size_t to) : begin(from), end(to) {
    double count = 0;
    std::array<double, 3> square{};
    for (size_t i = begin; i < end; ++i) {
      count += points[i].count;
      for (size_t c = 0; c < 3; ++c) {
        mean[c] += points[i].count * points[i].mean[c];
        square[c] += points[i].count * points[i].mean[c] * points[i].mean[c];
      }
    }
    for (size_t c = 0; c < 3; ++c) {
      const double along = square[c] - mean[c] * mean[c] / count;
      mean[c] /= count;
      if (end - begin > 1 && along > spread) {
        spread = along;
        axis = c;
      }
    }
  }
};

// Splits the box at its mean (at the median, large flat areas get too many colours; the mean reduces the error more).
std::pair<Box, Box> cut(std::vector<Point>& points, const Box& box) {
  const auto first = points.begin() + static_cast<std::ptrdiff_t>(box.begin);
  const auto last = points.begin() + static_cast<std::ptrdiff_t>(box.end);
  const auto middle =
      std::partition(first, last, [&](const Point& point) { return point.mean[box.axis] < box.mean[box.axis]; });
  const auto at = static_cast<size_t>(middle - points.begin());
  return {Box(points, box.begin, at), Box(points, at, box.end)};
}

uint8_t to_byte(double value) { return static_cast<uint8_t>(std::clamp(value + 0.5, 0.0, 255.0)); }

}  // namespace

Palette::Histogram::Histogram() : cells_(kCells) {}

void Palette::Histogram::add(const uint8_t* rgb, size_t pixels) {
  for (size_t i = 0; i < pixels; ++i, rgb += 3) {
    Cell& cell = cells_[cell_index(rgb[0], rgb[1], rgb[2])];
    cell.count += 1;
    for (size_t c = 0; c < 3; ++c) cell.sum[c] += rgb[c];
  }
}

Palette::Palette(const Histogram& histogram) : nearest_(kCells, -1) {
  std::vector<Point> points;
  for (const auto& cell : histogram.cells_) {
    if (cell.count == 0) continue;
    Point& point = points.emplace_back();
    point.count = static_cast<double>(cell.count);
    for (size_t c = 0; c < 3; ++c) point.mean[c] = static_cast<double>(cell.sum[c]) / point.count;
  }
  std::vector<Box> boxes;
  if (!points.empty()) boxes.emplace_back(points, 0, points.size());
  const auto less = [](const Box& a, const Box& b) { return a.spread < b.spread; };
  while (!boxes.empty() && boxes.size() < kColours) {
    const auto widest = std::max_element(boxes.begin(), boxes.end(), less);
    if (widest->spread <= 0) break;
    const auto [low, high] = cut(points, *widest);
    if (low.begin == low.end || high.begin == high.end) {
      widest->spread = 0;  // rounding left all points on one side: they are equal for our purpose
      continue;
    }
    *widest = low;
    boxes.push_back(high);
  }
  for (const Box& box : boxes) colours_.push_back({to_byte(box.mean[0]), to_byte(box.mean[1]), to_byte(box.mean[2])});
}

uint8_t Palette::nearest(int r, int g, int b) {
  r = std::clamp(r, 0, 255);
  g = std::clamp(g, 0, 255);
  b = std::clamp(b, 0, 255);
  int16_t& found = nearest_[cell_index(r, g, b)];
  if (found >= 0) return static_cast<uint8_t>(found);
  const auto centre = [](int value) { return (value >> kShift << kShift) + (1 << kShift) / 2; };
  int best = std::numeric_limits<int>::max();
  for (size_t i = 0; i < colours_.size(); ++i) {
    const int dr = centre(r) - colours_[i].r, dg = centre(g) - colours_[i].g, db = centre(b) - colours_[i].b;
    const int distance = dr * dr + dg * dg + db * db;
    if (distance < best) {
      best = distance;
      found = static_cast<int16_t>(i);
    }
  }
  return static_cast<uint8_t>(found);
}

}  // namespace zoetrope::io
