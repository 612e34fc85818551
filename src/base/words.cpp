#include "base/words.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>

namespace zoetrope {

std::string counted(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string utc_now_text() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

std::string after_comma(const std::string& words) { return words.empty() ? "" : ", " + words; }

std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./:,=+@%").find(c) != std::string::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string_view> split_terminated(std::string_view text, char terminator) {
  std::vector<std::string_view> parts = split(text, terminator);
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Each bound is where rounding to three digits would reach the next unit.
std::string duration_text(double seconds) {
  if (seconds < 0) return fmt::format("-{}", duration_text(-seconds));
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return fmt::format("{:.3g} µs", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.3g} s", seconds);
  constexpr int64_t kMinute = 60, kHour = 60;
  const int64_t whole = std::llround(seconds);
  if (whole < kHour * kMinute) return fmt::format("{} min {} s", whole / kMinute, whole % kMinute);
  const int64_t minutes = std::llround(seconds / static_cast<double>(kMinute));
  return fmt::format("{} h {} min", minutes / kHour, minutes % kHour);
}

}  // namespace zoetrope
