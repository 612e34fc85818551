// The report as text, JSON and page, and the statistics and words that go into it.
#include "bench/report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/machine.h"
#include "bench/page.h"
#include "bench/plot.h"
#include "bench/statistics.h"

namespace zoetrope::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Report small_report() {
  Section section;
  section.name = "kernel";
  section.title = "Speed & <size>";
  section.note = "What it is.";
  section.highlights = {{"7 GB/s", "of copies"}};
  section.table.columns = {{"name", "name"},
                           {"seconds", "time", Format::kSeconds},
                           {"share", "share", Format::kPercent, true},
                           {"nothing", "nothing"}};
  section.table.add({"µ<b>", 0.0015, 0.5, {}});
  section.table.add({"WRONG: no", {}, std::nan(""), {}});
  LinePlot lines;
  lines.title = "lines";
  lines.x_label = "tokens";
  lines.y_label = "share";
  lines.y_is_fraction = true;
  lines.lines = {{"one", {{512, 0.5}, {1024, 0.75}}}, {"two", {{512, 0.25}}}};
  section.line_plots = {lines};
  BarPlot bars;
  bars.title = "bars";
  bars.y_label = "share";
  bars.groups = {"a", "b"};
  bars.series = {{"one", {1, 2}}, {"two", {0, std::nan("")}}};
  section.bar_plots = {bars};
  Report report;
  report.machine = {{"CPU", "a <fast> one"}};
  report.sections = {section};
  return report;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Statistics, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(minimum({3, 1, 2}), 1);
  EXPECT_EQ(maximum({3, 1, 2}), 3);
}

TEST(Report, CellsAreWrittenForPeople) {
  EXPECT_EQ(format_cell(Cell{}, Format::kText), "-");
  EXPECT_EQ(format_cell(std::string("x"), Format::kPercent), "x");
  EXPECT_EQ(format_cell(int64_t{1234567}, Format::kCount), "1 234 567");
  EXPECT_EQ(format_cell(int64_t{-123456}, Format::kCount), "-123 456");
  EXPECT_EQ(format_cell(int64_t{512}, Format::kCount), "512");
  EXPECT_EQ(format_cell(int64_t{1234567}, Format::kText), "1234567");
  EXPECT_EQ(format_cell(1.5, Format::kSeconds), "1.500 s");
  EXPECT_EQ(format_cell(0.0015, Format::kSeconds), "1.500 ms");
  EXPECT_EQ(format_cell(0.0000015, Format::kSeconds), "1.5 µs");
  EXPECT_EQ(format_cell(0.925, Format::kPercent), "92.5 %");
  EXPECT_EQ(format_cell(int64_t{16} << 20, Format::kBytes), "16 MiB");
  EXPECT_EQ(format_cell(int64_t{1536}, Format::kBytes), "1.50 KiB");
  EXPECT_EQ(format_cell(0.00123, Format::kScientific), "1.2e-03");
  EXPECT_EQ(format_cell(std::nan(""), Format::kSeconds), "-");
}

TEST(Report, TextHasAlignedColumnsWithoutDetailsAndEmptyOnes) {
  EXPECT_EQ(table_text(small_report().sections[0].table),
            "name           time\n"
            "---------  --------\n"
            "µ<b>       1.500 ms\n"
            "WRONG: no         -\n");
}

TEST(Report, JsonHoldsEveryRawValue) {
  const auto json = nlohmann::json::parse(report_json(small_report()));
  EXPECT_EQ(json["machine"]["CPU"], "a <fast> one");
  ASSERT_EQ(json["kernel"].size(), 2u);
  EXPECT_EQ(json["kernel"][0]["seconds"], 0.0015);
  EXPECT_EQ(json["kernel"][0]["share"], 0.5);
  EXPECT_TRUE(json["kernel"][0]["nothing"].is_null());
  EXPECT_TRUE(json["kernel"][1]["share"].is_null()) << "JSON has no NaN";
}

