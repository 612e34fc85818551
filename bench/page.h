// The report as one HTML page that needs nothing else: style and plots are inside, nothing is fetched, nothing runs;
// and its plots as files of their own, for documents.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace zoetrope::bench {

std::string report_page(const Report& report);

struct Drawing {
  std::string name;  // "numerics-1": its section and place there
  std::string svg;   // with title, legend, colours and a background of its own
};
std::vector<Drawing> report_drawings(const Report& report);

}  // namespace zoetrope::bench
