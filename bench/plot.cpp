#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/error.h"

namespace zoetrope::bench {
namespace {

constexpr double kWidth = kPlotSvgWidth, kHeight = kPlotSvgHeight;
constexpr double kLeft = 72, kRight = 14, kTop = 14, kBottom = 50;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr double kLeastLabelDistance = 46;  // of neighbouring x labels
constexpr double kWidestBar = 30, kGap = 2;
constexpr double kLetter = 7.5;     // of a label, with a letter's room beside it
constexpr double kHeadroom = 1.02;  // so that marks at the top are not clipped

std::string value_text(double value, bool fraction) {
  return fraction ? format_cell(value, Format::kPercent) : fmt::format("{:.4g}", value);
}

// 1024 as 1 KiB, 1500 as 1 500.
std::string x_text(double x, bool bytes) { return format_cell(x, bytes ? Format::kBytes : Format::kCount); }

std::string tick_text(double value, bool fraction) {
  return fraction ? fmt::format("{:.0f} %", value * 100) : fmt::format("{:g}", value);
}

struct Scale {
  double top;
  double y(double value) const { return kTop + kPlotHeight * (1 - std::clamp(value / top, 0.0, 1.0)); }
};

// The opening tag, and a horizontal grid with its labels and the title of the y axis.
std::string open_svg(const std::string& id, const std::string& title, const std::string& description,
                     const Scale& scale, bool fraction, const std::string& label) {
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">\n<title id=\"{}-t\">{}</title>\n"
      "<desc id=\"{}-d\">{}; every mark shows its value.</desc>\n",
      kWidth, kHeight, id, id, id, escape_html(title), id, escape_html(description));
  for (const double tick : axis_ticks(scale.top)) {
    if (tick > scale.top * (1 + 1e-9)) break;
    const double y = scale.y(tick);
    svg += fmt::format("<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       tick == 0 ? "axis" : "grid", kLeft, kWidth - kRight, y, y);
    svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 4,
                       tick_text(tick, fraction));
  }
  return svg + fmt::format(
                   "<text class=\"label\" transform=\"translate(13 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}"
                   "</text>\n",
                   kTop + kPlotHeight / 2, escape_html(label));
}

std::string x_label(const std::string& label) {
  return fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     kLeft + kPlotWidth / 2, kHeight - 8, escape_html(label));
}

double top_of(double highest, double guide, bool fraction) {
  if (fraction) return std::max({1.0, highest * kHeadroom, guide});
  return axis_ticks(std::max(highest * kHeadroom, guide)).back();
}

}  // namespace

std::string escape_html(const std::string& text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : text) {
    const size_t at = kSpecial.find(c);
    if (at == std::string_view::npos) out += c;
    else out += kEntities[at];
  }
  return out;
}

std::string mark_svg(size_t slot, double x, double y, const std::string& tooltip) {
  constexpr const char* kShapes[] = {"<circle r=\"4.5\"/>", "<path d=\"M-4 -4h8v8h-8z\"/>",
                                     "<path d=\"M0 -6l5.5 9.5h-11z\"/>",
                                     "<path d=\"M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z\"/>"};
  return fmt::format("<g class=\"mark s{}\" transform=\"translate({:.1f} {:.1f})\">{}{}</g>\n", slot, x, y,
                     kShapes[slot % std::size(kShapes)],
                     tooltip.empty() ? "" : "<title>" + escape_html(tooltip) + "</title>");
}

