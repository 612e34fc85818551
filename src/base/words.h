// Numbers and words as text for people, and text in parts.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope {

std::string counted(int64_t count, const char* noun);  // "1 thread", "2 threads"

// "9.4 µs", "304 ms", "12.3 s", "4 min 5 s", "40 h 12 min": never in scientific notation.
std::string duration_text(double seconds);

std::string utc_now_text();  // "2026-11-23 06:41 UTC"

std::string after_comma(const std::string& words);  // ", words"; empty where there are none

std::string shell_word(const std::string& text);  // in single quotes where a POSIX shell needs them

// The parts of `text` between separators: one more than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);

// The parts of `text` that end with `terminator`, which the last may lack: none of an empty text.
std::vector<std::string_view> split_terminated(std::string_view text, char terminator);

// Without the blanks around it.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

std::string lower_case(std::string text);  // its ASCII letters

// All of `text` as a number, or nothing.
template <typename T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace zoetrope
