// The base of `bench model`, `vae` and `text`: a pass that is checked and timed, a table of passes, and one of the time
// per operation.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/attention_data.h"
#include "bench/peak.h"
#include "bench/published.h"

namespace zoetrope::bench {

class WholeModel : protected ModelCase {
 protected:
  // `own` are the columns before the common ones, `key` those of them that identify a row in the table of operations.
  WholeModel(std::string name, const PublishedSettings& settings, const Progress& progress, Outcome& outcome,
             std::vector<Column> own, std::vector<Column> key);

  struct Pass {
    Part part;
    DType dtype;
    double flop;
    std::function<void()> run;
    std::function<Verdict()> check;           // of the same weights and code against float64
    std::function<std::string()> degenerate;  // what is wrong with the result itself; empty: nothing
    int64_t load_peak_bytes = 0;              // the most memory while loading
  };
  // Checks after the first run; a result that is wrong is not timed, and there are no repeats. Adds a row that begins
  // with `own`, and rows of operations that begin with `key`.
  std::vector<PairedRepeat> measure(const Pass& pass, std::vector<Cell> own, const std::vector<Cell>& key);

  std::vector<Section> sections(const char* title, const char* note, const char* operations_title);  // once

  Table table_;

 private:
  Table operations_;
};

// The span around each timed pass.
inline constexpr const char* kPass = "pass";

struct Operation {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;  // of its spans, without the spans inside them
  double flop = 0;     // as the spans say; 0: unknown
};
// The compute lane inside the last pass, the longest operation first. Time without a span is the operation "(no span)".
std::vector<Operation> operations_of_last_pass(const trace::Trace& trace);

}  // namespace zoetrope::bench
