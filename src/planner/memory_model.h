// What a run holds in memory, phase by phase, and where the peak is. Prices a Workload; measures nothing (that is
// trace/resident.h) and knows no machine (that is available.h).
//
//   text encoder      layers on their way        workspace
//   load expert       weights  source pages      attention, step buffers
//   prompt            weights  K/V + making      attention, step buffers
//   denoise           weights  K/V               attention, step buffers, workspace, scratch
//   ... the same for a second expert, after the first is gone
//   load VAE          weights  source pages
//   decode            weights                    workspace, frames
//
// in each beside the program itself and what a rank keeps throughout. Ranks that share a process share weights, and
// those of one data coordinate the prompt's keys and values; all else is a rank's own.
#pragma once

#include <string>
#include <vector>

#include "planner/workload.h"

namespace zoetrope::planner {

// Components of the timing summary's memory part.
inline constexpr const char* kTextEncoder = "text encoder";
inline constexpr const char* kConditions = "conditions";
inline constexpr const char* kTransformer = "transformer";
inline constexpr const char* kVae = "VAE";

struct MemoryItem {
  std::string name;
  Bytes bytes;
};

struct MemoryPhase {
  std::string name;
  std::string component;
  std::vector<MemoryItem> items;  // of one process, largest first
  Bytes total() const;
  std::string text() const;  // "weights 2.84 GB, prompt keys and values 0.38 GB, …"
};

struct MemoryPlan {
  std::vector<MemoryPhase> phases;  // in the order of time
  const MemoryPhase& peak() const;
  Bytes peak_of(const std::string& component) const;  // 0 where there is none
};

// Of the process of rank 0, which holds the most.
MemoryPlan memory_model(const Workload& workload);

}  // namespace zoetrope::planner
