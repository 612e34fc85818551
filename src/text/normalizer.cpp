// One function per type, in the order and with the names of the `tokenizers` library (src/normalizers,
// src/pre_tokenizers). Left out are the types that only byte-level and word-piece tokenizers use; a file that has them
// is refused.
#include "text/normalizer.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/charsmap.h"
#include "text/regex.h"

namespace zoetrope::text {

namespace {

// The character tables of the reference's normalisation forms are those of Unicode 9; characters of later versions pass
// them unchanged.
constexpr int kNormalizationVersion = 9;

// Sequences may hold sequences; a file that nests them deeper than this is an attack or a mistake.
constexpr int kMaxNesting = 16;

// SentencePiece's sign for a space.
constexpr const char* kSpaceMark = "▁";

bool is_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

std::u32string to_chars(std::string_view text) { return decode_utf8_or_fail(text, "the text"); }

using TextStep = std::function<std::string(const std::string&)>;

// A step that does not change which character is first.
Normalizer keeping_place(TextStep step) {
  return [step = std::move(step)](const Word& word) { return Word{step(word.text), word.first}; };
}

Normalizer make_unicode(const std::string& type) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* full = type == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                 : type == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                 : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                  : icu::Normalizer2::getNFKDInstance(status);
  static_assert(kNormalizationVersion == 9);
  const auto known = std::make_shared<icu::UnicodeSet>(u"[:Age=9.0:]", status);
  if (U_FAILURE(status)) fail("ICU has no data for {}: {}", type, u_errorName(status));
  const auto form = std::make_shared<icu::FilteredNormalizer2>(*full, *known);
  return keeping_place([known, form](const std::string& text) {
    UErrorCode failed = U_ZERO_ERROR;
    const icu::Normalizer2& normalizer = *form;
    const icu::UnicodeString result = normalizer.normalize(icu::UnicodeString::fromUTF8(text), failed);
    if (U_FAILURE(failed)) fail("ICU cannot normalise the text: {}", u_errorName(failed));
    std::string out;
    return result.toUTF8String(out);
  });
}

// Removes the characters for which `drop` is true, at the given ends or everywhere.
enum class Where { kEnds, kLeft, kRight, kEverywhere, kNowhere };

template <typename Drop>
Word filter(const Word& word, Where where, Drop drop) {
  std::u32string chars = to_chars(word.text);
  const bool first =
      word.first && (where == Where::kRight || where == Where::kNowhere || chars.empty() || !drop(chars[0]));
  size_t begin = 0, end = chars.size();
  if (where == Where::kEverywhere) {
    std::erase_if(chars, drop);
    end = chars.size();
  }
  while ((where == Where::kEnds || where == Where::kLeft) && begin < end && drop(chars[begin])) ++begin;
  while ((where == Where::kEnds || where == Where::kRight) && end > begin && drop(chars[end - 1])) --end;
  return {encode_utf8(std::u32string_view(chars).substr(begin, end - begin)), first};
}

Word replace(const Word& word, const Pattern& pattern, const std::string& content) {
  const std::string_view text = word.text;
  Word out{{}, word.first};
  size_t done = 0;
  for (const Match& match : pattern(text)) {
    // A replacement of several characters counts as coming from the last of them.
    if (match.begin == 0 && match.end > 0 && (content.empty() || match.end > decode_char(text, 0).bytes)) {
      out.first = false;
    }
    out.text += text.substr(done, match.begin - done);
    out.text += content;
    done = match.end;
  }
  out.text += text.substr(done);
  return out;
}

// Character by character, as the reference does: a final sigma is not special.
std::string lowercase(const std::string& text) {
  std::string out;
  for (char32_t c : to_chars(text)) {
    icu::UnicodeString one(static_cast<UChar32>(c));
    one.toLower(icu::Locale::getRoot()).toUTF8String(out);
  }
  return out;
}

Word strip_accents(const Word& word) {
  return filter(word, Where::kEverywhere, [](char32_t c) {
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(c), age);
    return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0 && age[0] <= kNormalizationVersion;
  });
}

// Every run of two or more spaces becomes one mark of a space.
std::string join_spaces(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at > 1) out += kSpaceMark;
    else out.push_back(text[at]);
    at = std::max(end, at + 1);
  }
  return out;
}

// The control characters and spaces of neural machine translation's preprocessing (SentencePiece's "nmt" rules).
Word nmt(const Word& word) {
  Word kept = filter(word, Where::kEverywhere, [](char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  });
  std::u32string chars = to_chars(kept.text);
  for (char32_t& c : chars) {
    if (c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
        c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD) {
      c = ' ';
    }
  }
  return {encode_utf8(chars), kept.first};
}