std::vector<double> axis_ticks(double top) {
  if (!(top > 0) || !std::isfinite(top)) top = 1;
  const double rough = top / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  const auto count = static_cast<int>(std::ceil(top / step - 1e-9));
  std::vector<double> ticks;
  for (int i = 0; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string line_plot_svg(const LinePlot& plot, const std::string& id) {
  ZT_CHECK(plot.lines.size() <= kMostSeries, "{} lines in one plot", plot.lines.size());
  std::set<double> xs;
  double highest = 0;
  for (const LinePlot::Line& line : plot.lines) {
    for (const LinePlot::Point& point : line.points) {
      xs.insert(point.x);
      highest = std::max(highest, point.y);
    }
  }
  ZT_CHECK(!xs.empty() && *xs.begin() > 0, "a logarithmic axis needs positive values");
  const double low = std::log2(*xs.begin()), high = std::max(low + 1e-9, std::log2(*xs.rbegin()));
  constexpr double kMargin = 18;  // left and right of the marks
  const auto x_of = [&](double x) {
    if (xs.size() == 1) return kLeft + kPlotWidth / 2;
    return kLeft + kMargin + (kPlotWidth - 2 * kMargin) * (std::log2(x) - low) / (high - low);
  };
  const Scale scale{top_of(highest, plot.guide, plot.y_is_fraction)};
  std::string svg =
      open_svg(id, plot.title, plot.y_label + " over " + plot.x_label, scale, plot.y_is_fraction, plot.y_label);
  double last_label = -1e9;
  for (const double x : xs) {
    const double at = x_of(x);
    svg += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>\n", at, at,
                       kTop + kPlotHeight, kTop + kPlotHeight + 4);
    if (at - last_label < kLeastLabelDistance) continue;
    last_label = at;
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at,
                       kTop + kPlotHeight + 18, x_text(x, plot.x_is_bytes));
  }
  svg += x_label(plot.x_label);
  if (plot.guide > 0) {
    const double y = scale.y(plot.guide);
    svg += fmt::format("<line class=\"guide\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft,
                       kWidth - kRight, y, y);
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    std::string path;
    for (const LinePlot::Point& point : plot.lines[i].points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(point.x), scale.y(point.y));
    }
    svg += fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n", slot_of(plot.lines, i), path);
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {  // marks above all lines
    for (const LinePlot::Point& point : plot.lines[i].points) {
      svg += mark_svg(slot_of(plot.lines, i), x_of(point.x), scale.y(point.y),
                      fmt::format("{}, {}: {}", plot.lines[i].name, x_text(point.x, plot.x_is_bytes),
                                  value_text(point.y, plot.y_is_fraction)));
    }
  }
  return svg + "</svg>\n";
}

std::string bar_plot_svg(const BarPlot& plot, const std::string& id) {
  ZT_CHECK(plot.series.size() <= kMostSeries, "{} series in one plot", plot.series.size());
  ZT_CHECK(!plot.groups.empty() && !plot.series.empty());
  double highest = 0;
  for (const BarPlot::Series& series : plot.series) {
    ZT_CHECK(series.values.size() == plot.groups.size());
    for (const double value : series.values) highest = std::max(highest, std::isfinite(value) ? value : 0);
  }
  const Scale scale{top_of(highest, 0, plot.y_is_fraction)};
  std::string svg = open_svg(id, plot.title, plot.y_label + " by group", scale, plot.y_is_fraction, plot.y_label);
  const double group_width = kPlotWidth / static_cast<double>(plot.groups.size());
  const auto count = static_cast<double>(plot.series.size());
  const double bar = std::min(kWidestBar, (group_width * 0.8 - kGap * (count - 1)) / count);
  const double cluster = bar * count + kGap * (count - 1);
  size_t letters = 0;
  for (const std::string& group : plot.groups) letters = std::max(letters, group.size());
  // Only every so many groups are labelled, where names would overlap.
  const auto every =
      static_cast<size_t>(std::max(1.0, std::ceil(kLetter * static_cast<double>(letters) / group_width)));
  for (size_t g = 0; g < plot.groups.size(); ++g) {
    const double middle = kLeft + group_width * (static_cast<double>(g) + 0.5);
    for (size_t s = 0; s < plot.series.size(); ++s) {
      const double value = plot.series[s].values[g];
      if (!std::isfinite(value)) continue;
      const double x = middle - cluster / 2 + static_cast<double>(s) * (bar + kGap), y = scale.y(value);
      const double height = kTop + kPlotHeight - y, round = std::min({3.0, bar / 2, height});
      // Rounded at the end of the data, square on the base line.
      svg += fmt::format(
          "<path class=\"bar s{}\" d=\"M{:.1f} {:.1f}v-{:.1f}q0 -{:.1f} {:.1f} -{:.1f}h{:.1f}q{:.1f} 0 {:.1f} {:.1f}"
          "v{:.1f}z\"><title>{}</title></path>\n",
          s, x, kTop + kPlotHeight, height - round, round, round, round, bar - 2 * round, round, round, round,
          height - round,
          escape_html(
              fmt::format("{}, {}: {}", plot.groups[g], plot.series[s].name, value_text(value, plot.y_is_fraction))));
    }
    if (g % every != 0) continue;
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", middle,
                       kTop + kPlotHeight + 18, escape_html(plot.groups[g]));
  }
  return svg + "</svg>\n";
}

