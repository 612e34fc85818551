// The machine that the numbers were measured on, for the head of every report, and the peak memory of this process.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zoetrope::bench {

// Name and value, for people: CPU, cores, caches, memory, instruction sets, system, compiler, version, time.
std::vector<std::pair<std::string, std::string>> describe_machine();

// The peak of resident memory, file pages included, since forget_peak_resident(), which first returns freed memory to
// the system. Not trace::ResidentMeter: a benchmark may clear the system's record of the peak, a user's run may not.
void forget_peak_resident();
int64_t peak_resident_bytes();  // VmHWM

}  // namespace zoetrope::bench
