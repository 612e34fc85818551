// The second half of zoetrope inspect: what a run of a model would hold in memory, and whether this machine has it.
// Needs configs only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

namespace zoetrope::cli {

// What a model's files hold.
struct StoredWeights {
  std::map<std::string, DType> dtypes;  // that most of each component is stored as
  int64_t transformer_bytes = 0;        // of the files of the largest; 0: not known
};

// `words` are key=value as generate takes them. `world` as in Command::run. Throws Error for a model that cannot run
// and for sizes that it cannot make.
struct MemoryLines {
  std::string text;
  bool admitted;  // of this process
};
MemoryLines memory_lines(const std::filesystem::path& folder, const std::vector<std::string>& words,
                         const StoredWeights& stored, comm::Communicator* world);

}  // namespace zoetrope::cli
