// How much memory this process has resident (anonymous and file pages), and the peak of each part of a run. For
// predictions see planner/memory_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zoetrope::trace {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // since the process started
// Resident now, without pages of files; of memory that processes have in common this one's share.
int64_t anonymous_bytes();
int64_t allocated_bytes();  // the same, once what was freed is given back to the system
int64_t virtual_bytes();    // address space in use, whether resident or not

// The peak of each part of a run. If a part reaches a new peak of the process, the system has the exact number; a part
// that stays below an earlier peak is sampled every 20 ms, which can miss short peaks between samples (about 30 MB at
// the speed of first touches). The system's record could be reset for each part instead, but then tools that measure
// this process from outside would see only the last part.
class ResidentMeter {
 public:
  ResidentMeter();
  ~ResidentMeter();
  ResidentMeter(const ResidentMeter&) = delete;
  ResidentMeter& operator=(const ResidentMeter&) = delete;

  // Ends the previous part and begins this one; an earlier part of this name continues.
  void begin(const std::string& part);
  void end();

  struct Peak {
    std::string part;
    int64_t bytes = 0;
  };
  std::vector<Peak> peaks() const;  // of the parts that have ended, in the order of their starts

 private:
  struct Sampler;
  std::unique_ptr<Sampler> sampler_;
  std::string part_;           // in progress; empty: none
  int64_t record_before_ = 0;  // the process' peak when it began
  std::vector<Peak> peaks_;
};

}  // namespace zoetrope::trace
