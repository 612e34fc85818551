// The result of a benchmark: sections of tables and plots. The table on the terminal, the JSON and the page (page.h)
// are generated from this one description, so they always agree.
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
  std::string key;      // in JSON, which has the raw value
  std::string heading;  // for people
  Format format = Format::kText;
  bool detail = false;  // on the page and in JSON only, not on the terminal
  bool prose = false;   // words that the page may break into lines
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  void add(std::vector<Cell> row);  // of all columns (ZT_CHECK)
  // A row whose first cells are these and the others empty; and a cell of that row, by the key of its column (ZT_CHECK:
  // there is one).
  void begin_row(std::vector<Cell> first);
  void set(std::string_view key, Cell value);
};

std::string format_cell(const Cell& cell, Format format);
std::vector<bool> filled_columns(const Table& table);   // some row has a value there
std::vector<bool> numeric_columns(const Table& table);  // some row has a number there
// Aligned columns under a heading and a rule, numbers to the right; without details and columns that are empty.
std::string table_text(const Table& table);

inline constexpr size_t kMostSeries = 8;  // of a plot: one colour each

struct LinePlot {
  struct Point {
    double x = 0;
    double y = 0;
  };
  struct Line {
    std::string name;
    std::vector<Point> points;                  // ascending in x
    std::optional<size_t> slot = std::nullopt;  // colour and mark, to be the same in every plot; unset: the index
  };
  std::string title;
  std::string x_label, y_label;
  bool x_is_bytes = false;  // ticks as 64 KiB instead of 65536
  bool y_is_fraction = false;
  double guide = 0;  // a horizontal line at this height, where not 0
  std::vector<Line> lines;
};

struct BarPlot {
  struct Series {
    std::string name;
    std::vector<double> values;  // one per group
  };
  std::string title;
  std::string y_label;
  bool y_is_fraction = false;
  std::vector<std::string> groups;
  std::vector<Series> series;
};

// Bars on named rows over one axis: parts end to end with their sum, or spans of time.
struct RowPlot {
  struct Kind {
    std::string name;
    std::optional<size_t> slot = std::nullopt;  // as of a line
  };
  struct Bar {
    size_t row = 0;
    size_t kind = 0;  // of `kinds`
    double begin = 0, end = 0;
    std::string name;  // in the tooltip
  };
  std::string title;
  std::string label;  // of the axis
  std::string unit;   // of values: "s", "GB"
  bool sums = false;  // at the end of every row; its bars lie end to end
  double limit = 0;   // a vertical line, where not 0, called …
  std::string limit_label;
  std::vector<std::string> rows;
  std::vector<Kind> kinds;
  std::vector<Bar> bars;

  // A part behind the last one of a row; nothing where it is 0.
  void append(size_t row, size_t kind, double value);
};

struct Section {
  std::string name;   // key in JSON: "peak", "kernel", …
  std::string title;  // for people
  std::string note;   // a paragraph: what was measured and how the columns are defined
  std::vector<std::pair<std::string, std::string>> highlights;  // a figure and its description, large on the page
  std::string listing_title, listing;                           // lines to copy, on the page only; empty: none
  std::vector<LinePlot> line_plots;
  std::vector<BarPlot> bar_plots;
  std::vector<RowPlot> row_plots;
  Table table;
};

struct Report {
  // Of the page.
  std::string title = "Zoetrope: attention at the machine's limit";
  std::string subtitle =
      "Exact attention as measured on one machine, relative to the machine's limits. Every result was verified before "
      "it was timed.";
  std::string facts = "The machine";                         // title of `machine`
  std::vector<std::pair<std::string, std::string>> machine;  // "CPU", "Intel …"
  std::vector<Section> sections;
};

std::string report_json(const Report& report);  // {"machine": {…}, SECTION: [{COLUMN: value, …}, …], …}

}  // namespace zoetrope::bench
