#include "base/print.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "base/error.h"
#include "base/utf8.h"

namespace zoetrope {
namespace {

std::atomic<int> lost_output = 0;  // errno of the first failure

bool is_control(char32_t code) {
  const bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || turns;
}

std::string escaped(std::string_view text, bool keep_lines) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [code, length] = decode_char(text, at);
    if (length == 0) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (!is_control(code) || (keep_lines && (code == '\n' || code == '\t'))) result += text.substr(at, length);
    else if (code == '\n') result += "\\n";
    else if (code == '\t') result += "\\t";
    else
      result += code < 0x100 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(code))
                             : fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
    at += length == 0 ? 1 : length;
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, false); }

void print_text(std::string_view text) {
  const std::string shown = escaped(text, true);
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size()) return;
  int none = 0;
  lost_output.compare_exchange_strong(none, errno);
}

void print_error_text(std::string_view text) {
  const std::string shown = escaped(text, true);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void replace_last_line(std::string_view text) {
  const std::string shown = "\r\x1b[K" + printable(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void flush_output() {
  int none = 0;
  if (std::fflush(stdout) != 0) lost_output.compare_exchange_strong(none, errno);
}

void finish_output() {
  flush_output();
  if (lost_output == 0) return;
  fail("standard output: cannot be written, so what was printed is not complete: {}", system_message(lost_output));
}

void take_standard_descriptors() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // open() takes the lowest free number, which is this one. The opposite access mode makes using it an error.
    if (::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

}  // namespace zoetrope
