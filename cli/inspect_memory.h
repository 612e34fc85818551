// The second half of zoetrope inspect: what a run of a model would hold in memory, and whether this machine has it.
// Of weights it reads headers only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::cli {

// `model` as it is named, of which these are the configs. `words` are key=value as generate takes them. `world` as in
// Command::run. Throws Error for a model that cannot run and for sizes that it cannot make.
struct MemoryLines {
  std::string text;
  bool admitted;  // of this process
};
MemoryLines memory_lines(const std::string& model, const std::filesystem::path& configs,
                         const std::vector<std::string>& words, comm::Communicator* world);

}  // namespace zoetrope::cli
