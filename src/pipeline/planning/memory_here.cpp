#include "pipeline/planning/memory_here.h"

#include "comm/launcher.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {

planner::AvailableQuery query_here(int processes, int threads) {
  planner::AvailableQuery query;
  query.processes = processes;
  query.resident = planner::Bytes(trace::resident_bytes());
  query.anonymous = planner::Bytes(trace::anonymous_bytes());
  // The team's, one that writes frames, one that measures.
  query.threads_to_come = threads + 1;
  query.address_space = planner::Bytes(trace::virtual_bytes());
  return query;
}

std::vector<planner::MemoryLimit> limits_here(const MemoryQuestion& question, int processes_here) {
  planner::AvailableQuery query = query_here(processes_here, comm::process_threads(question.options.threads));
  query.user_limit = question.options.memory_limit;
  return planner::memory_limits(query);
}

}  // namespace zoetrope::pipeline
