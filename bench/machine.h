// What the numbers were measured on, for the head of every report, and the most memory that this process had resident.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zoetrope::bench {

// Name and value, for people: CPU, cores, caches, memory, instruction sets, system, compiler, version, time.
std::vector<std::pair<std::string, std::string>> describe_machine();

// Anonymous and file pages alike, since the system's record began anew, which gives freed memory back first: what is
// resident then is the least it can show. Apart from trace::ResidentMeter because a case of a benchmark may clear the
// system's record, and a run of a user's may not.
void forget_peak_resident();
int64_t peak_resident_bytes();  // VmHWM

}  // namespace zoetrope::bench
