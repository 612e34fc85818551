#include "bench/page.h"

#include <fmt/format.h>

#include "bench/plot.h"
#include "bench/style.h"

namespace zoetrope::bench {
namespace {

static_assert(kMostSeries == 8, "page/plot.css and page/page.css have a colour for each");

struct LegendEntry {
  std::string drawing;  // of a line or a bar; 22 × 14 units
  std::string name;
};

template <typename Item>
std::vector<LegendEntry> legend(const std::vector<Item>& items, bool lines) {
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t slot = slot_of(items, i);
    entries.push_back({lines ? fmt::format("<path class=\"line s{}\" d=\"M1 7H21\"/>", slot) + mark_svg(slot, 11, 7, "")
                             : fmt::format("<path class=\"bar s{}\" d=\"M5 1h12v12h-12z\"/>", slot),
                       items[i].name});
  }
  return entries;
}

// A plot, SVG or HTML, with its legend.
struct Figure {
  std::string id, title, plot;
  std::vector<LegendEntry> legend;
};

// A single series has no legend: the title names it.
std::vector<Figure> figures(const Section& section) {
  std::vector<Figure> all;
  const auto next_id = [&] { return fmt::format("{}-{}", section.name, all.size() + 1); };
  for (const LinePlot& plot : section.line_plots) {
    all.push_back({next_id(), plot.title, line_plot_svg(plot, next_id()), {}});
    if (plot.lines.size() > 1) all.back().legend = legend(plot.lines, true);
  }
  for (const BarPlot& plot : section.bar_plots) {
    all.push_back({next_id(), plot.title, bar_plot_svg(plot, next_id()), {}});
    if (plot.series.size() > 1) all.back().legend = legend(plot.series, false);
  }
  return all;
}

// As wide as the page; only there.
std::vector<Figure> wide_figures(const Section& section) {
  std::vector<Figure> all;
  for (const RowPlot& plot : section.row_plots)
    all.push_back({"", plot.title, row_plot_html(plot), legend(plot.kinds, false)});
  return all;
}

std::string figure_html(const Figure& figure) {
  std::string html = fmt::format("<figure>\n<h3>{}</h3>\n", escape_html(figure.title));
  if (!figure.legend.empty()) html += "<ul class=\"legend\">\n";
  for (const LegendEntry& entry : figure.legend) {
    html += fmt::format("<li><svg viewBox=\"0 0 22 14\" aria-hidden=\"true\">{}</svg>{}</li>\n", entry.drawing,
                        escape_html(entry.name));
  }
  if (!figure.legend.empty()) html += "</ul>\n";
  return html + figure.plot + "</figure>\n";
}

// The figure as a file: title and legend as text of the SVG, above the plot. With a background of its own, because the
// surrounding page may be dark where the reader's system is light.
std::string figure_file(const Figure& figure) {
  constexpr double kMargin = 14, kEntryHeight = 20, kEntryGap = 18, kMarkWidth = 28;
  constexpr double kLetter = 6.8;  // of 12.5 px, wide ones included: SVG does not break lines
  constexpr double kEdge = 8, kWidth = kPlotSvgWidth + 2 * kEdge;
  double x = kMargin, y = 44;
  std::string legend;
  for (const LegendEntry& entry : figure.legend) {
    const double width = kMarkWidth + kLetter * static_cast<double>(entry.name.size());
    if (x > kMargin && x + width > kWidth - kMargin) {
      x = kMargin;
      y += kEntryHeight;
    }
    legend += fmt::format("<g transform=\"translate({:.1f} {:.1f})\">{}<text x=\"{}\" y=\"11.5\">{}</text></g>\n", x, y,
                          entry.drawing, kMarkWidth, escape_html(entry.name));
    x += width + kEntryGap;
  }
  if (!figure.legend.empty()) y += kEntryHeight;
  const double height = y + kPlotSvgHeight + kEdge;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\">\n<style>{}"
      ".card{{fill:var(--card);stroke:var(--rule)}}svg "
      ".title{{fill:var(--ink);font-size:15px;font-weight:600}}</style>\n"
      "<rect class=\"card\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n"
      "<text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n{}<svg x=\"{}\" y=\"{}\" width=\"{}\" "
      "height=\"{}\"{}</svg>\n",
      kWidth, height, kWidth, height, kPlotStyle, kWidth - 1, height - 1, kMargin, escape_html(figure.title), legend,
      kEdge, y, kPlotSvgWidth, kPlotSvgHeight, figure.plot.substr(std::string_view("<svg").size()));
}

