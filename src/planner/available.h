// How much memory a process may have on this machine: what the kernel could give, the limits of its control groups
// (versions 1 and 2, all the way up), the limit of its address space, and what the user allows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "planner/bytes.h"

namespace zoetrope::planner {

struct MemoryLimit {
  std::string what;  // "the free memory of this machine (MemAvailable)"
  Bytes available;   // to one process, what it has resident already included
};

struct AvailableQuery {
  int processes = 1;                 // of this run that share the host's memory, alike
  Bytes resident;                    // of each, now, pages of files included
  Bytes anonymous;                   // of these, the ones that are no file's: what the system does not count as free
  Bytes address_space;               // of each, in use now
  int threads_to_come = 0;           // of each: their stacks and heaps take address space
  std::optional<double> user_limit;  // GB for a process
  std::filesystem::path root = "/";  // where proc/ and what it mounts are looked for
};

// Every limit that could be read, the tightest first. Empty only where /proc cannot be read and the user set none.
std::vector<MemoryLimit> memory_limits(const AvailableQuery& query);

}  // namespace zoetrope::planner
