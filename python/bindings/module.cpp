// The extension module zoetrope._core. What users import is the package around it (python/zoetrope).
#include <nanobind/stl/string.h>

#include "zoetrope/error.h"
#include "zoetrope/mpi.h"
#include "zoetrope/version.h"

#include "comm/finish_failed.h"
#include "python/bindings/bindings.h"

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  module.doc() = "The engine behind the package zoetrope.";
  // One sentence about what was given, as a ValueError has it.
  nb::exception<zoetrope::Error>(module, "Error", PyExc_ValueError);
  module.def("version", [] { return std::string(zoetrope::version()); });
  module.def("launched_by_mpi", zoetrope::comm::launched_by_mpi, "Whether mpirun or srun started this process.");
  module.def("finish_mpi", zoetrope::comm::finish_mpi, nb::call_guard<nb::gil_scoped_release>(),
             "Ends MPI where it was used. Collective.");
  module.def("finish_failed_mpi", zoetrope::comm::finish_failed_mpi, nb::call_guard<nb::gil_scoped_release>(),
             "Likewise, and where the other processes do not come within seconds, ends them and this one.");
  zoetrope::python::bind_attention(module);
  zoetrope::python::bind_pipeline(module);
  zoetrope::python::bind_plan(module);
}
