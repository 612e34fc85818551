// What a benchmark hands back: sections of tables and plots. From one description come the table for people, the JSON
// for programs and the page for both (page.h), so that none of them can say something else. Measures nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace zoetrope::bench {

// Nothing: does not apply or was not measured.
using Cell = std::variant<std::monostate, std::string, int64_t, double>;

enum class Format : uint8_t {
  kText,
  kCount,       // 1 234 567
  kSeconds,     // 1.23 ms
  kOneDecimal,  // 123.4
  kPercent,     // of a fraction
  kScientific,  // 1.2e-03
  kBytes,       // 16 MiB
};

struct Column {
  std::string key;      // in JSON, where the raw value stands
  std::string heading;  // for people
  Format format = Format::kText;
  bool detail = false;  // on the page and in JSON only: the table for people has room for the rest
  bool prose = false;   // words that the page may break into lines
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  // Throws nothing, checks the row's length (ZT_CHECK).
  void add(std::vector<Cell> row);
  // The cell of a row under the column with this key (ZT_CHECK: there is one).
  Cell& cell(std::vector<Cell>& row, std::string_view key) const;
};

std::string format_cell(const Cell& cell, Format format);
std::vector<bool> filled_columns(const Table& table);   // some row has a value there
std::vector<bool> numeric_columns(const Table& table);  // some row has a number there
// Aligned columns under a heading and a rule, numbers to the right; without details and columns that are empty.
std::string table_text(const Table& table);

struct LinePlot {
  struct Point {
    double x = 0;
    double y = 0;
  };
  struct Line {
    std::string name;
    std::vector<Point> points;  // ascending in x
    std::optional<size_t> slot =
        std::nullopt;  // colour and mark: the same for the same thing in every plot; unset: its place
  };
  std::string title;
  std::string x_label, y_label;
  bool x_is_bytes = false;  // ticks as 64 KiB instead of 65536
  bool y_is_fraction = false;
  double guide = 0;         // a horizontal line at this height, where not 0
  std::vector<Line> lines;  // at most 8: one colour each
};

struct BarPlot {
  struct Series {
    std::string name;
    std::vector<double> values;                 // one a group
    std::optional<size_t> slot = std::nullopt;  // as of a line; of stacked plots
  };
  std::string title;
  std::string y_label;
  bool y_is_fraction = false;
  std::vector<std::string> groups;
  std::vector<Series> series;  // at most 8
};

// Rows of segments laid end to end, from left to right.
struct StackedPlot {
  std::string title;
  std::string x_label;  // of the sum
  std::string unit;     // behind values: "s", "GB"
  double limit = 0;     // a vertical line, where not 0, called …
  std::string limit_label;
  std::vector<std::string> rows;
  std::vector<BarPlot::Series> series;  // one value a row; at most 8
};

// What happens when: spans on named rows.
struct TimelinePlot {
  struct Span {
    size_t row = 0;
    size_t kind = 0;  // of `kinds`
    double begin = 0, end = 0;
    std::string name;
  };
  std::string title;
  std::string unit;  // of begin and end
  std::vector<std::string> rows;
  struct Kind {
    std::string name;
    std::optional<size_t> slot = std::nullopt;  // as of a line
  };
  std::vector<Kind> kinds;  // a colour each, at most 8
  std::vector<Span> spans;
};

struct Section {
  std::string name;   // key in JSON: "peak", "kernel", …
  std::string title;  // for people
  std::string note;   // a paragraph: what was measured and how the columns are defined
  std::vector<std::pair<std::string, std::string>> highlights;  // a figure and what it is, large on the page
  std::string listing_title, listing;                           // lines to copy, on the page only; empty: none
  std::vector<LinePlot> line_plots;
  std::vector<BarPlot> bar_plots;
  std::vector<StackedPlot> stacked_plots;
  std::vector<TimelinePlot> timelines;
  Table table;
};

struct Report {
  // Of the page.
  std::string title = "Zoetrope: attention at the machine's limit";
  std::string subtitle =
      "Exact attention as measured on one machine, against what that machine can do. Every result was verified before "
      "it "
      "was timed.";
  std::string facts = "The machine";                         // what is called `machine` here and in JSON
  std::vector<std::pair<std::string, std::string>> machine;  // "CPU", "Intel …"
  std::vector<Section> sections;
};

std::string report_json(const Report& report);  // {"machine": {…}, SECTION: [{COLUMN: value, …}, …], …}

}  // namespace zoetrope::bench
