#include "bench/whole_model.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/machine.h"
#include "bench/statistics.h"

namespace zoetrope::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kWindowLimit = 2;  // of the peak next to runs that may take a minute

void append(std::vector<Column>& columns, std::vector<Column> more) {
  columns.insert(columns.end(), more.begin(), more.end());
}

constexpr const char* kUncovered = "(no span)";

struct SpanSeen {
  std::string name;
  double begin = 0, end = 0;  // µs
  double flop = 0;
};

// The compute lane's spans, outer before inner.
std::vector<SpanSeen> compute_spans(const trace::Trace& trace) {
  // A trace can only be read from its file.
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

WholeModel::WholeModel(std::string name, const PublishedSettings& settings, const Progress& progress, Outcome& outcome,
                       std::vector<Column> own, std::vector<Column> key)
    : ModelCase(std::move(name), settings, progress, outcome, true) {
  table_.columns = std::move(own);
  append(table_.columns, {{"seconds_min", "least", Format::kSeconds},
                          {"seconds_median", "median", Format::kSeconds},
                          {"gflop", "GFLOP", Format::kOneDecimal},
                          {"gflops", "GFLOP/s", Format::kOneDecimal},
                          {"peak_gflops", "peak", Format::kOneDecimal},
                          {"fraction", "of peak", Format::kPercent},
                          {"peak_bytes", "resident", Format::kBytes},
                          {"weight_bytes", "weights", Format::kBytes},
                          {"above_weights_bytes", "above", Format::kBytes},
                          {"rel_l2", "rel L2", Format::kScientific},
                          {"tolerance", "tolerance", Format::kScientific, true},
                          {"note", ""}});
  operations_.columns = std::move(key);
  append(operations_.columns, {{"operation", "operation"},
                               {"calls", "calls"},
                               {"seconds", "seconds", Format::kSeconds},
                               {"share", "share", Format::kPercent},
                               {"gflop", "GFLOP", Format::kOneDecimal},
                               {"gflops", "GFLOP/s", Format::kOneDecimal},
                               {"fraction", "of peak", Format::kPercent}});
}

std::vector<PairedRepeat> WholeModel::measure(const Pass& pass, std::vector<Cell> own, const std::vector<Cell>& key) {
  struct Wrong {};
  Verdict verdict;
  std::string note;
  int64_t peak_bytes = 0;
  std::vector<PairedRepeat> repeats;
  const PairedOptions options{.repeats = static_cast<int>(published_.repeat), .window_limit = kWindowLimit};
  try {
    repeats = time_beside_peak(
        fastest_isa(pass.dtype, stream_.team()), stream_.team(), pass.flop, options,
        [&] {
          const trace::Span span(stream_.lane(), kPass);
          pass.run();
        },
        [&] {
          peak_bytes = peak_resident_bytes();  // without the memory of the check
          verdict = pass.check();
          note = verdict.passed() ? pass.degenerate() : verdict.note();
          if (!note.empty()) throw Wrong();
          forget_peak_resident();
        });
  } catch (const Wrong&) {
    ++outcome_.wrong;
  }
  const int64_t weight_bytes = model_.weight_bytes(pass.part, pass.dtype);
  table_.begin_row(std::move(own));
  table_.set("gflop", pass.flop * 1e-9);
  table_.set("weight_bytes", weight_bytes);
  table_.set("rel_l2", verdict.relative_l2);
  table_.set("tolerance", verdict.tolerance);
  if (!note.empty()) table_.set("note", note);
  if (repeats.empty()) return repeats;
  peak_bytes = std::max({peak_bytes, peak_resident_bytes(), pass.load_peak_bytes});
  const std::vector<double> seconds = each(repeats, &PairedRepeat::seconds);
  const double peak = median(each(repeats, [](const PairedRepeat& r) { return r.peak.flops; }));
  table_.set("seconds_min", minimum(seconds));
  table_.set("seconds_median", median(seconds));
  table_.set("gflops", pass.flop / minimum(seconds) * 1e-9);
  table_.set("peak_gflops", peak * 1e-9);
  table_.set("fraction", median(each(repeats, &PairedRepeat::fraction)));
  table_.set("peak_bytes", peak_bytes);
  table_.set("above_weights_bytes", std::max<int64_t>(0, peak_bytes - weight_bytes));
  const std::vector<Operation> operations = operations_of_last_pass(trace_);
  double all = 0;
  for (const Operation& operation : operations) all += operation.seconds;
  for (const Operation& operation : operations) {
    operations_.begin_row(key);
    operations_.set("operation", operation.name);
    operations_.set("calls", operation.calls);
    operations_.set("seconds", operation.seconds);
    operations_.set("share", operation.seconds / all);
    if (operation.flop <= 0 || operation.seconds <= 0) continue;
    const double flops = operation.flop / operation.seconds;
    operations_.set("gflop", operation.flop * 1e-9);
    operations_.set("gflops", flops * 1e-9);
    operations_.set("fraction", flops / peak);
  }
  return repeats;
}

std::vector<Section> WholeModel::sections(const char* title, const char* note, const char* operations_title) {
  Section passes, operations;
  passes.name = name_;
  passes.title = title;
  passes.note = note;
  operations.name = name_ + "_operations";
  operations.title = operations_title;
  operations.note = "Spans of the engine by name, each without the spans inside it.";
  passes.table = std::move(table_);
  operations.table = std::move(operations_);
  return {std::move(passes), std::move(operations)};
}

}  // namespace zoetrope::bench
