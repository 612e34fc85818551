// All text to standard output and standard error goes through here. Control characters in text from elsewhere (names in
// files, prompts, arguments) are written as escapes, such as \x1b, so that no terminal obeys them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace zoetrope {

// Text from elsewhere on one line: control characters (including line ends and tabs) and bytes that are not UTF-8 as
// \n, \t, \xNN; characters that change the writing direction as \u202e.
std::string printable(std::string_view text);

// The text with everything escaped that printable() escapes, except line ends and tabs. Neither throws: what cannot be
// written to standard error is lost; finish_output() reports what could not be written to standard output.
void print_text(std::string_view text);
void print_error_text(std::string_view text);
// On standard error, a terminal: replaces the last line. Writes no line end.
void replace_last_line(std::string_view text);

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void print_error(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

// Sends on what was printed, so that it is seen now. finish_output() reports what could not be written.
void flush_output();
// Error if not everything could be written to standard output: a full disk, a closed descriptor.
void finish_output();

// Call it before anything is opened: opens those of the descriptors 0 to 2 that are closed, so that no file gets their
// number and the printed text. Writing to them still fails.
void take_standard_descriptors();

}  // namespace zoetrope
