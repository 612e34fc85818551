// Plots: lines over a logarithmic axis and grouped bars as inline SVG, rows of bars as HTML. Colours are
// CSS classes of the page (page.cpp), which handles light and dark; every mark has a tooltip with its value, every plot
// a title and a description for screen readers.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace zoetrope::bench {

// In units of the view box; a page scales the whole.
inline constexpr double kPlotSvgWidth = 560, kPlotSvgHeight = 300;

// `id` must be unique on the page. At most kMostSeries lines or series (ZT_CHECK).
std::string line_plot_svg(const LinePlot& plot, const std::string& id);
std::string bar_plot_svg(const BarPlot& plot, const std::string& id);
// As wide as the page, as high as their rows need.
std::string row_plot_html(const RowPlot& plot);

// The colour (and mark) of a line, a series or a kind, in [0, kMostSeries).
template <typename Item>
size_t slot_of(const std::vector<Item>& items, size_t index) {
  if constexpr (requires { items[index].slot; }) return items[index].slot.value_or(index) % kMostSeries;
  return index % kMostSeries;
}
std::string mark_svg(size_t slot, double x, double y, const std::string& tooltip);  // differs by shape, not only colour

// Round steps from 0 to at least `top`, five or so: {0, 20, 40, …}.
std::vector<double> axis_ticks(double top);

std::string escape_html(const std::string& text);  // & < > " '

}  // namespace zoetrope::bench
