// How much memory this process has resident (anonymous and file pages), and the most it had in each part of a run. Only
// measuring: what a run will need is planner/memory_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zoetrope::trace {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // since the process began
int64_t anonymous_bytes();      // of what is resident now, without pages of files
int64_t virtual_bytes();        // address space in use, whether resident or not

// The peak of each part of a run. A part that reaches a new peak of the whole process has it from the system, to the
// page; a part that stays below an earlier one is sampled every 20 ms, which can miss what came and went between (at
// the speed of first touches, some 30 MB). The system's own record could be cleared for each part instead, but then
// programs that measure this one from outside would see the last part for the whole.
class ResidentMeter {
 public:
  ResidentMeter();
  ~ResidentMeter();
  ResidentMeter(const ResidentMeter&) = delete;
  ResidentMeter& operator=(const ResidentMeter&) = delete;

  // Ends the part before and begins this one; a part that was there before goes on.
  void begin(const std::string& part);
  void end();

  struct Peak {
    std::string part;
    int64_t bytes = 0;
  };
  std::vector<Peak> peaks() const;  // of the parts that have ended, in the order of their beginnings

 private:
  struct Sampler;
  std::unique_ptr<Sampler> sampler_;
  std::string part_;           // in progress; empty: none
  int64_t record_before_ = 0;  // the process' peak when it began
  std::vector<Peak> peaks_;
};

}  // namespace zoetrope::trace
