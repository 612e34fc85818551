#include "bench/operations.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace zoetrope::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kUncovered = "(no span)";

struct SpanSeen {
  std::string name;
  double begin = 0, end = 0;  // µs
  double flop = 0;
};

// The compute lane's spans, outer before inner.
std::vector<SpanSeen> compute_spans(const trace::Trace& trace) {
  // A trace shows itself as a file and in no other way.
  const fs::path path = fs::temp_directory_path() / fmt::format("zoetrope-bench-{}.json", getpid());
  trace.write(path);
  const json events = json::parse(std::ifstream(path)).at("traceEvents");
  fs::remove(path);
  std::vector<int64_t> rows;
  for (const json& event : events) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name" &&
        event.at("args").at("name") == trace::kComputeLane) {
      rows.push_back(event.at("tid"));
    }
  }
  std::vector<SpanSeen> spans;
  for (const json& event : events) {
    if (event.at("ph") != "X" || std::find(rows.begin(), rows.end(), event.at("tid")) == rows.end()) continue;
    SpanSeen& span = spans.emplace_back();
    span.name = event.at("name");
    span.begin = event.at("ts");
    span.end = span.begin + event.at("dur").get<double>();
    if (event.contains("args")) span.flop = event.at("args").value("gflop", 0.0) * 1e9;
  }
  std::stable_sort(spans.begin(), spans.end(), [](const SpanSeen& a, const SpanSeen& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return spans;
}

}  // namespace

std::vector<Operation> operations_of_last_pass(const trace::Trace& trace) {
  const std::vector<SpanSeen> spans = compute_spans(trace);
  const auto pass = std::find_if(spans.rbegin(), spans.rend(), [](const SpanSeen& s) { return s.name == kPass; });
  std::vector<Operation> operations;
  if (pass == spans.rend()) return operations;
  const auto operation = [&](const std::string& name) -> Operation& {
    const auto found =
        std::find_if(operations.begin(), operations.end(), [&](const Operation& seen) { return seen.name == name; });
    if (found != operations.end()) return *found;
    Operation& made = operations.emplace_back();
    made.name = name;
    return made;
  };
  operation(kUncovered).seconds = (pass->end - pass->begin) * 1e-6;
  std::vector<const SpanSeen*> open;
  for (auto span = pass.base(); span != spans.end() && span->end <= pass->end; ++span) {
    while (!open.empty() && open.back()->end <= span->begin) open.pop_back();
    const double seconds = (span->end - span->begin) * 1e-6;
    operation(open.empty() ? kUncovered : open.back()->name).seconds -= seconds;
    Operation& own = operation(span->name);
    ++own.calls;
    own.seconds += seconds;
    own.flop += span->flop;
    open.push_back(&*span);
  }
  std::sort(operations.begin(), operations.end(),
            [](const Operation& a, const Operation& b) { return a.seconds > b.seconds; });
  return operations;
}

void add_operation_columns(std::vector<Column>& columns) {
  const Column own[] = {{"operation", "operation"},
                        {"calls", "calls"},
                        {"seconds", "seconds", Format::kSeconds},
                        {"share", "share", Format::kPercent},
                        {"gflop", "GFLOP", Format::kOneDecimal},
                        {"gflops", "GFLOP/s", Format::kOneDecimal},
                        {"fraction", "of peak", Format::kPercent}};
  columns.insert(columns.end(), std::begin(own), std::end(own));
}

void add_operations(Table& table, const std::vector<Cell>& front, const std::vector<Operation>& operations,
                    double peak) {
  double all = 0;
  for (const Operation& operation : operations) all += operation.seconds;
  for (const Operation& operation : operations) {
    std::vector<Cell> row = front;
    row.insert(row.end(), {operation.name, operation.calls, operation.seconds, operation.seconds / all});
    if (operation.flop > 0 && operation.seconds > 0) {
      const double flops = operation.flop / operation.seconds;
      row.insert(row.end(), {operation.flop * 1e-9, flops * 1e-9, flops / peak});
    } else {
      row.insert(row.end(), {Cell(), Cell(), Cell()});
    }
    table.add(std::move(row));
  }
}

}  // namespace zoetrope::bench
