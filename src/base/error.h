// How modules report: fail() for what a user can mend (throws Error), ZT_CHECK for bugs of ours (aborts).
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "zoetrope/error.h"

namespace zoetrope {

// Throws Error with a formatted sentence: fail("{}: tensor '{}' is missing", path, name).
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// What the system calls an errno: "No space left on device".
std::string system_message(int code);

// Prints the broken condition with its place and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace zoetrope

// ZT_CHECK(a == b) or ZT_CHECK(a == b, "a is {}", a): true always, or the program is wrong. Not for inner loops.
#define ZT_CHECK(condition, ...)                                                                       \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                     \
      ::zoetrope::check_failed(#condition, __FILE__, __LINE__, ::zoetrope::check_detail(__VA_ARGS__)); \
  } while (false)

namespace zoetrope {

inline std::string check_detail() { return {}; }
template <typename... Args>
std::string check_detail(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace zoetrope
