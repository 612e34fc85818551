#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace zoetrope::bench {
namespace {

constexpr double kWidth = kPlotSvgWidth, kHeight = kPlotSvgHeight;
constexpr double kLeft = 72, kRight = 14, kTop = 14, kBottom = 50;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr double kLeastLabelDistance = 46;  // of neighbouring x labels
constexpr double kWidestBar = 30, kGap = 2;
constexpr double kHeadroom = 1.02;  // so that marks at the top are whole

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

std::string open_svg(const std::string& id, const std::string& title, const std::string& description) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-t {}-d\">\n<title id=\"{}-t\">{}</title>\n"
      "<desc id=\"{}-d\">{}</desc>\n",
      kWidth, kHeight, id, id, id, escape_html(title), id, escape_html(description));
}

// Horizontal grid with its labels, and what the axis is called.
std::string y_axis(const std::vector<double>& ticks, const Scale& scale, bool fraction, const std::string& label) {
  std::string svg;
  for (const double tick : ticks) {
    const double y = scale.y(tick);
    svg += fmt::format("<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       tick == 0 ? "axis" : "grid", kLeft, kWidth - kRight, y, y);
    svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 4,
                       tick_text(tick, fraction));
  }
  svg += fmt::format(
      "<text class=\"label\" transform=\"translate(13 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}"
      "</text>\n",
      kTop + kPlotHeight / 2, escape_html(label));
  return svg;
}

std::string x_label(const std::string& label) {
  return fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     kLeft + kPlotWidth / 2, kHeight - 8, escape_html(label));
}

// Not colour alone tells lines apart: each series has its own mark.
std::string mark(size_t series, double x, double y, const std::string& tooltip) {
  constexpr double r = 4.5;
  std::string shape;
  switch (series % 4) {
    case 0:
      shape = fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\">", x, y, r);
      return fmt::format("<g class=\"mark s{}\">{}<title>{}</title></circle></g>\n", series, shape, tooltip);
    case 1:
      shape = fmt::format("M{:.1f} {:.1f}h{}v{}h-{}z", x - 4, y - 4, 8, 8, 8);
      break;
    case 2:
      shape = fmt::format("M{:.1f} {:.1f}l5.5 9.5h-11z", x, y - 6);
      break;
    default:
      shape = fmt::format("M{:.1f} {:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", x, y - 5.5);
      break;
  }
  return fmt::format("<g class=\"mark s{}\"><path d=\"{}\"><title>{}</title></path></g>\n", series, shape, tooltip);
}

double top_of(double highest, double guide, bool fraction) {
  if (fraction) return std::max({1.0, highest * kHeadroom, guide});
  return axis_ticks(std::max(highest * kHeadroom, guide)).back();
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
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

size_t slot_of(const LinePlot& plot, size_t line) { return plot.lines[line].slot.value_or(line) % kMostSeries; }
size_t slot_of(const StackedPlot& plot, size_t series) {
  return plot.series[series].slot.value_or(series) % kMostSeries;
}
size_t slot_of(const TimelinePlot& plot, size_t kind) { return plot.kinds[kind].slot.value_or(kind) % kMostSeries; }

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
  std::string description = plot.y_label + " over " + plot.x_label + "; every mark tells its value.";
  std::string svg = open_svg(id, plot.title, description);
  std::vector<double> ticks = axis_ticks(scale.top);
  while (ticks.back() > scale.top * (1 + 1e-9)) ticks.pop_back();
  svg += y_axis(ticks, scale, plot.y_is_fraction, plot.y_label);
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
    svg += fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n", slot_of(plot, i), path);
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {  // marks above all lines
    for (const LinePlot::Point& point : plot.lines[i].points) {
      svg += mark(slot_of(plot, i), x_of(point.x), scale.y(point.y),
                  escape_html(fmt::format("{}, {}: {}", plot.lines[i].name, x_text(point.x, plot.x_is_bytes),
                                          value_text(point.y, plot.y_is_fraction))));
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
  std::string svg = open_svg(id, plot.title, plot.y_label + " by group; every mark tells its value.");
  std::vector<double> ticks = axis_ticks(scale.top);
  while (ticks.back() > scale.top * (1 + 1e-9)) ticks.pop_back();
  svg += y_axis(ticks, scale, plot.y_is_fraction, plot.y_label);
  const double group_width = kPlotWidth / static_cast<double>(plot.groups.size());
  const auto count = static_cast<double>(plot.series.size());
  const double bar = std::min(kWidestBar, (group_width * 0.8 - kGap * (count - 1)) / count);
  const double cluster = bar * count + kGap * (count - 1);
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
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", middle,
                       kTop + kPlotHeight + 18, escape_html(plot.groups[g]));
  }
  return svg + "</svg>\n";
}

}  // namespace zoetrope::bench
