// The one way in which text reaches standard output and standard error. Text from elsewhere (names in checkpoint files,
// prompts, arguments) is never obeyed by the terminal: control characters are written as escapes, \x1b for one.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace zoetrope {

// Text from elsewhere in one line: control characters, line ends and tabs among them, and bytes that are not UTF-8 as
// \n, \t, \xNN; what turns the direction of writing as \u202e.
std::string printable(std::string_view text);

// The text with everything escaped that printable() escapes but line ends and tabs. Neither throws: what standard error
// does not take is lost, and what standard output did not take finish_output() reports.
void print_text(std::string_view text);
void print_error_text(std::string_view text);
// On standard error, a terminal: in place of what its last line held. Ends without a line end.
void replace_last_line(std::string_view text);

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void print_error(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

// Error where standard output did not take all that was printed: a full disk, a closed descriptor.
void finish_output();

// Before anything is opened: descriptors 0 to 2 that this process was not given are taken, so that no file becomes one
// of them and gets what is printed. Writing to them still fails.
void take_standard_descriptors();

}  // namespace zoetrope
