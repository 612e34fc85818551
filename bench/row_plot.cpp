// Plots in rows, as wide as the page: segments end to end, and time lines. See plot.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "bench/plot.h"

namespace zoetrope::bench {
namespace {

constexpr double kWidth = 1130, kRight = 90, kTop = 26, kBottom = 46;
constexpr double kLetter = 6.9;  // of a label, on average
constexpr double kLeastLeft = 60, kMostLeft = 420;
constexpr double kStackedRow = 30, kStackedBar = 20;
constexpr double kTimelineRow = 24, kTimelineBar = 18;
constexpr double kThinnestSpan = 0.4;  // units of the drawing; thinner ones cannot be seen
constexpr double kHeadroom = 1.01;

// A frame with named rows and an axis from 0 to `top` below them.
class Rows {
 public:
  Rows(const std::vector<std::string>& names, double row_height, double top)
      : names_(names), row_height_(row_height), ticks_(axis_ticks(top * kHeadroom)) {
    size_t longest = 0;
    for (const std::string& name : names) longest = std::max(longest, name.size());
    left_ = std::clamp(kLetter * static_cast<double>(longest) + 12, kLeastLeft, kMostLeft);
  }

  double x(double value) const { return left_ + (kWidth - left_ - kRight) * value / ticks_.back(); }
  double middle(size_t row) const { return kTop + row_height_ * (static_cast<double>(row) + 0.5); }
  double bottom() const { return kTop + row_height_ * static_cast<double>(names_.size()); }

  std::string open(const std::string& id, const std::string& title, const std::string& description,
                   const std::string& axis) const {
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">\n<title id=\"{}-t\">{}</title>\n"
        "<desc id=\"{}-d\">{}</desc>\n",
        kWidth, bottom() + kBottom, id, id, id, escape_html(title), id, escape_html(description));
    for (const double tick : ticks_) {
      svg += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{:.1f}\"/>\n",
                         tick == 0 ? "axis" : "grid", x(tick), x(tick), kTop - 4, bottom());
      svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>\n", x(tick),
                         bottom() + 17, tick);
    }
    svg += fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       (left_ + kWidth - kRight) / 2, bottom() + 38, escape_html(axis));
    for (size_t row = 0; row < names_.size(); ++row) {
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left_ - 8, middle(row) + 4,
                         escape_html(names_[row]));
    }
    return svg;
  }

 private:
  const std::vector<std::string>& names_;
  double row_height_;
  std::vector<double> ticks_;
  double left_ = 0;
};

std::string segment(size_t kind, double left, double right, double middle, double height, const std::string& tooltip) {
  return fmt::format(
      "<rect class=\"bar segment s{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
      "height=\"{}\"><title>{}</title></rect>"
      "\n",
      kind, left, middle - height / 2, right - left, height, escape_html(tooltip));
}

}  // namespace

std::string stacked_plot_svg(const StackedPlot& plot, const std::string& id) {
  ZT_CHECK(!plot.rows.empty() && !plot.series.empty() && plot.series.size() <= kMostSeries);
  double most = plot.limit;
  std::vector<double> sums(plot.rows.size());
  for (const BarPlot::Series& series : plot.series) {
    ZT_CHECK(series.values.size() == plot.rows.size());
    for (size_t row = 0; row < sums.size(); ++row) sums[row] += series.values[row];
  }
  for (const double sum : sums) most = std::max(most, sum);
  const Rows rows(plot.rows, kStackedRow, most);
  std::string svg = rows.open(id, plot.title, plot.x_label + " by row; every segment tells its value.", plot.x_label);
  for (size_t row = 0; row < plot.rows.size(); ++row) {
    double at = 0;
    for (size_t s = 0; s < plot.series.size(); ++s) {
      const double value = plot.series[s].values[row];
      if (!(value > 0)) continue;
      svg += segment(s, rows.x(at), rows.x(at + value), rows.middle(row), kStackedBar,
                     fmt::format("{}, {}: {:.3g} {}", plot.rows[row], plot.series[s].name, value, plot.unit));
      at += value;
    }
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{:.3g} {}</text>\n", rows.x(at) + 6, rows.middle(row) + 4, at,
                       escape_html(plot.unit));
  }
  if (plot.limit > 0) {
    const double x = rows.x(plot.limit);
    svg += fmt::format("<line class=\"guide\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{:.1f}\"/>\n", x, x, kTop - 6,
                       rows.bottom());
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x, kTop - 11,
                       escape_html(plot.limit_label));
  }
  return svg + "</svg>\n";
}

std::string timeline_plot_svg(const TimelinePlot& plot, const std::string& id) {
  ZT_CHECK(!plot.rows.empty() && plot.kinds.size() <= kMostSeries);
  double last = 0;
  for (const TimelinePlot::Span& span : plot.spans) last = std::max(last, span.end);
  const Rows rows(plot.rows, kTimelineRow, last);
  std::string svg = rows.open(id, plot.title, "What happens when; every span tells what it is.", plot.unit);
  for (const TimelinePlot::Span& span : plot.spans) {
    ZT_CHECK(span.row < plot.rows.size() && span.kind < plot.kinds.size());
    const double left = rows.x(span.begin), right = rows.x(span.end);
    if (right - left < kThinnestSpan) continue;
    svg += segment(span.kind, left, right, rows.middle(span.row), kTimelineBar,
                   fmt::format("{}: {:.4g} {} from {:.4g}", span.name, span.end - span.begin, plot.unit, span.begin));
  }
  return svg + "</svg>\n";
}

}  // namespace zoetrope::bench
