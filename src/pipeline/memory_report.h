// The memory part of the timing summary: the peak of each component of a run next to its plan. Also returns freed
// memory to the system between components, so that a peak is not what an earlier one left behind.
#pragma once

#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "planner/memory_model.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {

// One a rank; in a process that ranks share, rank 0's measures and the others do nothing.
class MemoryReport {
 public:
  MemoryReport(comm::Communicator& world, planner::MemoryPlan plan);

  // Ends the component before and begins this one.
  void begin(const char* component);
  // Collective: ends the component and learns the largest peaks so far of all processes. Ranks have released their
  // memory by then.
  void gather();

  // Ends the last component. Of this process; the whole last.
  std::vector<ComponentMemory> finish();
  // Lines for people, after finish().
  std::string text() const;

 private:
  void end();

  comm::Communicator& world_;
  planner::MemoryPlan plan_;
  std::unique_ptr<trace::ResidentMeter> meter_;
  std::vector<ComponentMemory> found_;
  std::vector<std::pair<std::string, int64_t>> largest_;  // of all processes
};

}  // namespace zoetrope::pipeline
