// The report as one HTML page that needs nothing else: style and plots are inside, nothing is fetched, nothing runs.
#pragma once

#include <string>

#include "bench/report.h"

namespace zoetrope::bench {

std::string report_page(const Report& report);

}  // namespace zoetrope::bench
