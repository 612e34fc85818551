// Plots as inline SVG: lines over a logarithmic axis and grouped bars; and as HTML: stacked rows and time lines.
// Colours are CSS classes of the page (page.cpp), so that light and dark are its business; every mark carries its value
// as a tooltip, every plot a title and a description for screen readers.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace zoetrope::bench {

inline constexpr size_t kMostSeries = 8;
// In units of the view box; who shows it scales the whole.
inline constexpr double kPlotSvgWidth = 560, kPlotSvgHeight = 300;

// `id` must be unique on the page. At most kMostSeries lines or series (ZT_CHECK).
std::string line_plot_svg(const LinePlot& plot, const std::string& id);
std::string bar_plot_svg(const BarPlot& plot, const std::string& id);
// As wide as there is room, and as high as they have rows. On the page only.
std::string stacked_plot_html(const StackedPlot& plot);
std::string timeline_plot_html(const TimelinePlot& plot);

// The colour (and mark) of a line, a series or a kind, in [0, kMostSeries).
size_t slot_of(const LinePlot& plot, size_t line);
size_t slot_of(const StackedPlot& plot, size_t series);
size_t slot_of(const TimelinePlot& plot, size_t kind);

// Round steps from 0 to at least `top`, five or so: {0, 20, 40, …}.
std::vector<double> axis_ticks(double top);

std::string escape_html(const std::string& text);  // & < > " '

}  // namespace zoetrope::bench
