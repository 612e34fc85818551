#include "text/regex.h"

#include "base/error.h"

namespace zoetrope::text {

Regex::Regex(std::string_view pattern, uint32_t flags, std::string_view where) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError position;
  pattern_.reset(icu::RegexPattern::compile(to_utf16(pattern), flags, position, status));
  if (U_FAILURE(status) || !pattern_) {
    fail("{} '{}' is not a regular expression: {}", where, pattern, u_errorName(status));
  }
}

void Regex::for_each(const icu::UnicodeString& text,
                     const std::function<bool(int32_t begin, int32_t end)>& on_match) const {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(text, status));
  if (U_FAILURE(status)) fail("ICU cannot run a regular expression: {}", u_errorName(status));
  matcher->setStackLimit(0, status);  // none: what a match remembers grows with the length of the text alone
  while (matcher->find(status) && on_match(matcher->start(status), matcher->end(status))) {
  }
  if (U_FAILURE(status)) fail("a regular expression gave up on this text: {}", u_errorName(status));
}

bool Regex::found_in(const icu::UnicodeString& text) const {
  bool found = false;
  for_each(text, [&](int32_t, int32_t) {
    found = true;
    return false;
  });
  return found;
}

icu::UnicodeString Regex::replace(const icu::UnicodeString& text, const Replace& replace) const {
  icu::UnicodeString out;
  int32_t done = 0;
  for_each(text, [&](int32_t begin, int32_t end) {
    out.append(text, done, begin - done).append(replace(text.tempSubStringBetween(begin, end)));
    done = end;
    return true;
  });
  return out.append(text, done, text.length() - done);
}

icu::UnicodeString Regex::replace(const icu::UnicodeString& text, const icu::UnicodeString& replacement) const {
  return replace(text, [&](const icu::UnicodeString&) { return replacement; });
}

icu::UnicodeString to_utf16(std::string_view utf8) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(utf8.data(), static_cast<int32_t>(utf8.size())));
}

Pattern make_pattern(const JsonObject& block) {
  if (const auto found = block.find<std::string>("String")) {
    if (found->empty()) fail("{}.String is empty, and must say what to look for", block.path());
    return [literal = *found](std::string_view text) {
      std::vector<Match> matches;
      for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
        matches.push_back({at, at + literal.size()});
      }
      return matches;
    };
  }
  // As in Oniguruma, only a newline ends a line, and "^" and "$" match at every line.
  const Regex regex(block.get<std::string>("Regex"), UREGEX_UNIX_LINES | UREGEX_MULTILINE, block.path() + ".Regex");
  return [regex](std::string_view text) {
    const icu::UnicodeString utf16 = to_utf16(text);
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
    regex.for_each(utf16, [&](int32_t begin, int32_t end) {
      const size_t first = bytes_until(begin);
      matches.push_back({first, bytes_until(end)});
      return true;
    });
    return matches;
  };
}

}  // namespace zoetrope::text
