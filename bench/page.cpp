#include "bench/page.h"

#include <fmt/format.h>

#include "bench/plot.h"

namespace zoetrope::bench {
namespace {

// Eight colours that colour-blind readers can distinguish, one set for each background; text and marks use them by
// class.
constexpr const char* kColours = R"css(
:root{--page:#f7f7f5;--card:#ffffff;--ink:#171715;--soft:#52524e;--faint:#77776f;--rule:#dcdcd5;
--grid:#e7e7e1;--head:#f1f1ec;--bad:#b3261e;
--c0:#2a6fd0;--c1:#d9591c;--c2:#12926a;--c3:#b98100;--c4:#c94f86;--c5:#3c7a10;--c6:#5a48b8;--c7:#c93a3a}
@media (prefers-color-scheme:dark){:root{--page:#141413;--card:#1d1d1b;--ink:#f3f3ee;--soft:#c2c2b9;--faint:#95958b;
--rule:#3a3a36;--grid:#2d2d2a;--head:#262623;--bad:#ff8a80;
--c0:#6aa5f5;--c1:#f08a52;--c2:#3fc49a;--c3:#e0ae3a;--c4:#ec8fb6;--c5:#86c45a;--c6:#a99bf5;--c7:#f2807c}}
)css";

constexpr const char* kPlotStyle = R"css(
svg text{fill:var(--soft);font:12.5px system-ui,-apple-system,"Segoe UI",sans-serif}
svg .tick{fill:var(--faint);font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--faint);stroke-width:1}
.guide{stroke:var(--soft);stroke-width:1;stroke-dasharray:5 4}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.mark{stroke:var(--card);stroke-width:1.5}
)css";

constexpr const char* kPageStyle = R"css(
:root{color-scheme:light dark}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:21px;line-height:1.3;margin:0 0 8px}
h3{font-size:15px;line-height:1.4;margin:0 0 8px;font-weight:600}
p{margin:0 0 18px;color:var(--soft);max-width:96ch;font-size:15px}
p.sub{font-size:17px;margin-bottom:24px}
section,.machine{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:24px;margin-top:24px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:0 0 20px}
.tile{border:1px solid var(--rule);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:22px;white-space:nowrap;line-height:1.2;font-weight:600}
.tile span{color:var(--soft);font-size:13px;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:0;font-size:14px}
@media (min-width:900px){dl{grid-template-columns:max-content 1fr max-content 1fr}}
dt{color:var(--faint)}dd{margin:0}
nav{margin:0 0 4px;font-size:14px}nav a{color:var(--c0);margin-right:18px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:28px 24px;margin:8px 0 24px}
figure{margin:0 0 20px;min-width:0}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 6px;padding:0;list-style:none;font-size:13px;color:var(--soft)}
.legend svg{display:inline-block;width:22px;height:14px;margin-right:6px;vertical-align:-2px}
.table{overflow-x:auto;border:1px solid var(--rule);border-radius:8px;max-height:620px;overflow-y:auto}
.table:focus-visible,a:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums;white-space:nowrap}
th{position:sticky;top:0;background:var(--head);text-align:left;font-weight:600;color:var(--soft)}
th,td{padding:6px 12px;border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}
.n{text-align:right}.wrong{color:var(--bad);font-weight:600}.p{white-space:normal;min-width:17em}
pre{margin:0 0 20px;padding:12px 14px;background:var(--head);border:1px solid var(--rule);border-radius:8px;font-size:13px;
line-height:1.6;white-space:pre-wrap;overflow-wrap:anywhere}
)css";

// Rows: a name and a lane each, one above the other on narrow pages.
constexpr const char* kRowStyle = R"css(
.rows{font-size:13px;color:var(--soft);font-variant-numeric:tabular-nums}
.row{display:grid;grid-template-columns:min(var(--name),34%) 1fr;gap:0 10px;align-items:center;padding:4px 0}
.row .name{text-align:right;line-height:1.25;overflow-wrap:anywhere}
.lane{position:relative;display:block;height:20px;margin-right:72px;
background:repeating-linear-gradient(90deg,var(--grid) 0 1px,transparent 1px calc(100%/var(--ticks)))}
.spans .row{padding:2px 0}.spans .lane{height:16px;margin-right:16px}
.lane .bar{position:absolute;top:0;bottom:0;box-shadow:inset -1px 0 var(--card);print-color-adjust:exact;
-webkit-print-color-adjust:exact}
.lane b{position:absolute;padding-left:6px;font-weight:400;line-height:20px;white-space:nowrap}
.lane .guide{position:absolute;top:-4px;bottom:-4px;border-left:1px dashed var(--soft)}
.head .lane,.scale .lane{background:none}.head .lane b{padding:0;transform:translateX(-50%)}
.scale .lane{height:38px;border-top:1px solid var(--faint)}
.scale .lane i{position:absolute;top:3px;transform:translateX(-50%);font-style:normal;color:var(--faint)}
.scale .lane em{position:absolute;top:20px;left:0;right:0;text-align:center;font-style:normal}
)css";

constexpr const char* kNarrowStyle = R"css(
@media (max-width:700px){main{padding:24px 12px 40px}section,.machine{padding:16px 14px}h1{font-size:24px;overflow-wrap:anywhere}
p.sub{font-size:16px}.tile b{white-space:normal;overflow-wrap:anywhere;font-size:19px}
svg text{font-size:17px}.legend svg text{font-size:inherit}
.row{grid-template-columns:1fr}.row .name{text-align:left}.head .name,.scale .name{display:none}
.table{max-height:none;border:0}thead{display:none}table,tbody,tr,td{display:block}
tr{border:1px solid var(--rule);border-radius:8px;padding:6px 12px;margin-bottom:10px}
td,td.n,tr:last-child td{display:grid;grid-template-columns:8.5em 1fr;gap:10px;padding:4px 0;border:0;text-align:left;
white-space:normal;min-width:0;overflow-wrap:anywhere}
td:empty{display:none}td::before{content:attr(data-heading);color:var(--faint);font-weight:400}}
)css";

// For plots on the page and in files of their own.
std::string plot_style() {
  std::string css = std::string(kColours) + kPlotStyle;
  for (size_t i = 0; i < kMostSeries; ++i) {
    css += fmt::format(".line.s{0}{{stroke:var(--c{0})}}.mark.s{0},path.bar.s{0}{{fill:var(--c{0})}}\n", i);
  }
  return css;
}

std::string page_style() {
  std::string css = plot_style() + kPageStyle + kRowStyle + kNarrowStyle;
  for (size_t i = 0; i < kMostSeries; ++i) css += fmt::format("i.bar.s{0}{{background:var(--c{0})}}\n", i);
  return css + "@media print{body{background:#fff}section,.machine{break-inside:avoid}.table{max-height:none}}\n";
}

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
      kWidth, height, kWidth, height, plot_style(), kWidth - 1, height - 1, kMargin, escape_html(figure.title), legend,
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
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n<p class=\"sub\">{}</p>\n",
      escape_html(report.title), page_style(), escape_html(report.title), escape_html(report.subtitle));
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