TEST(Page, StandsAloneAndEscapesWhatItShows) {
  const std::string page = report_page(small_report());
  EXPECT_THAT(page, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("url(")));
  EXPECT_THAT(page, Not(HasSubstr("µ<b>")));
  EXPECT_THAT(page, HasSubstr("µ&lt;b&gt;"));
  EXPECT_THAT(page, HasSubstr("Speed &amp; &lt;size&gt;"));
  EXPECT_THAT(page, HasSubstr("a &lt;fast&gt; one"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(page, HasSubstr("<td class=\"wrong\" data-heading=\"name\">WRONG: no</td>"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  for (const char* tag : {"html", "body", "main", "section", "figure", "svg", "table", "tbody", "tr", "ul", "g"}) {
    const std::string name = tag;
    EXPECT_EQ(count(page, "<" + name + ">") + count(page, "<" + name + " "), count(page, "</" + name + ">")) << tag;
  }
}

TEST(Page, PlotsAreFilesOfTheirOwnToo) {
  const std::vector<Drawing> drawings = report_drawings(small_report());
  ASSERT_EQ(drawings.size(), 2u);
  EXPECT_EQ(drawings[0].name, "kernel-1");
  EXPECT_EQ(drawings[1].name, "kernel-2");
  for (const Drawing& drawing : drawings) {
    EXPECT_THAT(drawing.svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"576\""));
    EXPECT_EQ(count(drawing.svg, "<svg"), 2u) << "the plot inside";
    EXPECT_EQ(count(drawing.svg, "</svg>"), 2u);
    EXPECT_EQ(count(drawing.svg, "<style>"), 1u);
    EXPECT_THAT(drawing.svg, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_THAT(drawing.svg, HasSubstr(">one</text>")) << "the legend";
  }
  EXPECT_THAT(drawings[0].svg, HasSubstr(">lines</text>"));
  EXPECT_THAT(drawings[1].svg, HasSubstr(">bars</text>"));
}

TEST(Report, CellsAreFoundByTheirColumn) {
  Table table = small_report().sections[0].table;
  table.begin_row({"third"});
  table.set("share", 0.25);
  EXPECT_EQ(std::get<std::string>(table.rows.back()[0]), "third");
  EXPECT_EQ(std::get<double>(table.rows.back()[2]), 0.25);
  EXPECT_EQ(table.rows.back().size(), table.columns.size());
}

TEST(Plot, EveryPointIsAMarkThatTellsItsValue) {
  const Report report = small_report();
  const std::string svg = line_plot_svg(report.sections[0].line_plots[0], "p");
  EXPECT_EQ(count(svg, "class=\"mark"), 3u);
  EXPECT_EQ(count(svg, "class=\"line"), 2u);
  EXPECT_THAT(svg, HasSubstr("<title>one, 1 024: 75.0 %</title>"));
  EXPECT_THAT(svg, HasSubstr("role=\"img\" aria-labelledby=\"p-t p-d\""));
}

TEST(Plot, HigherValuesStandHigher) {
  LinePlot plot;
  plot.y_is_fraction = true;
  plot.lines = {{"one", {{1, 0.0}, {2, 0.5}, {4, 1.0}}}};
  const std::string svg = line_plot_svg(plot, "p");
  const size_t path = svg.find("<path class=\"line s0\" d=\"M");
  ASSERT_NE(path, std::string::npos);
  double x[3], y[3];
  ASSERT_EQ(std::sscanf(svg.c_str() + path, "<path class=\"line s0\" d=\"M%lf %lfL%lf %lfL%lf %lf", &x[0], &y[0], &x[1],
                        &y[1], &x[2], &y[2]),
            6);
  EXPECT_LT(y[2], y[1]);
  EXPECT_LT(y[1], y[0]);
  EXPECT_NEAR(y[0] - y[1], y[1] - y[2], 0.11) << "linear, to the decimal that is written";
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.11) << "twice the tokens are the same way";
}

TEST(Plot, OnePointAndNoHeightAreDrawn) {
  LinePlot plot;
  plot.lines = {{"one", {{1024, 0.0}}}};
  EXPECT_THAT(line_plot_svg(plot, "p"), Not(HasSubstr("nan")));
  BarPlot bars;
  bars.groups = {"a"};
  bars.series = {{"one", {0.0}}};
  EXPECT_THAT(bar_plot_svg(bars, "p"), Not(HasSubstr("nan")));
}

// Percent of the lane, of the n-th segment.
double segment_number(const std::string& html, const char* attribute, int n) {
  size_t at = 0;
  for (int i = 0; i <= n; ++i) at = html.find("class=\"bar ", at + 1);
  const std::string key = std::string(attribute) + ":";
  at = html.find(key, at);
  return std::stod(html.substr(at + key.size()));
}

TEST(Plot, SegmentsLieEndToEndAndEndAtTheSum) {
  RowPlot plot;
  plot.title = "a step";
  plot.label = "seconds";
  plot.unit = "s";
  plot.sums = true;
  plot.limit = 6;
  plot.limit_label = "limit <6>";
  plot.rows = {"one & two", "three"};
  plot.kinds = {{"attention", 5}, {"waiting"}};
  plot.append(0, 0, 1);
  plot.append(1, 0, 3);
  plot.append(0, 1, 2);
  plot.append(1, 1, 0);
  const std::string html = row_plot_html(plot);
  EXPECT_EQ(count(html, "class=\"bar "), 3u) << "nothing is drawn of 0";
  EXPECT_NEAR(segment_number(html, "left", 0) + segment_number(html, "width", 0), segment_number(html, "left", 1),
              0.02);
  EXPECT_NEAR(segment_number(html, "width", 1), 2 * segment_number(html, "width", 0), 0.02);
  EXPECT_NEAR(segment_number(html, "width", 2), 3 * segment_number(html, "width", 0), 0.02);
  EXPECT_EQ(count(html, "class=\"bar s5\""), 2u) << "a colour of its own";
  EXPECT_EQ(count(html, "class=\"bar s1\""), 1u) << "or that of its place";
  EXPECT_THAT(html, HasSubstr("one &amp; two, waiting: 2 s"));
  EXPECT_THAT(html, HasSubstr("<span class=\"name\">one &amp; two</span>"));
  EXPECT_THAT(html, HasSubstr(">3 s</b>")) << "the sum";
  EXPECT_THAT(html, HasSubstr("limit &lt;6&gt;"));
  EXPECT_EQ(count(html, "class=\"guide\""), 2u) << "in every row";
}

TEST(Plot, SpansBeginAndEndWhenTheyDo) {
  RowPlot plot;
  plot.title = "a layer";
  plot.unit = "ms";
  plot.rows = {"rank 0", "rank 1"};
  plot.kinds = {{"computes"}, {"waits", 7}};
  plot.bars = {{0, 0, 0, 2, "K0"}, {1, 1, 2, 3, "hop <1>"}, {1, 0, 3, 3, "nothing"}};
  const std::string html = row_plot_html(plot);
  EXPECT_EQ(count(html, "class=\"bar "), 2u) << "what cannot be seen is left out";
  EXPECT_NEAR(segment_number(html, "left", 0) + segment_number(html, "width", 0), segment_number(html, "left", 1),
              0.02);
  EXPECT_LT(html.find("class=\"bar s0"), html.find("rank 1"));
  EXPECT_GT(html.find("class=\"bar s7"), html.find("rank 1"));
  EXPECT_THAT(html, HasSubstr("hop &lt;1&gt;: 1 ms from 2"));
}

// What is too wide for the page is broken into lines, and where it is narrow a row of a table becomes a list of its
// own.
TEST(Page, ProseMayBreakAndCellsKnowTheirHeading) {
  Report report = small_report();
  report.sections[0].table.columns[0].prose = true;
  report.sections[0].listing_title = "To type";
  report.sections[0].listing = "ranks=8 <now>\nand that";
  const std::string page = report_page(report);
  EXPECT_THAT(page, HasSubstr("<td class=\"p\" data-heading=\"name\">µ&lt;b&gt;</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"n\" data-heading=\"time\">"));
  EXPECT_THAT(page, HasSubstr(".p{white-space:normal"));
  EXPECT_THAT(page, HasSubstr("td::before{content:attr(data-heading)"));
  EXPECT_THAT(page, HasSubstr("<h3>To type</h3>\n<pre>ranks=8 &lt;now&gt;\nand that</pre>"));
}

TEST(Page, IsTitledByItsReport) {
  Report report = small_report();
  report.title = "What to <buy>";
  report.subtitle = "Eight of them.";
  report.facts = "The question";
  RowPlot plot;
  plot.title = "memory";
  plot.rows = {"denoise"};
  plot.kinds = {{"weights"}};
  plot.append(0, 0, 3);
  report.sections[0].row_plots = {plot};
  const std::string page = report_page(report);
  for (const char* text : {"<h1>What to &lt;buy&gt;</h1>", "Eight of them.", "<h2>The question</h2>", ">memory</h3>"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST(Plot, TicksAreRoundAndReachTheTop) {
  EXPECT_THAT(axis_ticks(1), ElementsAre(0, 0.2, 0.4, testing::DoubleNear(0.6, 1e-12), 0.8, 1));
  EXPECT_THAT(axis_ticks(270), ElementsAre(0, 100, 200, 300));
  EXPECT_THAT(axis_ticks(87), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_EQ(axis_ticks(0).front(), 0);
  EXPECT_GE(axis_ticks(0).size(), 2u);
}

TEST(Machine, SaysWhatTheNumbersWereMeasuredOn) {
  bool cpu = false;
  for (const auto& [name, value] : describe_machine()) {
    EXPECT_NE(value, "") << name;
    cpu |= name == "CPU";
  }
  EXPECT_TRUE(cpu);
}

}  // namespace
}  // namespace zoetrope::bench
