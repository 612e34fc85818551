// The splitting rules of the `tokenizers` library (src/tokenizer/added_vocabulary.rs).
#include "text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace zoetrope::text {

namespace {

bool is_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

// \w of Unicode's regular expressions (UTS #18, annex C).
bool is_word(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  return u_hasBinaryProperty(code, UCHAR_ALPHABETIC) || u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(code) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

size_t char_before(std::string_view text, size_t end) {
  while (end > 0 && (static_cast<uint8_t>(text[--end]) & 0xC0) == 0x80) {
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (const AddedToken& token : tokens_) entries.emplace_back(token.content, static_cast<int32_t>(entries.size()));
  trie_ = Trie(std::move(entries));
}

std::vector<Span> AddedTokens::split(std::string_view text) const {
  std::vector<Span> spans;
  size_t done = 0;  // up to here everything is in a span
  for (size_t at = 0; at < text.size();) {
    int32_t found = Trie::kNone;
    size_t begin = at, end = at;
    int32_t node = Trie::root();
    for (size_t i = at; i < text.size(); ++i) {
      node = trie_.step(node, static_cast<uint8_t>(text[i]));
      if (node == Trie::kNone) break;
      if (trie_.value(node) != Trie::kNone) {
        found = trie_.value(node);
        end = i + 1;
      }
    }
    if (found == Trie::kNone) {
      ++at;
      continue;
    }
    at = end;  // a match that is rejected below is not searched again
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.single_word) {
      const bool left = begin > 0 && is_word(decode_char(text, char_before(text, begin)).code);
      const bool right = end < text.size() && is_word(decode_char(text, end).code);
      if (left || right) continue;
    }
    if (token.lstrip) {
      while (begin > done && is_space(decode_char(text, char_before(text, begin)).code)) {
        begin = char_before(text, begin);
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size() && is_space(decode_char(text, end).code)) end += decode_char(text, end).bytes;
    }
    if (done < begin) spans.push_back({text.substr(done, begin - done)});
    // The previous token may have taken all of this one's text as spaces.
    if (begin < end) spans.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) spans.push_back({text.substr(done)});
  return spans;
}

}  // namespace zoetrope::text
