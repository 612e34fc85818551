// The report as one self-contained HTML page without scripts, and its plots as SVG files, for documents.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace zoetrope::bench {

std::string report_page(const Report& report);

struct Drawing {
  std::string name;  // "numerics-1": its section and index
  std::string svg;   // with title, legend, colours and a background of its own
};
std::vector<Drawing> report_drawings(const Report& report);

}  // namespace zoetrope::bench
