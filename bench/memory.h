// The most memory this process had resident since it was last asked to forget, anonymous and file pages alike. Apart
// from trace::ResidentMeter because a case of a benchmark may clear the system's record, and a run of a user's may not.
#pragma once

#include <cstdint>

namespace zoetrope::bench {

// Gives freed memory back to the system and lets its record begin anew; what is resident now is the least it can show.
void forget_peak_resident();
int64_t peak_resident_bytes();  // VmHWM

}  // namespace zoetrope::bench
