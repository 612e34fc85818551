#include "bench/whole_model.h"

#include <utility>

namespace zoetrope::bench {

WholeModel::WholeModel(std::string name, const PublishedSettings& published, const Progress& progress, Outcome& outcome,
                       std::vector<Column> own, std::vector<Column> key)
    : model_(Published::open(published)),
      threads_(threads_of(published)),
      stream_(threads_, {&trace_, 0, trace::kComputeLane}),
      name_(std::move(name)),
      repeat_(published.repeat),
      progress_(progress),
      outcome_(outcome) {
  table_.columns = std::move(own);
  add_common_columns(table_.columns);
  operations_.columns = std::move(key);
  add_operation_columns(operations_.columns);
}

void WholeModel::say(const std::string& what) const {
  if (progress_) progress_(name_ + " " + what);
}

Timed WholeModel::time(DType dtype, double flop, const std::function<void()>& pass,
                       const std::function<Verdict()>& check, const std::function<std::string()>& look,
                       Verdict& verdict) {
  return time_case(
      fastest_isa(dtype, stream_.team()), stream_.team(), flop, repeat_,
      [&] {
        const trace::Span span(stream_.lane(), kPass);
        pass();
      },
      [&] {
        verdict = check();
        const std::string wrong = verdict.passed() ? look() : verdict.note();
        if (!wrong.empty()) ++outcome_.wrong;
        return wrong;
      });
}

std::vector<Cell> WholeModel::row_of(std::vector<Cell> own, const Timed& timed, double flop, Part part, DType dtype,
                                     const Verdict& verdict) const {
  own.resize(table_.columns.size());
  set_common(table_, own, timed, flop, parameter_bytes(model_, part, dtype), verdict);
  return own;
}

void WholeModel::add(std::vector<Cell> row, const Timed& timed, const std::vector<Cell>& key) {
  table_.add(std::move(row));
  if (timed.figures.seconds.empty()) return;
  add_operations(operations_, key, operations_of_last_pass(trace_), peak_of(timed));
}

std::vector<Section> WholeModel::sections(const Titles& titles) {
  Section passes, operations;
  passes.name = name_;
  passes.title = titles.passes;
  passes.note = titles.note;
  operations.name = name_ + "_operations";
  operations.title = titles.operations;
  operations.note = "Spans of the engine by name, each without the spans inside it.";
  passes.table = std::move(table_);
  operations.table = std::move(operations_);
  return {std::move(passes), std::move(operations)};
}

}  // namespace zoetrope::bench
