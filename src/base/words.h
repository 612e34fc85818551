// Numbers and words as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace zoetrope {

std::string counted(int64_t count, const char* noun);  // "1 thread", "2 threads"

// "9.4 µs", "304 ms", "12.3 s", "4 min 5 s", "40 h 12 min": never in scientific notation.
std::string duration_text(double seconds);

std::string utc_now_text();  // "2026-11-23 06:41 UTC"

std::string shell_word(const std::string& text);  // in single quotes where a POSIX shell needs them

}  // namespace zoetrope
