// Plots in rows, as wide as the page: segments end to end, and time lines. Of HTML, for its text keeps its size where
// the page is narrow, and the name of a row may be of any length. See plot.h; the classes are those of page.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bench/plot.h"

namespace zoetrope::bench {
namespace {

constexpr double kHeadroom = 1.01;
constexpr double kPercent = 100;
constexpr double kThinnest = 0.04;  // percent of a lane: thinner ones cannot be seen
constexpr size_t kWidestName = 40;  // letters; longer ones are wrapped

// Rows with a name each, over one axis from 0 to `top` below them.
class Rows {
 public:
  Rows(const std::vector<std::string>& names, double top) : names_(names), ticks_(axis_ticks(top * kHeadroom)) {}

  double percent(double value) const { return kPercent * value / ticks_.back(); }

  std::string open(const std::string& kind, const std::string& title, const std::string& description) const {
    size_t longest = 0;
    for (const std::string& name : names_) longest = std::max(longest, name.size());
    return fmt::format("<div class=\"rows {}\" role=\"img\" aria-label=\"{}: {}\" style=\"--name:{}ch;--ticks:{}\">\n",
                       kind, escape_html(title), escape_html(description), std::min(longest, kWidestName) + 1,
                       ticks_.size() - 1);
  }
  std::string row(size_t index, const std::string& lane) const {
    return fmt::format("<div class=\"row\"><span class=\"name\">{}</span><span class=\"lane\">{}</span></div>\n",
                       escape_html(names_[index]), lane);
  }
  std::string close(const std::string& axis) const {
    std::string html = "<div class=\"row scale\"><span class=\"name\"></span><span class=\"lane\">";
    for (const double tick : ticks_) html += fmt::format("<i style=\"left:{:.2f}%\">{:g}</i>", percent(tick), tick);
    return html + fmt::format("<em>{}</em></span></div>\n</div>\n", escape_html(axis));
  }

 private:
  const std::vector<std::string>& names_;
  std::vector<double> ticks_;
};

std::string segment(size_t slot, double left, double width, const std::string& tooltip) {
  return fmt::format("<i class=\"bar s{}\" style=\"left:{:.3f}%;width:{:.3f}%\" title=\"{}\"></i>", slot, left, width,
                     escape_html(tooltip));
}

}  // namespace

std::string stacked_plot_html(const StackedPlot& plot) {
  ZT_CHECK(!plot.rows.empty() && !plot.series.empty() && plot.series.size() <= kMostSeries);
  double most = plot.limit;
  std::vector<double> sums(plot.rows.size());
  for (const BarPlot::Series& series : plot.series) {
    ZT_CHECK(series.values.size() == plot.rows.size());
    for (size_t row = 0; row < sums.size(); ++row) sums[row] += series.values[row];
  }
  for (const double sum : sums) most = std::max(most, sum);
  const Rows rows(plot.rows, most);
  std::string html = rows.open("stacked", plot.title, plot.x_label + " by row; every segment tells its value.");
  const std::string guide = plot.limit > 0 ? fmt::format("left:{:.3f}%", rows.percent(plot.limit)) : "";
  if (plot.limit > 0) {
    html += fmt::format(
        "<div class=\"row head\"><span class=\"name\"></span><span class=\"lane\"><b "
        "style=\"{}\">{}</b></span></div>\n",
        guide, escape_html(plot.limit_label));
  }
  for (size_t row = 0; row < plot.rows.size(); ++row) {
    std::string lane;
    double at = 0;
    for (size_t s = 0; s < plot.series.size(); ++s) {
      const double value = plot.series[s].values[row];
      if (!(value > 0)) continue;
      lane += segment(slot_of(plot, s), rows.percent(at), rows.percent(value),
                      fmt::format("{}, {}: {:.3g} {}", plot.rows[row], plot.series[s].name, value, plot.unit));
      at += value;
    }
    if (plot.limit > 0) lane += fmt::format("<i class=\"guide\" style=\"{}\"></i>", guide);
    lane += fmt::format("<b style=\"left:{:.3f}%\">{:.3g} {}</b>", rows.percent(at), at, escape_html(plot.unit));
    html += rows.row(row, lane);
  }
  return html + rows.close(plot.x_label);
}

std::string timeline_plot_html(const TimelinePlot& plot) {
  ZT_CHECK(!plot.rows.empty() && plot.kinds.size() <= kMostSeries);
  double last = 0;
  for (const TimelinePlot::Span& span : plot.spans) last = std::max(last, span.end);
  const Rows rows(plot.rows, last);
  std::vector<std::string> lanes(plot.rows.size());
  for (const TimelinePlot::Span& span : plot.spans) {
    ZT_CHECK(span.row < plot.rows.size() && span.kind < plot.kinds.size());
    const double width = rows.percent(span.end - span.begin);
    if (width < kThinnest) continue;
    lanes[span.row] +=
        segment(slot_of(plot, span.kind), rows.percent(span.begin), width,
                fmt::format("{}: {:.4g} {} from {:.4g}", span.name, span.end - span.begin, plot.unit, span.begin));
  }
  std::string html = rows.open("timeline", plot.title, "what happens when; every span tells what it is.");
  for (size_t row = 0; row < plot.rows.size(); ++row) html += rows.row(row, lanes[row]);
  return html + rows.close(plot.unit);
}

}  // namespace zoetrope::bench
