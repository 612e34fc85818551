#include "cli/drawings.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/atomic_file.h"
#include "base/print.h"
#include "bench/page.h"

namespace zoetrope::cli {

namespace fs = std::filesystem;

Drawings::Drawings(const std::string& folder, const std::string& section) : folder_(folder) {
  if (folder.empty()) return;
  made_.emplace(folder);
  check_writable(fs::path(folder) / fmt::format("{}-1.svg", section));
}

void Drawings::write(const bench::Report& report) const {
  if (folder_.empty()) return;
  std::vector<AtomicFile> files;
  for (const bench::Drawing& drawing : report_drawings(report)) {
    AtomicFile& file = files.emplace_back(fs::path(folder_) / (drawing.name + ".svg"));
    file.write(drawing.svg.data(), drawing.svg.size());
    file.close();
  }
  if (files.empty()) print_error("svg={}: nothing was written, because what was measured has no plots\n", folder_);
  for (AtomicFile& file : files) file.commit();
}

}  // namespace zoetrope::cli
