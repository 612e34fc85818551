// Where the time of a pass goes: the spans that the engine records, added up by name.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"
#include "trace/trace.h"

namespace zoetrope::bench {

// The span that a case lays around each pass it times.
inline constexpr const char* kPass = "pass";

struct Operation {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;  // of its spans, without the spans inside them
  double flop = 0;     // as the spans say; 0: they do not say
};

// What the compute lane shows inside the last pass, the longest first. Time that no span covers is the operation
// "(no span)".
std::vector<Operation> operations_of_last_pass(const trace::Trace& trace);

// Columns operation, calls, seconds, share, gflop, gflops, fraction; and rows of them behind the cells `front`. `peak`
// is in operations a second.
void add_operation_columns(std::vector<Column>& columns);
void add_operations(Table& table, const std::vector<Cell>& front, const std::vector<Operation>& operations,
                    double peak);

}  // namespace zoetrope::bench
