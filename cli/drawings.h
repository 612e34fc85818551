// The key svg=FOLDER: the plots of a report as files.
#pragma once

#include <optional>
#include <string>

#include "base/folders.h"
#include "bench/report.h"

namespace zoetrope::cli {

class Drawings {
 public:
  // Makes the folder and checks that files can be written there, before anything is measured; empty: none is wanted.
  // `section`: the first of the report. Throws Error.
  Drawings(const std::string& folder, const std::string& section);
  // SECTION-1.svg, SECTION-2.svg, …: all or none of them. Says so where there are no plots. Throws Error.
  void write(const bench::Report& report) const;

 private:
  std::string folder_;
  std::optional<MadeFolder> made_;
};

}  // namespace zoetrope::cli
