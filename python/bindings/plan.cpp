#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "plan_report/plan_report.h"
#include "python/bindings/bindings.h"

namespace zoetrope::python {

void bind_plan(nb::module_& module) {
  module.def(
      "plan_json",
      [](const std::vector<std::string>& words) {
        const nb::gil_scoped_release others_run;
        return plan_report::plan_json(plan_report::plan_answer(plan_report::parse_plan_options(words)));
      },
      nb::arg("words"), "What `zoetrope plan WORD… json=FILE` writes into the file.");
}

}  // namespace zoetrope::python