std::string table_html(const Table& table, const std::string& title) {
  const std::vector<bool> filled = filled_columns(table);
  std::string html =
      fmt::format("<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{}: table\">\n<table>\n<thead><tr>",
                  escape_html(title));
  const std::vector<bool> numeric = numeric_columns(table);
  for (size_t c = 0; c < table.columns.size(); ++c) {
    if (!filled[c]) continue;
    html += fmt::format("<th scope=\"col\"{}>{}</th>", numeric[c] ? " class=\"n\"" : "",
                        escape_html(table.columns[c].heading));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : table.rows) {
    html += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      if (!filled[c]) continue;
      const std::string text = format_cell(row[c], table.columns[c].format);
      const bool wrong = text.starts_with("WRONG");
      html += fmt::format("<td{} data-heading=\"{}\">{}</td>",
                          wrong                    ? " class=\"wrong\""
                          : numeric[c]             ? " class=\"n\""
                          : table.columns[c].prose ? " class=\"p\""
                                                   : "",
                          escape_html(table.columns[c].heading), escape_html(text));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n</div>\n";
}

std::string section_html(const Section& section) {
  std::string html =
      fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", escape_html(section.name), escape_html(section.title));
  if (!section.highlights.empty()) {
    html += "<div class=\"tiles\">\n";
    for (const auto& [value, what] : section.highlights) {
      html +=
          fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_html(value), escape_html(what));
    }
    html += "</div>\n";
  }
  html += fmt::format("<p>{}</p>\n", escape_html(section.note));
  const std::vector<Figure> drawn = figures(section);
  if (!drawn.empty()) html += "<div class=\"plots\">\n";
  for (const Figure& figure : drawn) html += figure_html(figure);
  if (!drawn.empty()) html += "</div>\n";
  for (const Figure& figure : wide_figures(section)) html += figure_html(figure);
  if (!section.listing.empty())
    html +=
        fmt::format("<h3>{}</h3>\n<pre>{}</pre>\n", escape_html(section.listing_title), escape_html(section.listing));
  if (!section.table.rows.empty()) html += table_html(section.table, section.title);
  return html + "</section>\n";
}

}  // namespace

std::string report_page(const Report& report) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n<p class=\"sub\">{}</p>\n",
      escape_html(report.title), kPlotStyle, kPageStyle, escape_html(report.title), escape_html(report.subtitle));
  if (report.sections.size() > 1) {
    html += "<nav aria-label=\"Sections\">";
    for (const Section& section : report.sections) {
      html += fmt::format("<a href=\"#{}\">{}</a>", escape_html(section.name), escape_html(section.title));
    }
    html += "</nav>\n";
  }
  html += fmt::format("<div class=\"machine\">\n<h2>{}</h2>\n<dl>\n", escape_html(report.facts));
  for (const auto& [name, value] : report.machine) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(name), escape_html(value));
  }
  html += "</dl>\n</div>\n";
  for (const Section& section : report.sections) html += section_html(section);
  return html + "</main>\n</body>\n</html>\n";
}

std::vector<Drawing> report_drawings(const Report& report) {
  std::vector<Drawing> drawings;
  for (const Section& section : report.sections) {
    for (const Figure& figure : figures(section)) drawings.push_back({figure.id, figure_file(figure)});
  }
  return drawings;
}

}  // namespace zoetrope::bench
