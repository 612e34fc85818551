// Other users of the machine, as far as its cores are concerned.
#pragma once

#include <sys/types.h>

#include <vector>

namespace zoetrope::bench {

// Processes that compute without end, for as long as it lives; they end with this one, whatever ends it.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count);
  ~BusyProcesses();
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

 private:
  void end();

  std::vector<pid_t> processes_;
};

}  // namespace zoetrope::bench
