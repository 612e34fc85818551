#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace zoetrope::bench {
namespace {

std::string seconds_text(double s) {
  if (s >= 1) return fmt::format("{:.3f} s", s);
  if (s >= 1e-3) return fmt::format("{:.3f} ms", s * 1e3);
  return fmt::format("{:.1f} µs", s * 1e6);
}

// Groups of three digits.
std::string count_text(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') text += ' ';
    text += digits[i];
  }
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return bytes == std::floor(bytes) ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
                                    : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string number_text(double value, Format format) {
  if (!std::isfinite(value)) return "-";
  switch (format) {
    case Format::kSeconds:
      return seconds_text(value);
    case Format::kOneDecimal:
      return fmt::format("{:.1f}", value);
    case Format::kPercent:
      return fmt::format("{:.1f} %", value * 100);
    case Format::kScientific:
      return fmt::format("{:.1e}", value);
    case Format::kBytes:
      return bytes_text(value);
    case Format::kCount:
      return count_text(std::llround(value));
    case Format::kText:
      break;
  }
  return fmt::format("{:.4g}", value);
}

// Characters as a terminal shows them: UTF-8 continuation bytes have no width.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

nlohmann::ordered_json cell_json(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* integer = std::get_if<int64_t>(&cell)) return *integer;
  if (const auto* number = std::get_if<double>(&cell)) {
    if (std::isfinite(*number)) return *number;
  }
  return nullptr;
}

}  // namespace

void Table::add(std::vector<Cell> row) {
  ZT_CHECK(row.size() == columns.size(), "a row of {} cells in a table of {} columns", row.size(), columns.size());
  rows.push_back(std::move(row));
}

void Table::begin_row(std::vector<Cell> first) {
  ZT_CHECK(first.size() <= columns.size());
  first.resize(columns.size());
  rows.push_back(std::move(first));
}

void Table::set(std::string_view key, Cell value) {
  const auto column = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.key == key; });
  ZT_CHECK(column != columns.end() && !rows.empty(), "no column '{}'", key);
  rows.back()[static_cast<size_t>(column - columns.begin())] = std::move(value);
}

std::string format_cell(const Cell& cell, Format format) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    return format == Format::kText ? fmt::format("{}", *integer) : number_text(static_cast<double>(*integer), format);
  }
  if (const auto* number = std::get_if<double>(&cell)) return number_text(*number, format);
  return "-";
}

std::vector<bool> filled_columns(const Table& table) {
  std::vector<bool> filled(table.columns.size(), false);
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) filled[c] = filled[c] || row[c].index() != 0;
  }
  return filled;
}

std::vector<bool> numeric_columns(const Table& table) {
  std::vector<bool> numeric(table.columns.size(), false);
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) numeric[c] = numeric[c] || row[c].index() >= 2;
  }
  return numeric;
}

std::string table_text(const Table& table) {
  std::vector<bool> shown = filled_columns(table);
  for (size_t c = 0; c < shown.size(); ++c) shown[c] = shown[c] && !table.columns[c].detail;
  const std::vector<bool> numeric = numeric_columns(table);
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : table.columns) lines[0].push_back(column.heading);
  for (const std::vector<Cell>& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t c = 0; c < row.size(); ++c) line.push_back(format_cell(row[c], table.columns[c].format));
  }
  std::vector<size_t> widths(table.columns.size(), 0);
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], width(line[c]));
  }
  std::string text;
  for (size_t l = 0; l < lines.size(); ++l) {
    std::string out, rule;
    for (size_t c = 0; c < lines[l].size(); ++c) {
      if (!shown[c]) continue;
      const size_t padding = widths[c] - width(lines[l][c]);
      if (!out.empty()) out += "  ";
      if (!rule.empty()) rule += "  ";
      if (numeric[c]) out.append(padding, ' ');
      out += lines[l][c];
      if (!numeric[c]) out.append(padding, ' ');
      rule.append(widths[c], '-');
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
    if (l == 0) text += rule + "\n";
  }
  return text;
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : report.machine) json["machine"][name] = value;
  for (const Section& section : report.sections) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::vector<Cell>& row : section.table.rows) {
      nlohmann::ordered_json object;
      for (size_t c = 0; c < row.size(); ++c) object[section.table.columns[c].key] = cell_json(row[c]);
      rows.push_back(std::move(object));
    }
    json[section.name] = std::move(rows);
  }
  return json_text(json, 1) + "\n";
}

}  // namespace zoetrope::bench
