// ICU's regular expressions work on UTF-16; offsets are counted back to bytes while the matches are walked.
#include "text/regex.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <memory>

#include "text/json_field.h"

namespace zoetrope::text {

namespace {

// Only a newline ends a line, and "^" and "$" stand at every line.
constexpr uint32_t kLikeOniguruma = UREGEX_UNIX_LINES | UREGEX_MULTILINE;

icu::UnicodeString to_utf16(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::vector<Match> find_literal(std::string_view text, const std::string& literal) {
  std::vector<Match> matches;
  for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
    matches.push_back({at, at + literal.size()});
  }
  return matches;
}

std::vector<Match> find_regex(std::string_view text, const icu::RegexPattern& pattern) {
  const icu::UnicodeString utf16 = to_utf16(text);
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern.matcher(utf16, status));
  if (U_FAILURE(status)) fail("ICU cannot run a regular expression: {}", u_errorName(status));
  size_t byte = 0;
  int32_t unit = 0;
  const auto bytes_until = [&](int32_t end) {
    while (unit < end) {
      const UChar32 c = utf16.char32At(unit);
      unit += c > 0xFFFF ? 2 : 1;
      byte += c < 0x80 ? 1U : c < 0x800 ? 2U : c < 0x10000 ? 3U : 4U;
    }
    return byte;
  };
  std::vector<Match> matches;
  while (matcher->find(status)) {
    const size_t begin = bytes_until(matcher->start(status));
    matches.push_back({begin, bytes_until(matcher->end(status))});
  }
  if (U_FAILURE(status)) fail("a regular expression gave up on this text: {}", u_errorName(status));
  return matches;
}

}  // namespace

Pattern make_pattern(const nlohmann::json& block, const std::string& where) {
  if (block.is_object() && block.contains("String")) {
    const auto literal = json_get<std::string>(block, "String", where);
    if (literal.empty()) fail("{}.String is empty, and must say what to look for", where);
    return [literal](std::string_view text) { return find_literal(text, literal); };
  }
  const auto source = json_get<std::string>(block, "Regex", where);
  UErrorCode status = U_ZERO_ERROR;
  UParseError position;
  std::shared_ptr<icu::RegexPattern> pattern(
      icu::RegexPattern::compile(to_utf16(source), kLikeOniguruma, position, status));
  if (U_FAILURE(status) || !pattern) {
    fail("{}.Regex '{}' is not a regular expression: {}", where, source, u_errorName(status));
  }
  return [pattern](std::string_view text) { return find_regex(text, *pattern); };
}

}  // namespace zoetrope::text