Normalizer make_normalizer_at(const JsonObject& block, int depth) {
  if (depth > kMaxNesting) fail("{}: sequences are nested more than {} deep", block.path(), kMaxNesting);
  const auto type = block.get<std::string>("type");
  if (type == "Sequence") {
    std::vector<Normalizer> steps;
    for (const JsonObject& step : block.objects("normalizers")) steps.push_back(make_normalizer_at(step, depth + 1));
    return [steps](Word word) {
      for (const Normalizer& step : steps) word = step(std::move(word));
      return word;
    };
  }
  if (type == "Precompiled") {
    const auto map =
        std::make_shared<Charsmap>(Charsmap::from_base64(block.get<std::string>("precompiled_charsmap"), block.path()));
    return keeping_place([map](const std::string& text) { return map->normalize(text); });
  }
  if (type == "Strip") {
    const bool left = block.get<bool>("strip_left");
    const bool right = block.get<bool>("strip_right");
    const Where where_to = left && right ? Where::kEnds : left ? Where::kLeft : right ? Where::kRight : Where::kNowhere;
    return [where_to](const Word& word) { return filter(word, where_to, is_space); };
  }
  if (type == "Replace") {
    const Pattern pattern = make_pattern(block.object("pattern"));
    const auto content = block.get<std::string>("content");
    return [pattern, content](const Word& word) { return replace(word, pattern, content); };
  }
  if (type == "Prepend") {
    const auto prefix = block.get<std::string>("prepend");
    return keeping_place([prefix](const std::string& text) { return text.empty() ? text : prefix + text; });
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return make_unicode(type);
  if (type == "Lowercase") return keeping_place(lowercase);
  if (type == "StripAccents") return strip_accents;
  if (type == "Nmt") return nmt;
  fail(
      "{}: type '{}' is not supported; Sequence, Precompiled, Strip, Replace, Prepend, NFC, NFD, NFKC, NFKD, "
      "Lowercase, StripAccents and Nmt are",
      block.path(), type);
}

enum class PrependScheme { kAlways, kFirst, kNever };

struct Metaspace {
  std::string replacement;
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

Metaspace read_metaspace(const JsonObject& block) {
  Metaspace result;
  result.replacement = block.get<std::string>("replacement");
  if (to_chars(result.replacement).size() != 1) fail("{}.replacement must be one character", block.path());
  const std::string scheme = block.find_one_of("prepend_scheme", {"always", "first", "never"});
  if (scheme == "first") result.prepend = PrependScheme::kFirst;
  if (scheme == "never") result.prepend = PrependScheme::kNever;
  // The older spelling; the two may not contradict each other.
  if (!block.get<bool>("add_prefix_space", true)) {
    if (block.has("prepend_scheme") && result.prepend != PrependScheme::kNever) {
      fail("{}: add_prefix_space is false, so prepend_scheme must be never and not {}", block.path(), scheme);
    }
    result.prepend = PrependScheme::kNever;
  }
  result.split = block.get<bool>("split", true);
  return result;
}

// Every occurrence of the replacement begins a word.
void apply_metaspace(const Metaspace& meta, Word word, std::vector<Word>& out) {
  std::string text;
  for (char c : word.text) {
    if (c == ' ') {
      text += meta.replacement;
    } else {
      text.push_back(c);
    }
  }
  const bool wanted = meta.prepend == PrependScheme::kAlways || (meta.prepend == PrependScheme::kFirst && word.first);
  if (wanted && !text.starts_with(meta.replacement)) text.insert(0, meta.replacement);
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t next = meta.split ? text.find(meta.replacement, begin + 1) : std::string::npos;
    const size_t end = std::min(next, text.size());
    out.push_back({text.substr(begin, end - begin), word.first && begin == 0});
    begin = end;
  }
}

PreTokenizer metaspace(const Metaspace& meta) {
  return [meta](const std::vector<Word>& words) {
    std::vector<Word> out;
    for (const Word& word : words) apply_metaspace(meta, word, out);
    return out;
  };
}

void split_at_spaces(const Word& word, std::vector<Word>& out) {
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    if (end > begin) out.push_back({word.text.substr(begin, end - begin), word.first && begin == 0});
  };
  for (size_t at = 0; at < word.text.size();) {
    const DecodedChar c = decode_char(word.text, at);
    if (is_space(c.code)) {
      flush(at);
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  flush(word.text.size());
}

PreTokenizer make_pre_tokenizer_at(const JsonObject& block, int depth) {
  if (depth > kMaxNesting) fail("{}: sequences are nested more than {} deep", block.path(), kMaxNesting);
  const auto type = block.get<std::string>("type");
  if (type == "Sequence") {
    std::vector<PreTokenizer> steps;
    for (const JsonObject& step : block.objects("pretokenizers")) {
      steps.push_back(make_pre_tokenizer_at(step, depth + 1));
    }
    return [steps](std::vector<Word> words) {
      for (const PreTokenizer& step : steps) words = step(std::move(words));
      return words;
    };
  }
  if (type == "Metaspace") return metaspace(read_metaspace(block));
  if (type == "WhitespaceSplit") {
    return [](const std::vector<Word>& words) {
      std::vector<Word> out;
      for (const Word& word : words) split_at_spaces(word, out);
      return out;
    };
  }
  fail("{}: type '{}' is not supported; Sequence, Metaspace and WhitespaceSplit are", block.path(), type);
}

}  // namespace

Normalizer make_normalizer(const std::optional<JsonObject>& block) {
  if (!block) return [](Word word) { return word; };
  return make_normalizer_at(*block, 0);
}

PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& block) {
  if (!block) return [](std::vector<Word> words) { return words; };
  return make_pre_tokenizer_at(*block, 0);
}

Normalizer sentencepiece_normalizer(std::string_view charsmap, ExtraSpaces spaces, std::string_view where) {
  const auto map = charsmap.empty() ? nullptr : std::make_shared<const Charsmap>(charsmap, where);
  return [map, spaces](Word word) {
    if (map) word.text = map->normalize(word.text);
    if (spaces == ExtraSpaces::kKeep) return word;
    word = filter(word, Where::kRight, is_space);
    word.text = join_spaces(word.text);
    return word;
  };
}

PreTokenizer sentencepiece_pre_tokenizer(SpacePrefix prefix) {
  return metaspace({kSpaceMark, prefix == SpacePrefix::kAdd ? PrependScheme::kAlways : PrependScheme::kNever});
}

}  // namespace zoetrope::text
