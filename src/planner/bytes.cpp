#include "planner/bytes.h"

#include <fmt/format.h>

namespace zoetrope::planner {

std::string Bytes::text() const {
  const double gb = gigabytes();
  if (gb >= 10) return fmt::format("{:.1f} GB", gb);
  return gb >= 0.1 ? fmt::format("{:.2f} GB", gb) : fmt::format("{:.1f} MB", gb * 1e3);
}

}  // namespace zoetrope::planner