// ---- rows of bars ---------------------------------------------------------------------------------------------------
// HTML, because its text keeps its size on a narrow page, and the name of a row may have any length. The classes are
// those of page.cpp.

namespace {

constexpr double kRowHeadroom = 1.01;
constexpr double kPercent = 100;
constexpr double kThinnest = 0.04;  // percent of a lane: thinner ones cannot be seen
constexpr size_t kWidestName = 40;  // letters; longer ones are wrapped

std::string row_html(const char* kind, const std::string& name, const std::string& lane) {
  return fmt::format("<div class=\"row{}\"><span class=\"name\">{}</span><span class=\"lane\">{}</span></div>\n", kind,
                     escape_html(name), lane);
}

}  // namespace

void RowPlot::append(size_t row, size_t kind, double value) {
  if (!(value > 0)) return;
  const auto last = std::find_if(bars.rbegin(), bars.rend(), [&](const Bar& bar) { return bar.row == row; });
  const double begin = last == bars.rend() ? 0 : last->end;
  bars.push_back({row, kind, begin, begin + value, fmt::format("{}, {}", rows.at(row), kinds.at(kind).name)});
}

std::string row_plot_html(const RowPlot& plot) {
  ZT_CHECK(!plot.rows.empty() && plot.kinds.size() <= kMostSeries);
  std::vector<double> ends(plot.rows.size());
  for (const RowPlot::Bar& bar : plot.bars) ends.at(bar.row) = std::max(ends.at(bar.row), bar.end);
  const double last = std::max(plot.limit, *std::max_element(ends.begin(), ends.end()));
  const std::vector<double> ticks = axis_ticks(last * kRowHeadroom);
  const auto percent = [&](double value) { return kPercent * value / ticks.back(); };
  std::vector<std::string> lanes(plot.rows.size());
  for (const RowPlot::Bar& bar : plot.bars) {
    const double value = bar.end - bar.begin, width = percent(value);
    if (width < kThinnest) continue;
    const std::string tooltip = plot.sums
                                    ? fmt::format("{}: {:.3g} {}", bar.name, value, plot.unit)
                                    : fmt::format("{}: {:.4g} {} from {:.4g}", bar.name, value, plot.unit, bar.begin);
    lanes[bar.row] += fmt::format("<i class=\"bar s{}\" style=\"left:{:.3f}%;width:{:.3f}%\" title=\"{}\"></i>",
                                  slot_of(plot.kinds, bar.kind), percent(bar.begin), width, escape_html(tooltip));
  }
  size_t longest = 0;
  for (const std::string& name : plot.rows) longest = std::max(longest, name.size());
  std::string html = fmt::format(
      "<div class=\"rows {}\" role=\"img\" aria-label=\"{}: {} by row; every bar shows its value.\" "
      "style=\"--name:{}ch;--ticks:{}\">\n",
      plot.sums ? "sums" : "spans", escape_html(plot.title), escape_html(plot.label),
      std::min(longest, kWidestName) + 1, ticks.size() - 1);
  if (plot.limit > 0) {
    html +=
        row_html(" head", "",
                 fmt::format("<b style=\"left:{:.3f}%\">{}</b>", percent(plot.limit), escape_html(plot.limit_label)));
  }
  for (size_t row = 0; row < plot.rows.size(); ++row) {
    std::string& lane = lanes[row];
    if (plot.limit > 0) lane += fmt::format("<i class=\"guide\" style=\"left:{:.3f}%\"></i>", percent(plot.limit));
    if (plot.sums) {
      lane +=
          fmt::format("<b style=\"left:{:.3f}%\">{:.3g} {}</b>", percent(ends[row]), ends[row], escape_html(plot.unit));
    }
    html += row_html("", plot.rows[row], lane);
  }
  std::string scale;
  for (const double tick : ticks) scale += fmt::format("<i style=\"left:{:.2f}%\">{:g}</i>", percent(tick), tick);
  return html + row_html(" scale", "", scale + fmt::format("<em>{}</em>", escape_html(plot.label))) + "</div>\n";
}

}  // namespace zoetrope::bench
