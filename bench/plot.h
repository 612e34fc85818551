// Plots as inline SVG: lines over a logarithmic axis, grouped bars, stacked rows and time lines. Colours are CSS
// classes of the page (page.cpp), so that light and dark are its business; every mark carries its value as a tooltip,
// every plot a title and a description for screen readers.
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
// Wider than the others, and as high as they have rows.
std::string stacked_plot_svg(const StackedPlot& plot, const std::string& id);
std::string timeline_plot_svg(const TimelinePlot& plot, const std::string& id);

// The colour and mark of a line, in [0, kMostSeries).
size_t slot_of(const LinePlot& plot, size_t line);

// Round steps from 0 to at least `top`, five or so: {0, 20, 40, …}.
std::vector<double> axis_ticks(double top);

std::string escape_html(const std::string& text);  // & < > " '

}  // namespace zoetrope::bench
