// ICU's regular expressions for this module: compiled once, used from several threads, and what they match.
#pragma once

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace zoetrope::text {

class Regex {
 public:
  // `flags` are ICU's UREGEX_*. Throws Error, which opens with `where`, if the pattern is not a regular expression.
  explicit Regex(std::string_view pattern, uint32_t flags = 0, std::string_view where = "regular expression");

  // Calls with the begin and end (UTF-16 units) of the non-overlapping matches, left to right, until it returns false.
  // Throws Error if ICU gives up on this text.
  void for_each(const icu::UnicodeString& text, const std::function<bool(int32_t begin, int32_t end)>& on_match) const;
  bool found_in(const icu::UnicodeString& text) const;

  // The text with every match replaced by what `replace` returns for it.
  using Replace = std::function<icu::UnicodeString(const icu::UnicodeString&)>;
  icu::UnicodeString replace(const icu::UnicodeString& text, const Replace& replace) const;
  icu::UnicodeString replace(const icu::UnicodeString& text, const icu::UnicodeString& replacement) const;

 private:
  std::shared_ptr<const icu::RegexPattern> pattern_;
};

icu::UnicodeString to_utf16(std::string_view utf8);

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

// What a tokenizer file searches for in UTF-8 text: all non-overlapping matches, left to right.
using Pattern = std::function<std::vector<Match>(std::string_view)>;

// From {"String": …} or {"Regex": …}. The reference's dialect is Oniguruma, the same as ICU's for everything that
// tokenizer files are known to use.
Pattern make_pattern(const JsonObject& block);

}  // namespace zoetrope::text
