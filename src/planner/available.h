// How much memory a process may use on this machine: free memory, the limits of its control groups (versions 1 and 2)
// and all their parents, the limit of its address space, and what the user allows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "planner/bytes.h"

namespace zoetrope::planner {

struct MemoryLimit {
  std::string what;  // "the free memory of this machine (MemAvailable)"
  Bytes available;   // to one process, including what it has resident
};

struct AvailableQuery {
  int processes = 1;                 // of this run on this host
  Bytes resident;                    // of each, now, including pages of files
  Bytes anonymous;                   // without pages of files: what the system does not count as free
  Bytes address_space;               // of each, in use now
  int threads_to_come = 0;           // per process: their stacks and heaps need address space
  std::optional<double> user_limit;  // GB for a process
  std::filesystem::path root = "/";  // where proc/ and the mounts are
};

// Every limit that could be read, the tightest first. Empty only where /proc cannot be read and the user set none.
std::vector<MemoryLimit> memory_limits(const AvailableQuery& query);

// What the tightest of them leaves; unset where there is none.
std::optional<Bytes> tightest(const std::vector<MemoryLimit>& limits);

}  // namespace zoetrope::planner
