// Whether the files that a run reads weights from as it computes are in memory, and if not, how fast their disk is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/model_files/model_folder.h"
#include "planner/bytes.h"

namespace zoetrope::pipeline {

// What a transformer's weights are read from as they are used: the packed ones of `weight_cache`, or where it has none,
// or is empty, the model's own. Empty where they are no files.
std::vector<std::filesystem::path> streamed_files(const ModelFolder& model, const std::string& weight_cache);

struct StreamedDisk {
  bool in_memory = false;
  double bytes_per_second = 0;  // of the disk, otherwise; 0: unknown
  std::string note;             // of what was found; empty: nothing
};
// `room`: for the page cache, beside the run. A file is measured once in a process, and never where the user forbids
// it (machine::may_measure()).
StreamedDisk streamed_disk(const std::vector<std::filesystem::path>& files, planner::Bytes room);

}  // namespace zoetrope::pipeline
