// The memory of a run, phase by phase, and its peak, computed from a Workload. trace/resident.h measures memory,
// available.h reads the limits of the machine.
//
//   text encoder      layers being read          workspace
//   load expert       weights  source pages      attention, step buffers
//   prompt            weights  K/V + making      attention, step buffers
//   denoise           weights  K/V               attention, step buffers, workspace, scratch
//   ... the same for a second expert, after the first is gone
//   load VAE          weights  source pages
//   decode            weights                    workspace, frames, video encoder
//
// each plus the program itself and what a rank keeps throughout. Ranks of one process share weights, and those of one
// data and one tensor coordinate share the prompt's keys and values; everything else is per rank.
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

// The largest items.
inline constexpr const char* kAttentionMemory = "attention";
inline constexpr const char* kWeightMemory = "weights";
inline constexpr const char* kActivationMemory = "activations";
inline constexpr const char* kContextMemory = "prompt keys and values";
inline constexpr const char* kFrameMemory = "frames and feature caches";
inline constexpr const char* kPackingMemory = "file pages and weights being packed";
inline constexpr const char* kLayersReadMemory = "layers being read";

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

// What one attention plan allocates on a context rank: exchange buffers, ring blocks in transit, statistics, running
// states. `sizes` has the tokens of all context ranks.
Bytes attention_workspace(const parallel::Sizes& sizes, const parallel::ContextLayout& layout,
                          parallel::Softmax softmax, int rank);

// The memory of the process of rank 0, which needs the most.
MemoryPlan memory_model(const Workload& workload);

}  // namespace zoetrope::planner
